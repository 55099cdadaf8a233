// Anonymous memory that several processes map.

#ifndef MUSTER_DATAPLANE_CPU_SHM_SEGMENT_H_
#define MUSTER_DATAPLANE_CPU_SHM_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "muster/base/status.h"

namespace muster::dataplane::shm {

// A file that holds segments one behind the other, with one descriptor for all.
struct SegmentFile {
  SegmentFile(int descriptor, uint64_t nonce)
      : descriptor(descriptor), nonce(nonce) {}
  ~SegmentFile();
  SegmentFile(const SegmentFile&) = delete;
  SegmentFile& operator=(const SegmentFile&) = delete;

  const int descriptor;
  const uint64_t nonce;
  // The size of the segments made here.
  size_t bytes = 0;
};

// Segment is memory that processes of one host share. It has no name in any
// file system: one process creates it, and the others open it through that
// process's descriptors. So nothing is left behind when a process is killed,
// and the size of a container's /dev/shm does not matter. A process must be
// able to see the other's descriptors: this holds for processes of one user in
// one pid namespace.
class Segment {
 public:
  // The approximate number of mappings into which users divide a segment
  // (Withdraw, mprotect(2)). The number of mappings per process is limited, and
  // without a free one a process gets no memory at all. Segments take at most
  // half of them.
  static constexpr int kMappings = 5;

  // The address under which other processes find the segment. `nonce` is part
  // of the descriptor's name, so nothing on another host, or in another pid
  // namespace, is mistaken for it.
  struct Location {
    uint64_t process = 0;
    uint64_t descriptor = 0;
    uint64_t nonce = 0;
    // The offset in the file.
    uint64_t offset = 0;
  };

  // Creates `bytes` of zeros in `file`, behind its other segments, or in a new
  // file if that is null. The first `reserved` (or all) are allocated and may
  // be touched. The others take no memory and must not be touched before
  // Reserve, but the system must have memory for them now, too. Segments that
  // share a file are whole pages, and all processes must have opened one before
  // the next is made. Errors: kResourceExhausted (no memory, descriptor or
  // mapping, or a limit, named with its value).
  static StatusOr<std::unique_ptr<Segment>> Create(
      size_t bytes, std::shared_ptr<SegmentFile> file = nullptr,
      std::optional<size_t> reserved = std::nullopt);

  // Opens the segment at `place`; in `file`, if that is not null. Errors:
  // kNotFound (not on this host, or not visible from here), kPermissionDenied,
  // kResourceExhausted.
  static StatusOr<std::unique_ptr<Segment>> Open(
      const Location& place, size_t bytes,
      std::shared_ptr<SegmentFile> file = nullptr);

  ~Segment();

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  void* memory() const { return memory_; }

  // Maps the pages of the first `bytes` at once, if the system can (Linux
  // 5.14). Otherwise each page is mapped when it is touched, which takes ten
  // times as long in total, and at a worse time.
  void MapPages(size_t bytes);

  // Allocates and maps the pages of [offset, offset + bytes), which may be
  // touched from now on. (Before Linux 5.14, Create has reserved them.) Errors:
  // kResourceExhausted.
  Status Reserve(size_t offset, size_t bytes);

  // Only in the process that created the segment, until CloseDescriptor.
  Location place() const;

  // Null after CloseDescriptor.
  const std::shared_ptr<SegmentFile>& file() const { return file_; }

  // Closes the file. Call it when the others have opened the segment and
  // nothing will be withdrawn or given back. The memory stays mapped
  // everywhere.
  void CloseDescriptor() { file_ = nullptr; }

  // Replaces [offset, offset + bytes), whole pages, by a private copy: this
  // process and the others no longer see each other's writes there. Other
  // threads may read and write meanwhile. The copy takes `bytes` of memory. The
  // caller checks that they are available, because the system would kill a
  // process rather than fail. Call it before CloseDescriptor. Errors:
  // kResourceExhausted: all or some of it is still shared.
  Status Withdraw(size_t offset, size_t bytes);

  // Returns the memory of [offset, offset + bytes), whole pages, to the system,
  // also if others have them mapped. Call it before CloseDescriptor, when no
  // process needs them.
  void GiveBack(size_t offset, size_t bytes);

 private:
  Segment(std::shared_ptr<SegmentFile> file, size_t offset, size_t bytes,
          void* memory);

  static StatusOr<std::unique_ptr<Segment>> Map(
      std::shared_ptr<SegmentFile> file, size_t offset, size_t bytes);

  std::shared_ptr<SegmentFile> file_;
  const size_t offset_;
  const size_t bytes_;
  void* const memory_;
};

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_SEGMENT_H_
