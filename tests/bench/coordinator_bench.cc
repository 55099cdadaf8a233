// Measures a coordinator and a bare gRPC echo of the same payload, in rounds of
// all loads in turn, so that disturbances of the machine affect all alike.

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "muster/session.h"
#include "tests/bench/callers.h"
#include "tests/bench/child.h"
#include "tests/bench/echo_server.h"
#include "tests/bench/fairness.h"
#include "tests/bench/figure.h"
#include "tests/bench/folder.h"
#include "tests/bench/load.h"
#include "tests/bench/peers.h"
#include "tests/bench/processes.h"
#include "tests/bench/scale.h"

ABSL_FLAG(std::string, coordinator, "bin/muster-coordinator",
          "path of the muster-coordinator to measure");
ABSL_FLAG(std::vector<std::string>, callers,
          (std::vector<std::string>{"1", "8", "64"}),
          "numbers of concurrent callers, comma-separated");
ABSL_FLAG(std::string, only, "",
          "run the loads whose name contains this, and what they stand beside");
ABSL_FLAG(int, rounds, 5, "rounds of each load; medians are reported");
ABSL_FLAG(int, duration_ms, 700, "length of one round, in milliseconds");
ABSL_FLAG(int, warm_up_ms, 300,
          "uncounted start of each round, in milliseconds");
ABSL_FLAG(int, value_bytes, 100, "size of a value and of an echo, in bytes");
ABSL_FLAG(std::string, json, "", "file to write the figures to");
ABSL_FLAG(std::string, storage, "/tmp",
          "folder on the disk that durable stores are measured on");
ABSL_FLAG(int, waiters, 512, "waiters that are released together");
ABSL_FLAG(int, sessions, 1000, "idle sessions that are weighed");
ABSL_FLAG(int, members, 10000, "members of the large job");
ABSL_FLAG(int, fairness_ms, 5000,
          "length of each flood in a round, in milliseconds");
ABSL_FLAG(int, listed_keys, 100000, "keys that one of the floods lists");
ABSL_FLAG(std::string, flood, "",
          "flood a coordinator (how the benchmark starts it)");
ABSL_FLAG(std::string, drive, "",
          "be one caller of many processes (how the benchmark starts them)");
ABSL_FLAG(bool, serve_echo, false,
          "serve the echo and print its port (how the benchmark starts it)");

namespace muster::bench {
namespace {

using std::chrono::milliseconds;

// Targets: the throughput of 64 threads that share a session, and ratios to the
// bare echo's stream.
constexpr double kSharedOperationsPerSecond = 300'000;
constexpr double kLoneP50Ratio = 1.15;
constexpr double kProcessesThroughputRatio = 0.9;
// The ratio to the throughput of etcd on the same disk.
constexpr double kDurableThroughputRatio = 3;

// One load to measure, and its reference.
struct Row {
  std::string name;
  std::string reference;  // name of another row; empty: none
  std::function<Figures()> run;
  std::vector<Figures> rounds = {};
};

struct Bed {
  std::string echo;
  std::string coordinator;
  int echo_pid = 0;
  int coordinator_pid = 0;
  std::string payload;
  milliseconds warm_up{0};
  milliseconds duration{0};
};

// Every caller has a connection of its own, except in `one session`, where
// callers are threads of one process, and `processes`, where each is a process.
void PlanCallers(const Bed& bed, int callers, std::vector<Row>& rows) {
  const std::string suffix = absl::StrCat("/", callers);
  const auto threads = [&](const std::string& kind, std::string reference) {
    const bool echo = absl::StartsWith(kind, "echo");
    const Load load = {.name = kind + suffix,
                       .callers = callers,
                       .connect =
                           [=](int caller) {
                             return MakeOperation(
                                 kind, echo ? bed.echo : bed.coordinator,
                                 bed.payload, caller);
                           },
                       .server_pid = echo ? bed.echo_pid : bed.coordinator_pid};
    rows.push_back({load.name, std::move(reference),
                    [=] { return RunLoad(load, bed.warm_up, bed.duration); }});
  };
  const auto processes = [&](const std::string& kind, std::string reference) {
    const bool echo = absl::StartsWith(kind, "echo");
    const ProcessLoad load = {kind, echo ? bed.echo : bed.coordinator,
                              bed.payload, callers};
    rows.push_back(
        {absl::StrCat(kind, ", processes", suffix), std::move(reference), [=] {
           return RunProcesses("/proc/self/exe", load, bed.warm_up,
                               bed.duration);
         }});
  };
  threads("echo unary", "");
  threads("set unary", "echo unary" + suffix);
  threads("get unary", "echo unary" + suffix);
  threads("echo stream", "");
  for (const char* verb : {"set", "get", "add"}) {
    threads(absl::StrCat(verb, " stream"), "echo stream" + suffix);
    if (callers == 1) continue;
    const Load load = {
        .name = absl::StrCat(verb, " stream, one session", suffix),
        .callers = callers,
        .connect =
            [=,
             session = std::make_shared<std::weak_ptr<Session>>()](int caller) {
              std::shared_ptr<Session> shared = session->lock();
              if (shared == nullptr) {
                shared = Connect(bed.coordinator);
                *session = shared;
              }
              return StoreOperation(shared, verb, bed.payload, caller);
            },
        .server_pid = bed.coordinator_pid};
    rows.push_back({load.name, "echo stream" + suffix,
                    [=] { return RunLoad(load, bed.warm_up, bed.duration); }});
  }
  if (callers == 1) return;
  processes("echo stream", "");
  processes("set stream", absl::StrCat("echo stream, processes", suffix));
  processes("get stream", absl::StrCat("echo stream, processes", suffix));
}

// A coordinator with a storage and, if it is installed, etcd; both sync to the
// disk before they answer. And redis, which does not.
class StorageBed {
 public:
  explicit StorageBed(const Bed& bed)
      : bed_(bed),
        folder_(absl::GetFlag(FLAGS_storage)),
        coordinator_({absl::GetFlag(FLAGS_coordinator), "--listen=127.0.0.1:0",
                      "--http_listen=", "--storage=rocksdb", "--sync=always",
                      "--storage_path=" + folder_.path() + "/muster"}),
        address_(ReadGrpcAddress(coordinator_)),
        etcd_(StartEtcd(folder_.path() + "/etcd")),
        redis_(StartRedis()) {
    if (etcd_ == nullptr) std::cerr << "etcd is not installed: left out\n";
    if (redis_ == nullptr) std::cerr << "redis is not installed: left out\n";
  }

  void Plan(int callers, std::vector<Row>& rows) {
    const std::string suffix = absl::StrCat("/", callers);
    std::string beside;
    if (etcd_ != nullptr) beside = AddPeer("etcd put", suffix, *etcd_, rows);
    Add("durable set", "", callers, beside, rows);
    if (callers > 1) Add("durable set", ", one session", callers, beside, rows);
    if (redis_ != nullptr) {
      AddPeer("redis set", suffix, *redis_, rows);
      rows.back().reference = "echo stream" + suffix;
    }
  }

 private:
  std::string AddPeer(const std::string& name, const std::string& suffix,
                      Peer& peer, std::vector<Row>& rows) {
    int callers = 0;
    if (!absl::SimpleAtoi(suffix.substr(1), &callers)) abort();
    const Load load = {
        .name = name + suffix,
        .callers = callers,
        .connect = [this, &peer](
                       int caller) { return peer.Set(bed_.payload, caller); },
        .server_pid = peer.pid()};
    rows.push_back({load.name, "", [this, load] {
                      return RunLoad(load, bed_.warm_up, bed_.duration);
                    }});
    return load.name;
  }

  void Add(const std::string& name, const std::string& how, int callers,
           const std::string& beside, std::vector<Row>& rows) {
    const bool shared = !how.empty();
    const Load load = {
        .name = absl::StrCat(name, how, "/", callers),
        .callers = callers,
        .connect =
            [this, shared,
             session = std::make_shared<std::weak_ptr<Session>>()](int caller) {
              std::shared_ptr<Session> own = session->lock();
              if (own == nullptr || !shared) {
                own = Connect(address_);
                *session = own;
              }
              return StoreOperation(own, "set", bed_.payload, caller);
            },
        .server_pid = coordinator_.pid()};
    rows.push_back({load.name, beside, [this, load] {
                      return RunLoad(load, bed_.warm_up, bed_.duration);
                    }});
  }

  const Bed bed_;
  const Folder folder_;
  Child coordinator_;
  const std::string address_;
  const std::unique_ptr<Peer> etcd_;
  const std::unique_ptr<Peer> redis_;
};

// Keeps only the rows whose name contains `text`, and their references.
void Narrow(const std::string& text, std::vector<Row>& rows) {
  std::set<std::string> kept;
  for (const Row& row : rows) {
    if (!absl::StrContains(row.name, text)) continue;
    kept.insert(row.name);
    kept.insert(row.reference);
  }
  std::erase_if(rows, [&](const Row& row) { return !kept.contains(row.name); });
}

void AddFigures(const Row& row, const Figures& mine, const Figures& other,
                std::vector<Figure>& figures) {
  const bool lone = absl::EndsWith(row.name, "stream/1");
  const bool crowd = absl::EndsWith(row.name, "/64");
  const bool shared = absl::StrContains(row.name, "one session");
  const bool processes = absl::StrContains(row.name, "processes");
  const bool durable = absl::StartsWith(row.name, "durable");
  figures.push_back({.name = row.name + " throughput",
                     .value = mine.operations_per_second,
                     .unit = "op/s",
                     .reference = row.reference,
                     .reference_value = other.operations_per_second,
                     .target = processes          ? kProcessesThroughputRatio
                               : durable && crowd ? kDurableThroughputRatio
                                                  : 0,
                     .less_is_better = false});
  figures.push_back({.name = row.name + " p50",
                     .value = mine.p50_us,
                     .unit = "us",
                     .reference = row.reference,
                     .reference_value = other.p50_us,
                     .target = lone ? kLoneP50Ratio : 0});
  figures.push_back({.name = row.name + " p99",
                     .value = mine.p99_us,
                     .unit = "us",
                     .reference = row.reference,
                     .reference_value = other.p99_us});
  if (shared && crowd && !durable) {
    figures.push_back({.name = row.name,
                       .value = mine.operations_per_second,
                       .unit = "op/s",
                       .target = kSharedOperationsPerSecond,
                       .less_is_better = false});
  }
}

std::vector<Figure> Report(const std::vector<Row>& rows) {
  std::vector<Figure> figures;
  if (rows.empty()) return figures;
  std::cout << absl::StrFormat("%-28s %9s %9s %9s %15s   %s\n", "load", "op/s",
                               "p50 us", "p99 us", "cpu us (server)",
                               "beside it: op/s, p50");
  std::map<std::string, Figures> medians;
  for (const Row& row : rows) medians[row.name] = Median(row.rounds);
  for (const Row& row : rows) {
    const Figures& mine = medians[row.name];
    std::cout << absl::StrFormat(
        "%-28s %9.0f %9.1f %9.1f %7.1f (%5.1f)", row.name,
        mine.operations_per_second, mine.p50_us, mine.p99_us,
        mine.client_cpu_us + mine.server_cpu_us, mine.server_cpu_us);
    if (!row.reference.empty()) {
      const Figures& other = medians[row.reference];
      std::cout << absl::StrFormat(
          "   x %.2f, x %.2f",
          mine.operations_per_second / other.operations_per_second,
          mine.p50_us / other.p50_us);
      AddFigures(row, mine, other, figures);
    }
    std::cout << "\n";
  }
  return figures;
}

// Every measurement of scale has a coordinator of its own; its members send no
// heartbeats.
void MeasureScale(const Bed& bed, const std::string& only,
                  std::vector<Figure>& figures) {
  using Measure = std::vector<Figure> (*)(const ScaleOptions&);
  const std::pair<const char*, Measure> kMeasures[] = {
      {"release", &MeasureRelease},
      {"idle session", &MeasureIdleSessions},
      {"members", &MeasureMembers},
      {"end of members", &MeasureEnd}};
  for (const auto& [name, measure] : kMeasures) {
    if (!absl::StrContains(name, only)) continue;
    std::cerr << "measuring " << name << "\n";
    Child coordinator({absl::GetFlag(FLAGS_coordinator), "--listen=127.0.0.1:0",
                       "--http_listen=127.0.0.1:0", "--lease=10m",
                       "--drain_timeout=0s"});
    for (const Figure& figure : measure({.echo = bed.echo,
                                .coordinator = ReadGrpcAddress(coordinator),
                                .echo_pid = bed.echo_pid,
                                .coordinator_pid = coordinator.pid(),
                                .rounds = absl::GetFlag(FLAGS_rounds),
                                .waiters = absl::GetFlag(FLAGS_waiters),
                                .sessions = absl::GetFlag(FLAGS_sessions),
                                .members = absl::GetFlag(FLAGS_members)})) {
      figures.push_back(figure);
    }
  }
}

// Each flood has one coordinator that is flooded and one that is not.
void MeasureFloods(const std::string& only, std::vector<Figure>& figures) {
  for (const char* const flood : {"list", "watch", "multiset", "set"}) {
    if (!absl::StrContains(absl::StrCat("fairness ", flood), only)) continue;
    std::cerr << "measuring fairness " << flood << "\n";
    const std::vector<std::string> command = {
        absl::GetFlag(FLAGS_coordinator), "--listen=127.0.0.1:0",
        "--http_listen=", "--drain_timeout=0s"};
    Child flooded(command);
    Child undisturbed(command);
    for (const Figure& figure :
         MeasureFairness({.self = "/proc/self/exe",
         .flood = flood,
         .flooded = ReadGrpcAddress(flooded),
         .undisturbed = ReadGrpcAddress(undisturbed),
         .rounds = absl::GetFlag(FLAGS_rounds),
         .round = milliseconds(absl::GetFlag(FLAGS_fairness_ms)),
         .keys = absl::GetFlag(FLAGS_listed_keys)})) {
      figures.push_back(figure);
    }
  }
}

int CheckFlags(std::vector<int>* caller_counts) {
  for (const std::string& text : absl::GetFlag(FLAGS_callers)) {
    int callers = 0;
    if (!absl::SimpleAtoi(text, &callers) || callers < 1 || callers > 4096) {
      std::cerr << "--callers must be numbers from 1 to 4096, got \"" << text
                << "\"\n";
      return 2;
    }
    caller_counts->push_back(callers);
  }
  if (absl::GetFlag(FLAGS_rounds) < 1 || absl::GetFlag(FLAGS_duration_ms) < 1 ||
      absl::GetFlag(FLAGS_waiters) < 1 || absl::GetFlag(FLAGS_sessions) < 1 ||
      absl::GetFlag(FLAGS_members) < 2 || absl::GetFlag(FLAGS_warm_up_ms) < 0 ||
      absl::GetFlag(FLAGS_value_bytes) < 0) {
    std::cerr << "--rounds, --duration_ms, --waiters and --sessions must be "
                 "positive, --members at least 2, --warm_up_ms and "
                 "--value_bytes not negative\n";
    return 2;
  }
  return 0;
}

int Bench() {
  std::vector<int> caller_counts;
  if (const int status = CheckFlags(&caller_counts); status != 0) return status;
  Child echo({"/proc/self/exe", "--serve_echo"});
  Child coordinator({absl::GetFlag(FLAGS_coordinator), "--listen=127.0.0.1:0",
                     "--http_listen=127.0.0.1:0"});
  const Bed bed = {
      .echo = absl::StrCat("127.0.0.1:",
                           absl::StripAsciiWhitespace(echo.ReadLine())),
      .coordinator = ReadGrpcAddress(coordinator),
      .echo_pid = echo.pid(),
      .coordinator_pid = coordinator.pid(),
      .payload = std::string(
          static_cast<size_t>(absl::GetFlag(FLAGS_value_bytes)), 'v'),
      .warm_up = milliseconds(absl::GetFlag(FLAGS_warm_up_ms)),
      .duration = milliseconds(absl::GetFlag(FLAGS_duration_ms))};
  std::vector<Row> rows;
  for (const int callers : caller_counts) PlanCallers(bed, callers, rows);
  StorageBed storage(bed);
  for (const int callers : caller_counts) storage.Plan(callers, rows);
  const std::string only = absl::GetFlag(FLAGS_only);
  Narrow(only, rows);
  const int rounds = absl::GetFlag(FLAGS_rounds);
  for (int round = 0; round < rounds; ++round) {
    for (Row& row : rows) {
      std::cerr << absl::StrFormat("\rround %d of %d: %-28s", round + 1, rounds,
                                   row.name);
      row.rounds.push_back(row.run());
    }
  }
  std::cerr << "\n";
  std::vector<Figure> figures = Report(rows);
  MeasureScale(bed, only, figures);
  MeasureFloods(only, figures);
  PrintTargets(figures);
  const std::string path = absl::GetFlag(FLAGS_json);
  if (path.empty()) return 0;
  std::ofstream out(path);
  out << ToJson(figures).dump(2) << "\n";
  if (!out.flush()) {
    std::cerr << "--json: cannot write \"" << path << "\"\n";
    return 1;
  }
  return 0;
}

int ServeEcho() {
  // Blocked before the server's threads start, so that they inherit it.
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigprocmask(SIG_BLOCK, &stop, nullptr);
  const std::unique_ptr<EchoServer> server = EchoServer::Start();
  if (server == nullptr) {
    std::cerr << "the echo cannot listen on 127.0.0.1\n";
    return 1;
  }
  std::cout << server->port() << std::endl;
  int signal = 0;
  sigwait(&stop, &signal);
  return 0;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Measures a coordinator beside a bare gRPC echo on the same machine in "
      "the same run: Set, Get and Add of one to many callers, the same with "
      "each Set on the disk beside etcd where it is installed (and redis, "
      "which "
      "keeps nothing), the release of many waiters, idle sessions, a job of "
      "many members, and what the flood of one job costs another.");
  absl::ParseCommandLine(argc, argv);
  // The same as in muster-coordinator, so that the echo and the callers are not
  // slower.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  try {
    if (absl::GetFlag(FLAGS_serve_echo)) return muster::bench::ServeEcho();
    if (const std::string what = absl::GetFlag(FLAGS_drive); !what.empty()) {
      muster::bench::DriveOneCaller(what);
      return 0;
    }
    if (const std::string what = absl::GetFlag(FLAGS_flood); !what.empty()) {
      muster::bench::Flood(what);
      return 0;
    }
    return muster::bench::Bench();
  } catch (const std::exception& error) {
    std::cerr << "coordinator_bench: " << error.what() << "\n";
    return 1;
  }
}
