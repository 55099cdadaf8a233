#ifndef MUSTER_WORKER_BENCH_MEMORY_USE_H_
#define MUSTER_WORKER_BENCH_MEMORY_USE_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace muster::worker::bench {

// The host memory that a process uses, in bytes; -1: the system does not say.
struct MemoryUse {
  // The most that was resident since the process began.
  int64_t resident_max_bytes = -1;
  // What is resident now of memory that is shared: what ranks of a host reach
  // together, and each of them counts.
  int64_t shared_bytes = -1;
};

// That of `status`, a text as /proc/self/status has it.
MemoryUse MemoryUseOf(absl::string_view status);

// This process's.
MemoryUse OwnMemoryUse();

}  // namespace muster::worker::bench

#endif  // MUSTER_WORKER_BENCH_MEMORY_USE_H_
