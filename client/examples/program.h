// The main function of an example that has flags.

#ifndef MUSTER_CLIENT_EXAMPLES_PROGRAM_H_
#define MUSTER_CLIENT_EXAMPLES_PROGRAM_H_

#include <functional>
#include <string>

namespace muster::examples {

struct Program {
  // Its flags are those that NAME.cc defines.
  std::string name;
  // The first line of --help.
  std::string description;
  // Returns the exit status.
  std::function<int()> run;
};

// Reads the flags and runs the program under muster::Record. Prints --help, or
// what is wrong with the arguments. Returns the exit status of the process.
int RunProgram(int argc, char** argv, const Program& program);

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_PROGRAM_H_
