#ifndef MUSTER_COORDINATOR_FLAGS_H_
#define MUSTER_COORDINATOR_FLAGS_H_

#include <string>

#include "absl/time/time.h"
#include "coordinator/server/server.h"
#include "muster/base/status.h"

namespace muster::coordinator {

// The settings of the command line and the environment.
struct CommandLine {
  ServerOptions server;
  absl::Duration drain_timeout = absl::Seconds(10);
  // The flags that are not at their defaults, for the log.
  std::string settings;
};

// Reads the command line over the environment (MUSTER_COORDINATOR_<FLAG>) over
// the defaults. Like absl::ParseCommandLine, does not return for --help,
// --version and malformed flags.
// Errors: INVALID_ARGUMENT (an environment variable that does not parse, a
//   positional argument; the text names it).
StatusOr<CommandLine> ReadCommandLine(int argc, char** argv);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_FLAGS_H_
