#include "client/debug.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/distributed.h"
#include "client/internal/deadline.h"
#include "client/internal/debugging.h"
#include "client/internal/endpoint.h"
#include "client/internal/group_state.h"
#include "client/internal/throw.h"
#include "glog/logging.h"

namespace muster {
namespace {

constexpr std::chrono::milliseconds kLookInterval{50};

bool HasDebugger() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, "TracerPid:")) {
      return !absl::EndsWith(line, "\t0");
    }
  }
  return false;
}

void AwaitDebugger(int rank, const internal::Deadline& deadline) {
  LOG(WARNING) << "waiting for a debugger: rank=" << rank
               << " host=" << internal::HostName() << " pid=" << getpid()
               << " command='gdb -iex \"set non-stop on\" -p " << getpid()
               << "'";
  while (!HasDebugger()) {
    if (deadline.Passed(internal::Clock::now())) {
      internal::Throw(
          internal::Origin::kControl,
          absl::DeadlineExceededError(absl::StrCat(
              "breakpoint: no debugger came to rank ", rank, " within ",
              internal::FormatDuration(deadline.timeout), " ",
              deadline.Blame())));
    }
    std::this_thread::sleep_for(kLookInterval);
  }
}

}  // namespace

DebugLevel GetDebugLevel() { return internal::CurrentDebugLevel(); }

void SetDebugLevel(DebugLevel level) { internal::OverrideDebugLevel(level); }

void SetDebugLevelFromEnv() {
  internal::OverrideDebugLevel(internal::DebugLevelFromEnv());
}

std::string FlightRecorderJson() { return internal::Recorder()->ToJson(); }

void DumpFlightRecorder(const std::string& path) {
  internal::ThrowIfFailed(internal::Origin::kControl,
                          internal::Recorder()->WriteTo(path));
}

void Breakpoint(int rank, const BreakpointOptions& options) {
  const auto group = options.group == nullptr ? WorldGroup() : options.group;
  internal::GroupState& state = *group->state();
  if (state.IsForOthers("breakpoint")) return;
  const int group_rank = state.MemberRankOf(rank);
  const auto deadline =
      internal::Deadline::After(options.timeout, "BreakpointOptions::timeout");
  if (group_rank == group->rank()) {
    AwaitDebugger(rank, deadline);
    // Here the debugger stops. `finish` leads to the caller.
    raise(SIGTRAP);
  }
  group->Barrier({.timeout = options.timeout});
}

}  // namespace muster
