// Captures the stacks of all threads of this process.

#ifndef MUSTER_CLIENT_TELEMETRY_STACKS_H_
#define MUSTER_CLIENT_TELEMETRY_STACKS_H_

#include <string>

namespace muster::worker {

// Returns the stacks as text: a block per thread with its id, name, state and
// frames, innermost first, with function names as far as the symbols of the
// program and its libraries provide them. A signal (SIGRTMAX - 2) interrupts
// each thread while its stack is walked. A thread that does not answer within
// 200 ms, because it blocks the signal or is stuck in the kernel, is listed
// without frames. The signal's handler stays installed. One call runs at a
// time; others wait.
std::string StacksOfAllThreads();

}  // namespace muster::worker

#endif  // MUSTER_CLIENT_TELEMETRY_STACKS_H_
