// How a rank of a test tells the test what it sees: on standard output, one
// line each.

#ifndef MUSTER_CLIENT_TESTING_SAY_H_
#define MUSTER_CLIENT_TESTING_SAY_H_

#include <functional>
#include <map>
#include <string>

#include "client/errors.h"

namespace muster::testing {

void Say(const std::string& line);

// "DistNetworkError".
std::string ClassOf(const DistError& error);

// "error CLASS [CULPRITS] TEXT".
void SayError(const DistError& error);

// What `run` throws, so; "no error" when it throws nothing.
void SayProblem(const std::function<void()>& run);

// What a rank's main does: runs the scenario that its first argument names, and
// returns what that returns; 4 after a DistError, which it says, 64 when there
// is no such scenario.
int RunScenario(const std::map<std::string, int (*)()>& scenarios, int argc,
                char** argv);

// The next line that the test writes.
std::string AwaitLine();

// How many entries a folder under /proc/self has: threads or descriptors.
int Count(const char* folder);

}  // namespace muster::testing

#endif  // MUSTER_CLIENT_TESTING_SAY_H_
