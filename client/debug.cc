#include "muster/debug.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/control/deadline.h"
#include "client/control/endpoint.h"
#include "client/control/throw.h"
#include "client/groups/debugging.h"
#include "client/groups/group_state.h"
#include "glog/logging.h"
#include "muster/base/status.h"
#include "muster/distributed.h"

namespace muster {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLookInterval{50};

// How much longer the other ranks wait than the rank that waits for a debugger,
// so that it can tell them that none came.
constexpr milliseconds kGrace = std::chrono::seconds(10);

bool HasDebugger() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, "TracerPid:")) {
      return !absl::EndsWith(line, "\t0");
    }
  }
  return false;
}

// Errors: kDeadlineExceeded.
Status AwaitDebugger(int rank, const internal::Deadline& deadline) {
  LOG(WARNING) << "waiting for a debugger: rank=" << rank
               << " host=" << base::LogValue(internal::HostName())
               << " pid=" << getpid()
               << " command='gdb -iex \"set non-stop on\" -p " << getpid()
               << "'";
  while (!HasDebugger()) {
    if (deadline.Passed(Clock::now())) {
      return DeadlineExceededError(absl::StrCat(
          "breakpoint: no debugger came to rank ", rank, " within ",
          internal::FormatDuration(deadline.timeout), " ", deadline.Blame()));
    }
    std::this_thread::sleep_for(kLookInterval);
  }
  return OkStatus();
}

}  // namespace

DebugLevel GetDebugLevel() { return internal::CurrentDebugLevel(); }

void SetDebugLevel(DebugLevel level) { internal::OverrideDebugLevel(level); }

void SetDebugLevelFromEnv() {
  internal::OverrideDebugLevel(internal::DebugLevelFromEnv());
}

std::string FlightRecorderJson() { return internal::Recorder()->ToJson(); }

void DumpFlightRecorder(const std::string& path) {
  internal::ThrowIfFailed(internal::ErrorSource::kControl,
                          internal::Recorder()->WriteTo(path));
}

void Breakpoint(int rank, const BreakpointOptions& options) {
  const auto group = options.group == nullptr ? WorldGroup() : options.group;
  internal::GroupState& state = *group->state();
  if (state.IsForOthers("breakpoint")) return;
  const int group_rank = state.ToMemberRank(rank);
  const auto deadline =
      internal::Deadline::After(options.timeout, "BreakpointOptions::timeout");
  Status came;
  if (group_rank == group->rank()) {
    came = AwaitDebugger(rank, deadline);
    // The debugger stops here. `finish` leads to the caller.
    if (came.ok()) raise(SIGTRAP);
  }
  // A monitored barrier: a failure does not end the group. The others wait
  // slightly longer than the rank that waits for the debugger.
  const milliseconds timeout =
      came.ok()
          ? std::min(options.timeout, milliseconds::max() - kGrace) + kGrace
          : kGrace;
  try {
    state.MonitoredBarrier(timeout, /*wait_all_ranks=*/false);
  } catch (const DistError&) {
    if (came.ok()) throw;
  }
  internal::ThrowIfFailed(internal::ErrorSource::kControl, came);
}

}  // namespace muster
