// One rank of the tests of debug levels, the flight recorder and breakpoints.
// Prints what it sees to standard output, one line each.
//
//   debug_rank SCENARIO

#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/testing/say.h"
#include "muster/muster.hpp"

namespace muster::testing {
namespace {

using std::chrono::seconds;

const InitProcessGroupOptions kOptions = {.timeout = seconds(60)};

std::string GetName(DebugLevel level) {
  return level == DebugLevel::kOff    ? "OFF"
         : level == DebugLevel::kInfo ? "INFO"
                                      : "DETAIL";
}

// Three ranks, at level DETAIL: one makes a call that is refused.
int Refusal() {
  InitProcessGroup(kOptions);
  std::vector<float> whole(6, 1);
  std::vector<float> part(GetRank() == 1 ? 3 : 2);
  SayProblem([&] { ReduceScatterTensor(part, whole); });
  AwaitLine();
  SayProblem([] { DestroyProcessGroup(); });
  return 0;
}

// One process.
int Levels() {
  SayProblem([] { Say(GetName(GetDebugLevel())); });
  SayProblem([] { InitProcessGroup(kOptions); });
  setenv("MUSTER_DEBUG", "info", 1);
  SayProblem([] { Say(GetName(GetDebugLevel())); });
  setenv("MUSTER_DEBUG", "Detail", 1);
  Say(GetName(GetDebugLevel()));
  SetDebugLevelFromEnv();
  Say(GetName(GetDebugLevel()));
  SetDebugLevel(DebugLevel::kOff);
  Say(GetName(GetDebugLevel()));
  setenv("TORCH_FR_BUFFER_SIZE", "many", 1);
  SayProblem([] { InitProcessGroup(kOptions); });
  return 0;
}

// Three ranks, at level DETAIL: equal calls pass, and the first difference is
// shown on every rank.
int Mismatch() {
  InitProcessGroup(kOptions);
  const auto upper = NewGroup({.ranks = {{1, 2}}});
  std::vector<float> values(6, 1);
  for (int i = 0; i < 5; ++i) {
    AllReduce(values);
    Barrier();
  }
  AllReduce(values, {.group = upper});
  std::vector<std::string> names;
  AllGatherObject(names, std::string(GetRank() + 1, 'x'));
  MonitoredBarrier({.timeout = seconds(20)});
  Say("good " + std::to_string(names.size()) + " " +
      std::to_string(static_cast<int>(values[0])));
  SayProblem([&] {
    Tensor tensor(values.data(), {GetRank() == 1 ? 4 : 6});
    AllReduce(tensor, {.op = ReduceOp::kMax});
  });
  SayProblem([] { DestroyProcessGroup(); });
  return 0;
}

// Three ranks, at level DETAIL: rank 2 comes when the others have given up.
int Missing() {
  InitProcessGroup(kOptions);
  Barrier();
  if (GetRank() == 2) AwaitLine();
  SayProblem([] { Barrier({.timeout = seconds(GetRank() == 2 ? 60 : 1)}); });
  if (GetRank() != 2) AwaitLine();
  SayProblem([] { DestroyProcessGroup(); });
  return 0;
}

// Three ranks, at level DETAIL: 0 sends to 1, which waits for 2, which does
// neither until the others have given up.
int Peers() {
  InitProcessGroup(kOptions);
  // A send of less may end before it is received.
  std::vector<float> values(1 << 20, 1);
  if (GetRank() == 0) {
    SayProblem([&] { Send(values, 1, {.timeout = seconds(5)}); });
  } else if (GetRank() == 1) {
    SayProblem([&] { Recv(values, 2); });
  }
  AwaitLine();
  if (GetRank() == 2) SayProblem([&] { Recv(values, 0); });
  SayProblem([] { DestroyProcessGroup(); });
  return 0;
}

// Two ranks; the second fails.
int Flight() {
  InitProcessGroup(kOptions);
  std::vector<float> values(6, 1);
  AllReduce(values);
  DumpFlightRecorder(std::getenv("REQUESTED"));
  Barrier();
  // Not while rank 0 is in the barrier, which would fail as well.
  if (GetRank() == 0) GetDefaultStore()->Set("past the barrier", "");
  if (GetRank() == 1) {
    GetDefaultStore()->Wait({"past the barrier"});
    WorldGroup()->Abort("on purpose");
  }
  SayProblem([&] { Recv(values, 1 - GetRank()); });
  SayProblem([] { DestroyProcessGroup(); });
  // The recorder keeps its content after the end of the group.
  Say(FlightRecorderJson().find("shm:barrier") != std::string::npos ? "recorded"
                                                                    : "lost");
  SayProblem([] { DumpFlightRecorder("/nowhere/at/all"); });
  return 0;
}

// Two ranks.
int Break() {
  InitProcessGroup(kOptions);
  SayProblem([] { Breakpoint(2); });
  // No debugger comes, and the group goes on.
  SayProblem([] { Breakpoint(0, {.timeout = std::chrono::milliseconds(1)}); });
  Barrier();
  Say("now");
  AwaitLine();
  Breakpoint(1);
  Say("after");
  DestroyProcessGroup();
  return 0;
}

int Main(int argc, char** argv) {
  const std::map<std::string, int (*)()> scenarios = {
      {"levels", &Levels},   {"mismatch", &Mismatch}, {"refusal", &Refusal},
      {"missing", &Missing}, {"peers", &Peers},       {"flight", &Flight},
      {"break", &Break},
  };
  return RunScenario(scenarios, argc, argv);
}

}  // namespace
}  // namespace muster::testing

int main(int argc, char** argv) { return muster::testing::Main(argc, argv); }
