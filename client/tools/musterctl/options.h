// The command line of musterctl.

#ifndef MUSTER_CLIENT_TOOLS_MUSTERCTL_OPTIONS_H_
#define MUSTER_CLIENT_TOOLS_MUSTERCTL_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/options.h"
#include "muster/base/status.h"

namespace muster::tools {

struct CtlOptions {
  // As in the table of commands: "members", "kv get".
  std::string command;
  std::vector<std::string> arguments;
  bool help = false;

  // host:port, or several with commas between, from the option, the environment
  // or the default.
  std::string coordinator;
  // Empty: not given.
  std::string job;
  bool json = false;
  std::chrono::milliseconds timeout = std::chrono::seconds(10);

  // Options of single commands.
  bool names = false;                             // jobs
  bool prefix = false;                            // kv delete, kv watch
  std::optional<int64_t> after;                   // kv watch
  std::optional<std::chrono::milliseconds> wait;  // kv get
  std::optional<std::chrono::milliseconds> ttl;   // kv set
  std::chrono::milliseconds interval = std::chrono::seconds(2);  // top
  int64_t count = 0;   // top; 0: until a signal
  std::string reason;  // drain
  std::string to;      // move
  std::chrono::milliseconds stuck_after = std::chrono::seconds(5);  // diagnose
  bool verbose = false;                                             // version
  bool stacks = false;                                              // diagnose
  std::string output;    // flight-recorder, trace; empty: standard output
  std::string per_rank;  // trace; a folder; empty: none
};

// Parses the arguments after the program's name. Options may stand anywhere;
// "--" ends them.
// Errors: kInvalidArgument; the text names the option or variable, and its
// value.
StatusOr<CtlOptions> ParseCtlOptions(const std::vector<std::string>& arguments,
                                     const base::Environment& environment);

// Returns the manual of all commands, or of one ("kv", "kv get").
// Errors: kInvalidArgument (no such command).
StatusOr<std::string> CtlHelp(absl::string_view command);

// Returns a script for `shell` (bash or zsh) that completes commands, options
// and names of jobs.
// Errors: kInvalidArgument (another shell).
StatusOr<std::string> CtlCompletion(absl::string_view shell);

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_MUSTERCTL_OPTIONS_H_
