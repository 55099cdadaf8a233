#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_PROCESS_MEMORY_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_PROCESS_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {

// The address of a process's mark. Peers receive it.
struct MarkPlace {
  int32_t process = 0;
  uint64_t address = 0;
};

// Mark is a number in this process's memory. A peer that reads this memory
// checks the mark to see that it reads the right process and that reading is
// still allowed.
class Mark {
 public:
  explicit Mark(uint64_t value) : value_(value) {}

  MarkPlace place() const;

  // Invalidates every read that a peer starts after this call. Call it before
  // memory that peers may be reading goes back to its owner.
  void Clear() { value_.store(0); }

 private:
  std::atomic<uint64_t> value_;
};

// PeerMemory reads the memory of another process of this host
// (process_vm_readv(2)). The reading thread makes one copy; a connection makes
// two and needs the other process to run. The system allows it among processes
// of one user, unless configured otherwise (kernel.yama.ptrace_scope, or a
// container's seccomp filter).
class PeerMemory {
 public:
  // Reads the process whose mark, at `place`, has `value`.
  PeerMemory(const MarkPlace& place, uint64_t value)
      : place_(place), value_(value) {}

  // Copies `bytes` from the peer's address `from`. False if the system refused,
  // the memory does not exist, or the mark was gone after the copy.
  bool Read(uint64_t from, void* to, size_t bytes) const;

  // Call it after a Read by this process, rank `reader`, from rank `peer`
  // failed. Returns BadMemory of the rank whose memory cannot be used, or OK if
  // the peer has gone.
  Status WhyUnread(int reader, int peer, uint64_t from, void* to,
                   size_t bytes) const;

  // Whether this process may read the peer's memory.
  bool IsReadable() const { return Read(0, nullptr, 0); }

 private:
  MarkPlace place_;
  uint64_t value_;
};

// Whether peers could read `bytes` of this process at `data`. False for device
// memory. Checks the first and the last byte.
bool CanBeRead(const void* data, size_t bytes);

// Copies `bytes` within this process. False if they cannot be written to `to`.
// (Where the system does not allow process_vm_readv(2), invalid memory ends the
// process instead.)
bool CopyIfValid(void* to, const void* from, size_t bytes);

// kInvalidArgument: rank `rank`, the culprit, has given a collective memory
// that cannot be used.
Status BadMemory(int rank, absl::string_view why);

// BadMemory of this process, rank `rank`, after the system refused to use
// `bytes` at `data`. If they can be read, the error says that they cannot be
// written.
Status BadOwnMemory(int rank, const void* data, size_t bytes);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_PROCESS_MEMORY_H_
