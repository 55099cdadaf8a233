#ifndef MUSTER_DATAPLANE_CPU_SHM_AVAILABLE_MEMORY_H_
#define MUSTER_DATAPLANE_CPU_SHM_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <limits>
#include <string>

namespace muster::dataplane::shm {

// The memory that is still available, and the owner of the limit.
struct MemoryLeft {
  uint64_t bytes = std::numeric_limits<uint64_t>::max();
  // The owner: "on the host", "to control group /job/1 (memory.max)".
  std::string where = "on the host";

  // "there are 4096 left on the host".
  std::string Describe() const;
};

// The memory that this process can still get: the least that is left to the
// system and to each of its control groups (cgroups(7), version 1 and 2:
// containers, batch systems). A group's cache of files counts as left. `root`
// is the system's root directory, for tests.
MemoryLeft FindMemoryLeft(const std::string& root = "");

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_AVAILABLE_MEMORY_H_
