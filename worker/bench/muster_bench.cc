// muster-bench: times collectives. BenchHelpText() is its manual.

#include <glog/logging.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/internal/embedded_coordinator.h"
#include "client/muster.h"
#include "client/version.h"
#include "worker/bench/measure.h"
#include "worker/bench/options.h"
#include "worker/bench/peer.h"
#include "worker/bench/report.h"
#include "worker/bench/tune.h"
#include "worker/process.h"
#include "worker/rank_environment.h"

namespace muster::worker::bench {
namespace {

int Fail(absl::string_view what) {
  std::cerr << "muster-bench: " << what << std::endl;
  return 1;
}

Environment OwnEnvironment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string::npos) continue;
    environment[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return environment;
}

// Waits for all ranks. The exit status of the first one that failed.
int AwaitRanks(size_t ranks) {
  int result = 0;
  while (ranks > 0) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, 0);
    if (pid < 0 && errno == EINTR) continue;
    if (pid < 0) break;
    --ranks;
    if (status == 0 || result != 0) continue;
    result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return result;
}

// Starts the ranks: this program again, as one of them each.
int RunWorld(int nproc, const std::vector<std::string>& arguments) {
  // Before any thread is started. Its end is the end of every rank.
  absl::StatusOr<muster::worker::ProcessGroup> group =
      muster::worker::ProcessGroup::Create();
  if (!group.ok()) return Fail(std::string(group.status().message()));
  auto coordinator = muster::internal::EmbeddedCoordinator::Start({});
  if (!coordinator.ok()) {
    return Fail(absl::StrCat("cannot serve a coordinator: ",
                             std::string(coordinator.status().message())));
  }
  LaunchOptions launch;
  launch.nproc_per_node = nproc;
  launch.role = "bench";
  Environment environment = OwnEnvironment();
  for (const char* const name :
       {"MUSTER_TLS_CA", "MUSTER_TLS_CERT", "MUSTER_TLS_KEY", "MUSTER_TOKEN",
        "MUSTER_TOKEN_FILE"}) {
    environment.erase(name);
  }
  // Comes after what the environment and the arguments say.
  std::vector<std::string> rank_arguments = {"muster-bench"};
  rank_arguments.insert(rank_arguments.end(), arguments.begin(),
                        arguments.end());
  rank_arguments.emplace_back("--nproc=0");
  const CoordinatorAddress address = {.host = "127.0.0.1",
                                      .port = (*coordinator)->port(),
                                      .job = absl::StrCat("bench-", getpid())};
  for (int rank = 0; rank < nproc; ++rank) {
    absl::StatusOr<pid_t> pid = group->Spawn(
        {.path = "/proc/self/exe",
         .arguments = rank_arguments,
         .environment = RankEnvironment(launch, address, rank, environment),
         .stdout_fd = STDOUT_FILENO,
         .stderr_fd = STDERR_FILENO});
    if (!pid.ok()) return Fail(std::string(pid.status().message()));
  }
  return AwaitRanks(nproc);
}

// Runs this program again, for one operation and algorithm. The exit status.
int RunWith(const std::string& algorithm, std::vector<std::string> arguments) {
  setenv("MUSTER_GLOO_ALGORITHM", algorithm.c_str(), 1);
  arguments.insert(arguments.begin(), "muster-bench");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_t pid = -1;
  if (posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, pointers.data(),
                  environ) != 0) {
    return 1;
  }
  return AwaitRanks(1);
}

// Measures every algorithm of every operation, and prints the fastest ones.
int Tune(const BenchOptions& options,
         const std::vector<std::string>& arguments) {
  const std::string file =
      (std::filesystem::temp_directory_path() /
       absl::StrCat("muster-bench-tune-", getpid(), ".json"))
          .string();
  std::string rows;
  for (const Operation* const operation : options.operations) {
    std::vector<TuneSample> samples;
    for (const std::string& algorithm : AlgorithmsOf(*operation)) {
      std::cout << "# " << algorithm << std::endl;
      std::vector<std::string> own = {operation->name};
      // Without the names of operations.
      for (const std::string& argument : arguments) {
        if (FindOperation(argument) == nullptr) own.push_back(argument);
      }
      own.insert(own.end(), {"--tune=0", absl::StrCat("--json=", file)});
      const int status = RunWith(algorithm, std::move(own));
      if (status != 0) return status;
      absl::StatusOr<std::vector<TuneSample>> more = ReadSamples(file);
      if (!more.ok()) return Fail(more.status().message());
      samples.insert(samples.end(), more->begin(), more->end());
    }
    rows += TableRows(*operation, options.nproc, std::move(samples));
  }
  std::error_code ignored;
  std::filesystem::remove(file, ignored);
  std::cout << rows;
  return 0;
}

// A folder of this host in which the ranks' peers meet.
class PeersFolder {
 public:
  PeersFolder() {
    if (is_owner_) {
      std::string pattern =
          (std::filesystem::temp_directory_path() / "muster-bench.XXXXXX")
              .string();
      if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
      GetDefaultStore()->Set("bench/peers_folder", path_);
    } else {
      path_ = GetDefaultStore()->Get("bench/peers_folder");
    }
  }
  ~PeersFolder() {
    std::error_code ignored;
    if (is_owner_) std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }

 private:
  const bool is_owner_ = GetRank() == 0;
  std::string path_;
};

// What this rank has measured, and whether all of it was right.
class Run {
 public:
  explicit Run(const BenchOptions& options) : options_(options) {}

  void MeasureAll() {
    StartPeers();
    for (const Operation* const operation : options_.operations) {
      Print(absl::StrCat("# ", operation->name, ", ", GetWorldSize(),
                         " ranks, backend ", options_.backend, "\n"));
      std::vector<std::string> names;
      for (const auto& peer : peers_) names.push_back(peer->name());
      Print(HeadText(names));
      for (const DataType type : options_.data_types) {
        for (const ReduceOp op : options_.reduce_ops) {
          RunSizes({.operation = operation,
                    .data_type = type,
                    .reduce_op = op,
                    .root = options_.root});
          if (!operation->reduces) break;
        }
      }
    }
  }

  const std::vector<Row>& rows() const { return rows_; }

  bool AllRight() const {
    for (const Row& row : rows_) {
      if (row.figures[0].wrong > 0) return false;
    }
    return true;
  }

 private:
  static void Print(const std::string& text) {
    if (GetRank() == 0) std::cout << text << std::flush;
  }

  void StartPeers() {
    if (options_.peers.empty()) return;
    folder_.emplace();
    for (size_t i = 0; i < options_.peers.size(); ++i) {
      const std::string own = absl::StrCat(folder_->path(), "/", i);
      std::error_code exists;
      std::filesystem::create_directory(own, exists);
      auto peer =
          Peer::Start(options_.peers[i], own, GetRank(), GetWorldSize());
      if (!peer.ok()) throw DistError(peer.status());
      peers_.push_back(*std::move(peer));
    }
  }

  void RunSizes(Case measured) {
    const bool has_sizes =
        measured.operation->verb != Operation::Verb::kBarrier;
    for (int64_t bytes = options_.bytes_min; bytes <= options_.bytes_max;) {
      measured.count = CountFor(measured, bytes, GetWorldSize());
      if (!RunSize(measured) || !has_sizes) return;
      bytes = options_.step_bytes > 0
                  ? bytes + options_.step_bytes
                  : std::max<int64_t>(bytes, 1) * options_.step_factor;
    }
  }

  // Whether there is such an operation.
  bool RunSize(Case measured) {
    Line line;
    try {
      const Operation& operation = *measured.operation;
      if (operation.out_of_place && options_.out_of_place) {
        measured.in_place = false;
        line.out_of_place.push_back(Measure(measured, options_, peers_));
      }
      // One that has no other place is measured whatever was asked for.
      if (operation.in_place &&
          (options_.in_place || !operation.out_of_place)) {
        measured.in_place = true;
        line.in_place.push_back(Measure(measured, options_, peers_));
      }
    } catch (const DistError& error) {
      // Nothing was sent: every rank gets the same error.
      const bool is_no_operation = absl::IsInvalidArgument(error.status()) &&
                                   measured.operation->reduces;
      if (is_no_operation && (options_.all_types || options_.all_ops)) {
        return false;
      }
      throw;
    }
    if (line.out_of_place.empty() && line.in_place.empty()) return false;
    Print(LineText(line));
    for (const auto& rows : {line.out_of_place, line.in_place}) {
      rows_.insert(rows_.end(), rows.begin(), rows.end());
    }
    return true;
  }

  const BenchOptions& options_;
  // Outlives those that met in it.
  std::optional<PeersFolder> folder_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<Row> rows_;
};

int RunRank(const BenchOptions& options) {
  bool all_right = false;
  try {
    InitProcessGroup({.backend = options.backend, .timeout = options.timeout});
    if (options.root >= GetWorldSize()) {
      throw DistError(absl::InvalidArgumentError(absl::StrCat(
          "--root must be 0 to ", GetWorldSize() - 1, ", got ", options.root)));
    }
    Run run(options);
    run.MeasureAll();
    all_right = run.AllRight();
    if (GetRank() == 0 && !options.json.empty()) {
      std::ofstream file(options.json);
      file << JsonText(run.rows());
      file.close();
      if (!file)
        return Fail(absl::StrCat("cannot write --json=", options.json));
    }
    if (GetRank() == 0) {
      std::cout << (options.check ? all_right ? "# all results are right\n"
                                              : "# WRONG RESULTS\n"
                                  : "# results were not looked at\n");
    }
    DestroyProcessGroup();
  } catch (const DistError& error) {
    return Fail(error.what());
  }
  return all_right ? 0 : 1;
}

int Main(const std::vector<std::string>& arguments) {
  const absl::StatusOr<BenchOptions> options =
      ParseBenchOptions(arguments, OwnEnvironment());
  if (!options.ok()) {
    std::cerr << "muster-bench: " << options.status().message()
              << "; see muster-bench --help" << std::endl;
    return 2;
  }
  if (options->help) {
    std::cout << BenchHelpText();
    return 0;
  }
  if (options->version) {
    std::cout << "muster-bench " << kVersion << "\n";
    return 0;
  }
  std::signal(SIGPIPE, SIG_IGN);
  if (options->tune) return Tune(*options, arguments);
  if (options->nproc > 0) return RunWorld(options->nproc, arguments);
  return RunRank(*options);
}

}  // namespace
}  // namespace muster::worker::bench

int main(int argc, char** argv) {
  FLAGS_logtostderr = true;
  FLAGS_minloglevel = google::GLOG_ERROR;
  google::InitGoogleLogging(argv[0]);
  return muster::worker::bench::Main(
      std::vector<std::string>(argv + 1, argv + argc));
}
