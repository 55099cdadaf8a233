// Times InitProcessGroup: from the moment when all processes are ready to the
// last one's return. The processes are forked, so their start does not count.
//
//   init_bench --ranks=8 --rounds=5 [--json=FILE]

#include <glog/logging.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "client/groups/embedded_coordinator.h"
#include "muster/muster.hpp"
#include "tests/bench/figure.h"

ABSL_FLAG(int, ranks, 8, "processes, 1 to 256");
ABSL_FLAG(int, rounds, 5, "how many times each way is timed");
// Not one of the kernel's ephemeral ports, which a rank's socket may have.
ABSL_FLAG(int, port, 21100, "first of the ports on loopback that it takes");
ABSL_FLAG(std::string, json, "", "file for the figures");

namespace muster::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRanksMax = 256;

double Now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// A pipe. A process keeps one end or both.
struct Pipe {
  Pipe() {
    if (pipe(ends) != 0) std::abort();
  }
  ~Pipe() {
    CloseRead();
    CloseWrite();
  }
  void CloseRead() { Close(ends[0]); }
  void CloseWrite() { Close(ends[1]); }
  static void Close(int& end) {
    if (end >= 0) close(std::exchange(end, -1));
  }

  template <typename T>
  void Put(const T& value) const {
    if (write(ends[1], &value, sizeof(value)) != sizeof(value)) std::abort();
  }
  // Returns false at the pipe's end.
  template <typename T>
  bool Take(T& value) const {
    return read(ends[0], &value, sizeof(value)) == sizeof(value);
  }

  int ends[2];
};

// Pipes between the parent and its children.
struct Signals {
  // Each child writes when it is ready, and the time of its return.
  Pipe ready;
  Pipe returned;
  // The parent closes them to signal all children.
  Pipe go;
  Pipe end;
};

[[noreturn]] void RunRank(Signals& signals, int rank, int ranks, int port,
                          bool coordinator_is_up) {
  signals.go.CloseWrite();
  signals.end.CloseWrite();
  if (coordinator_is_up) setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  char none = 0;
  signals.ready.Put(none);
  (void)signals.go.Take(none);
  try {
    InitProcessGroup(
        {.init_method = absl::StrCat("tcp://127.0.0.1:", port, "?rank=", rank,
                                     "&world_size=", ranks),
         .timeout = std::chrono::seconds(120)});
    signals.returned.Put(Now());
    (void)signals.end.Take(none);
    DestroyProcessGroup();
  } catch (const DistError& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    _exit(1);
  }
  _exit(0);
}

// A coordinator in a process of its own, until `end` is closed.
pid_t StartCoordinator(Pipe& end, int& port) {
  Pipe listening;
  const pid_t child = fork();
  if (child != 0) {
    listening.CloseWrite();
    if (!listening.Take(port)) std::abort();
    return child;
  }
  end.CloseWrite();
  auto coordinator = internal::EmbeddedCoordinator::Start({});
  if (!coordinator.ok()) _exit(1);
  listening.Put((*coordinator)->port());
  char none = 0;
  (void)end.Take(none);
  _exit(0);
}

// Returns the milliseconds until the last rank returns; negative: failed.
double RunRound(int ranks, int port, bool coordinator_is_up) {
  Pipe coordinator_end;
  pid_t coordinator = -1;
  if (coordinator_is_up) coordinator = StartCoordinator(coordinator_end, port);
  Signals signals;
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      coordinator_end.CloseWrite();
      RunRank(signals, rank, ranks, port, coordinator_is_up);
    }
    children.push_back(child);
  }
  signals.ready.CloseWrite();
  signals.returned.CloseWrite();
  char none = 0;
  for (int rank = 0; rank < ranks; ++rank) (void)signals.ready.Take(none);
  const double start = Now();
  signals.go.CloseWrite();
  double last = start;
  int returned = 0;
  double time = 0;
  while (returned < ranks && signals.returned.Take(time)) {
    last = std::max(last, time);
    ++returned;
  }
  signals.end.CloseWrite();
  bool good = returned == ranks;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    good &= status == 0;
  }
  coordinator_end.CloseWrite();
  if (coordinator > 0) waitpid(coordinator, nullptr, 0);
  return good ? (last - start) * 1e3 : -1;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The target in milliseconds for 8 and 64 processes on two cores.
double TargetFor(int ranks) { return ranks <= 8 ? 60 : ranks <= 64 ? 700 : 0; }

int Run() {
  const int ranks = std::clamp(absl::GetFlag(FLAGS_ranks), 1, kRanksMax);
  const int rounds = std::max(1, absl::GetFlag(FLAGS_rounds));
  int port = absl::GetFlag(FLAGS_port);
  std::vector<double> times[2];
  for (int round = 0; round < rounds; ++round) {
    for (const bool is_up : {true, false}) {
      const double time = RunRound(ranks, port++, is_up);
      if (time < 0) return 1;
      times[is_up ? 1 : 0].push_back(time);
    }
  }
  std::vector<Figure> figures;
  for (const bool is_up : {true, false}) {
    figures.push_back(
        {.name = absl::StrCat("InitProcessGroup of ", ranks, ", ",
                              is_up ? "coordinator already up"
                                    : "rank 0 starts the coordinator"),
         .value = Median(times[is_up ? 1 : 0]),
         .unit = "ms",
         .target = TargetFor(ranks)});
  }
  PrintTargets(figures);
  const std::string file = absl::GetFlag(FLAGS_json);
  if (!file.empty()) std::ofstream(file) << ToJson(figures).dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Times InitProcessGroup.");
  absl::ParseCommandLine(argc, argv);
  FLAGS_logtostderr = true;
  FLAGS_minloglevel = google::GLOG_ERROR;
  google::InitGoogleLogging(argv[0]);
  return muster::bench::Run();
}
