// A rank of a test reports to the test on standard output, one line each.

#ifndef MUSTER_CLIENT_TESTING_SAY_H_
#define MUSTER_CLIENT_TESTING_SAY_H_

#include <functional>
#include <map>
#include <string>

#include "muster/errors.h"

namespace muster::testing {

void Say(const std::string& line);

// Returns "DistNetworkError".
std::string GetClassName(const DistError& error);

// Prints "error CLASS [CULPRITS] TEXT".
void SayError(const DistError& error);

// Prints the error that `run` throws, or "no error".
void SayProblem(const std::function<void()>& run);

// The main function of a test's rank. Runs the scenario that the first argument
// names, and returns its result; 4 after a DistError, which it prints; 64 if
// there is no such scenario.
int RunScenario(const std::map<std::string, int (*)()>& scenarios, int argc,
                char** argv);

// Returns the next line from the test.
std::string AwaitLine();

// The number of entries of a folder under /proc/self: threads or descriptors.
int Count(const char* folder);

}  // namespace muster::testing

#endif  // MUSTER_CLIENT_TESTING_SAY_H_
