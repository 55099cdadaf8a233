#ifndef MUSTER_DATAPLANE_BACKENDS_SHM_AVAILABLE_MEMORY_H_
#define MUSTER_DATAPLANE_BACKENDS_SHM_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <string>

namespace muster::dataplane::shm_internal {

// How many bytes of memory this process can still have: what the system has
// left, and what each of its control groups has (cgroups(7), of version 1 and
// 2: containers, batch systems). What those keep of files that they have read
// counts as left. `root` is where the system's files are, for tests.
uint64_t AvailableMemory(const std::string& root = "");

}  // namespace muster::dataplane::shm_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_SHM_AVAILABLE_MEMORY_H_
