#ifndef MUSTER_WORKER_LAUNCHER_PROCESS_STATE_H_
#define MUSTER_WORKER_LAUNCHER_PROCESS_STATE_H_

#include <sys/types.h>

#include <string>

namespace muster::worker {

// Describes for people what a process does now: `"train" (pid 7) sleeps in
// futex_wait_queue, after 2.1s on a processor`. If the process only waits for
// its one child, as a shell does, describes the child. Empty if the system does
// not tell.
std::string DescribeProcessState(pid_t pid);

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_PROCESS_STATE_H_
