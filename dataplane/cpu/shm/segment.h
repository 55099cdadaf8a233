// Anonymous memory that several processes map.

#ifndef MUSTER_DATAPLANE_CPU_SHM_SEGMENT_H_
#define MUSTER_DATAPLANE_CPU_SHM_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/status.h"

namespace muster::dataplane::shm {

// The file that holds segments one behind the other: one descriptor for all of
// them.
struct SegmentFile {
  SegmentFile(int descriptor, uint64_t nonce)
      : descriptor(descriptor), nonce(nonce) {}
  ~SegmentFile();
  SegmentFile(const SegmentFile&) = delete;
  SegmentFile& operator=(const SegmentFile&) = delete;

  const int descriptor;
  const uint64_t nonce;
  // Of those that were made here.
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
  // Into how many mappings users divide one (Withdraw, mprotect(2)) by and
  // large. A process may have so many, and with none left gets no memory of any
  // kind: of those, segments take half.
  static constexpr int kMappings = 5;

  // Where the others find it. `nonce` is part of the descriptor's name: on
  // another host, or among other process numbers, nothing is called so.
  struct Place {
    uint64_t process = 0;
    uint64_t descriptor = 0;
    uint64_t nonce = 0;
    // In its file.
    uint64_t offset = 0;
  };

  // `bytes` of zeros. The first `reserved` (or all) are there: touching them
  // later does not fail. The others take no memory before Reserve, and must not
  // be touched; but the system has to have memory for them now, too. In `file`,
  // behind what it has, or in a new one if that is null. Of one file they are
  // whole pages, and all processes have opened one before the next is made.
  // Errors: kResourceExhausted (memory, descriptors, mappings, a limit: named
  // with its value).
  static StatusOr<std::unique_ptr<Segment>> Create(
      size_t bytes, std::shared_ptr<SegmentFile> file = nullptr,
      std::optional<size_t> reserved = std::nullopt);

  // The one at `place`, in `file`, if that is not null.
  // Errors: kNotFound (not on this host, or not visible from here),
  // kPermissionDenied, kResourceExhausted.
  static StatusOr<std::unique_ptr<Segment>> Open(
      const Place& place, size_t bytes,
      std::shared_ptr<SegmentFile> file = nullptr);

  ~Segment();

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  void* memory() const { return memory_; }

  // Maps the pages of the first `bytes` now, all at once, where the system can
  // (Linux 5.14). Else each is when it is touched, which takes some ten times
  // as long, in the midst of what the memory is for.
  void MapPages(size_t bytes);

  // [offset, offset + bytes), and what is left of their pages, may be touched
  // from now on; maps them, too. (A system before Linux 5.14 has reserved them
  // in Create.) Errors: kResourceExhausted.
  Status Reserve(size_t offset, size_t bytes);

  // Of the one that made it, until CloseDescriptor.
  Place place() const;

  // Until CloseDescriptor.
  const std::shared_ptr<SegmentFile>& file() const { return file_; }

  // The others have opened it, and nothing will be withdrawn or given back
  // here. Their memory and this one's stay.
  void CloseDescriptor() { file_ = nullptr; }

  // This process has a copy of its own in place of [offset, offset + bytes),
  // which are whole pages, from now on: it does not see what others write
  // there, nor do they what it does. Other threads may go on reading and
  // writing meanwhile. That takes so much memory, for which the caller has
  // looked: the system would end a process rather than say that there is none.
  // Before CloseDescriptor.
  // Errors: kResourceExhausted: it is shared as before, or some of it.
  Status Withdraw(size_t offset, size_t bytes);

  // Nobody needs [offset, offset + bytes) any more, which are whole pages: the
  // system has their memory back, also where others have them mapped. Before
  // CloseDescriptor.
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
