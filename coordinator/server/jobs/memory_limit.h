#ifndef MUSTER_COORDINATOR_SERVER_JOBS_MEMORY_LIMIT_H_
#define MUSTER_COORDINATOR_SERVER_JOBS_MEMORY_LIMIT_H_

#include <cstdint>
#include <string>

namespace muster::coordinator {

// How many bytes of memory this process may use: what the machine has, or less
// where its control groups (cgroups(7), of both versions) or those above them
// allow less. The largest number: nobody knows. `root` is where the system's
// files are, for tests.
int64_t MemoryLimit(const std::string& root = "");

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_JOBS_MEMORY_LIMIT_H_
