#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_PROCESS_MEMORY_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_PROCESS_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace muster::dataplane::cpu {

// The address of a process's mark, as it tells its peers.
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

  // What peers read from now on they do not believe. Before memory that they
  // may be reading is given back to its owner.
  void Clear() { value_.store(0); }

 private:
  std::atomic<uint64_t> value_;
};

// PeerMemory reads the memory of another process of this host
// (process_vm_readv(2)). The thread that wants the bytes makes one copy, where
// a connection makes two and needs the other process to run. The system allows
// it among processes of one user, unless configured otherwise
// (kernel.yama.ptrace_scope, or a container's seccomp filter).
class PeerMemory {
 public:
  // Of the process whose mark, at `place`, has `value`.
  PeerMemory(const MarkPlace& place, uint64_t value)
      : place_(place), value_(value) {}

  // Copies `bytes` from the peer's address `from`. False if that was not
  // allowed, or is not there, or the mark was not there after it.
  bool Read(uint64_t from, void* to, size_t bytes) const;

  // A Read of this process, rank `reader`, from rank `peer` has just failed:
  // which of the two has memory there that cannot be used, as BadMemory. OK:
  // the peer has gone.
  Status WhyUnread(int reader, int peer, uint64_t from, void* to,
                   size_t bytes) const;

  // Whether it can be read at all.
  bool IsReadable() const { return Read(0, nullptr, 0); }

 private:
  MarkPlace place_;
  uint64_t value_;
};

// Whether peers could read `bytes` of this process at `data`: not what belongs
// to a device. All of it is taken to be of one kind.
bool CanBeRead(const void* data, size_t bytes);

// The error of a collective that rank `rank`, the culprit, has given memory
// that cannot be used: kInvalidArgument.
Status BadMemory(int rank, absl::string_view why);

// The same of this process, rank `rank`: the system has refused to use `bytes`
// at `data`. If they can be read it was to write them.
Status BadOwnMemory(int rank, const void* data, size_t bytes);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_PROCESS_MEMORY_H_
