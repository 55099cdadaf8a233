#ifndef MUSTER_DATAPLANE_CPU_SHM_AVAILABLE_MEMORY_H_
#define MUSTER_DATAPLANE_CPU_SHM_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <limits>
#include <string>

namespace muster::dataplane::shm {

// The memory that is still available, and the owner of the limit.
struct MemoryLeft {
  uint64_t bytes = std::numeric_limits<uint64_t>::max();
  // Whose they are: "on the host", "to control group /job/1 (memory.max)".
  std::string where = "on the host";

  // "there are 4096 left on the host".
  std::string Describe() const;
};

// How much memory this process can still have: what the system has left, and
// what each of its control groups has (cgroups(7), of version 1 and 2:
// containers, batch systems); the least of them. What those keep of files that
// they have read counts as left. `root` is where the system's files are, for
// tests.
MemoryLeft FindMemoryLeft(const std::string& root = "");

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_AVAILABLE_MEMORY_H_
