#ifndef MUSTER_COORDINATOR_SERVER_JOBS_MEMORY_LIMIT_H_
#define MUSTER_COORDINATOR_SERVER_JOBS_MEMORY_LIMIT_H_

#include <cstdint>
#include <string>

namespace muster::coordinator {

// The bytes of memory that this process may use: the machine's memory, or less
// if its control groups (cgroups(7), both versions) or their ancestors allow
// less. The largest number if unknown. `root` replaces the root of the file
// system in tests.
int64_t MemoryLimit(const std::string& root = "");

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_JOBS_MEMORY_LIMIT_H_
