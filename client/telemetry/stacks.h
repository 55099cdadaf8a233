// The stacks of all threads of this process.

#ifndef MUSTER_CLIENT_TELEMETRY_STACKS_H_
#define MUSTER_CLIENT_TELEMETRY_STACKS_H_

#include <string>

namespace muster::worker {

// As text, a block for each thread: its id, name and state, and its frames,
// innermost first, with the names of functions as far as the programs' symbols
// have them. Each thread is interrupted by a signal (SIGRTMAX - 2) for the time
// that it takes to walk its stack; one that does not answer within 200 ms
// (it blocks the signal, or the kernel holds it) is listed without frames. The
// signal's handler stays installed. One call at a time; others wait.
std::string StacksOfAllThreads();

}  // namespace muster::worker

#endif  // MUSTER_CLIENT_TELEMETRY_STACKS_H_
