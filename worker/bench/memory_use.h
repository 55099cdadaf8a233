#ifndef MUSTER_WORKER_BENCH_MEMORY_USE_H_
#define MUSTER_WORKER_BENCH_MEMORY_USE_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace muster::worker::bench {

// The host memory that a process uses, in bytes; -1: the system does not say.
struct MemoryUse {
  // The maximum resident memory since the start of the process.
  int64_t resident_max_bytes = -1;
  // The resident shared memory. Ranks of a host that share memory each count
  // it.
  int64_t shared_bytes = -1;
};

// Parses `status`, a text in the format of /proc/self/status.
MemoryUse ParseMemoryUse(absl::string_view status);

// Returns the memory use of this process.
MemoryUse OwnMemoryUse();

}  // namespace muster::worker::bench

#endif  // MUSTER_WORKER_BENCH_MEMORY_USE_H_
