// muster-bench: times collectives. BenchHelpText() is its manual.

#include <fcntl.h>
#include <glog/logging.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/logging.h"
#include "base/options.h"
#include "base/process_limits.h"
#include "client/control/exit_status.h"
#include "client/groups/embedded_coordinator.h"
#include "muster/base/status.h"
#include "muster/muster.hpp"
#include "muster/version.h"
#include "worker/bench/measure.h"
#include "worker/bench/memory_use.h"
#include "worker/bench/options.h"
#include "worker/bench/peer.h"
#include "worker/bench/report.h"
#include "worker/bench/tune.h"
#include "worker/launcher/process.h"
#include "worker/launcher/rank_environment.h"

namespace muster::worker::bench {
namespace {

// Tells ranks that RunWorld starts which folder they share.
constexpr const char* kWorldFolder = "MUSTER_BENCH_WORLD_FOLDER";

// How long the other ranks may take to end after a failure.
constexpr int kEndingSeconds = 5;

// The exit status for wrong options.
constexpr int kUsage = 2;

int Fail(absl::string_view what) {
  std::cerr << "muster-bench: " << what << std::endl;
  return 1;
}

// As Fail. Of the ranks of one RunWorld only the first prints the error: the
// others report the same or its end.
int FailRank(absl::string_view what) {
  const char* const folder = std::getenv(kWorldFolder);
  if (folder != nullptr) {
    const int said = open(absl::StrCat(folder, "/failed").c_str(),
                          O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (said < 0 && errno == EEXIST) return 1;
    if (said >= 0) close(said);
  }
  return Fail(what);
}

// A folder of this host that its owner removes.
class Folder {
 public:
  // Errors: UNAVAILABLE.
  static StatusOr<std::unique_ptr<Folder>> Create() {
    std::error_code error;
    std::string path =
        (std::filesystem::temp_directory_path(error) / "muster-bench.XXXXXX")
            .string();
    if (error || mkdtemp(path.data()) == nullptr) {
      return UnavailableError(
          absl::StrCat("cannot create a folder in TMPDIR (default /tmp): ",
                       error ? error.message() : std::strerror(errno)));
    }
    return std::unique_ptr<Folder>(new Folder(std::move(path)));
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit Folder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

// The signals that AwaitRanks waits for: SIGCHLD and those that end this
// process.
sigset_t RankSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGCHLD, SIGHUP, SIGINT, SIGTERM}) {
    sigaddset(&signals, signal);
  }
  return signals;
}

// Waits for all ranks; after a failure only for a while. Returns the exit
// status of the first failed rank. RankSignals must be blocked.
int AwaitRanks(std::vector<pid_t> ranks) {
  int result = 0;
  timespec until = {};
  const sigset_t signals = RankSignals();
  while (true) {
    std::vector<pid_t> running;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (ranks[rank] == 0) continue;
      int status = 0;
      if (waitpid(ranks[rank], &status, WNOHANG) == 0) {
        running.push_back(ranks[rank]);
        continue;
      }
      ranks[rank] = 0;
      if (status == 0 || result != 0) continue;
      const auto ended = internal::ExitStatus::OfWait(status);
      result = ended.shell_status();
      clock_gettime(CLOCK_MONOTONIC, &until);
      until.tv_sec += kEndingSeconds;
      // Otherwise the rank has printed its error.
      if (ended.signal != 0) {
        Fail(absl::StrCat("rank ", rank, " ", Describe(ended)));
      }
    }
    if (running.empty()) return result;
    timespec now = {};
    clock_gettime(CLOCK_MONOTONIC, &now);
    const timespec left = {std::max<time_t>(0, until.tv_sec - now.tv_sec), 0};
    const int signal =
        sigtimedwait(&signals, nullptr, result == 0 ? nullptr : &left);
    if (signal > 0 && signal != SIGCHLD) return 128 + signal;
    if (signal < 0 && errno == EAGAIN) return result;
  }
}

// Starts the ranks; each runs this program again.
int RunWorld(int nproc, const std::vector<std::string>& arguments) {
  // Before any thread is started. The end of `group` ends every rank.
  StatusOr<muster::worker::ProcessGroup> group =
      muster::worker::ProcessGroup::Create();
  if (!group.ok()) return Fail(group.status().message());
  StatusOr<std::unique_ptr<Folder>> folder = Folder::Create();
  if (!folder.ok()) return Fail(folder.status().message());
  const sigset_t signals = RankSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  auto coordinator = muster::internal::EmbeddedCoordinator::Start({});
  if (!coordinator.ok()) {
    return Fail(absl::StrCat("cannot serve a coordinator: ",
                             coordinator.status().message()));
  }
  LaunchOptions launch;
  launch.nproc_per_node = nproc;
  launch.role = "bench";
  Environment environment = base::OwnEnvironment();
  for (const char* const name :
       {"MUSTER_TLS_CA", "MUSTER_TLS_CERT", "MUSTER_TLS_KEY", "MUSTER_TOKEN",
        "MUSTER_TOKEN_FILE"}) {
    environment.erase(name);
  }
  environment[kWorldFolder] = (*folder)->path();
  // Overrides the environment and the arguments.
  std::vector<std::string> rank_arguments = {"muster-bench"};
  rank_arguments.insert(rank_arguments.end(), arguments.begin(),
                        arguments.end());
  for (const char* const name : {"nproc", "ngpus", "nthreads"}) {
    rank_arguments.push_back(absl::StrCat("--", name, "=0"));
  }
  const CoordinatorAddress address = {.host = "127.0.0.1",
                                      .port = (*coordinator)->port(),
                                      .job = absl::StrCat("bench-", getpid())};
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < nproc; ++rank) {
    StatusOr<pid_t> pid =
        group->Spawn({.path = "/proc/self/exe",
                      .arguments = rank_arguments,
                      .environment = RankEnvironment(
                          launch, {.world_size = nproc}, address, rank,
                          /*error_file=*/"", environment),
                      .stdout_fd = STDOUT_FILENO,
                      .stderr_fd = STDERR_FILENO});
    if (!pid.ok()) return Fail(pid.status().message());
    ranks.push_back(*pid);
  }
  const int result = AwaitRanks(std::move(ranks));
  // Before their folder is removed.
  group->KillAll();
  return result;
}

// Runs this program again, for one operation. Returns the exit status.
int RunAgain(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "muster-bench");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_t pid = -1;
  if (posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, pointers.data(),
                  environ) != 0) {
    return 1;
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return 1;
  }
  return internal::ExitStatus::OfWait(status).shell_status();
}

// Measures every algorithm of every operation, and writes the fastest ones to
// the file `options.tune`.
int Tune(const BenchOptions& options,
         const std::vector<std::string>& arguments) {
  StatusOr<std::unique_ptr<Folder>> folder = Folder::Create();
  if (!folder.ok()) return Fail(folder.status().message());
  const std::string file = absl::StrCat((*folder)->path(), "/figures.json");
  const Tunable& tunable = *FindTunable(options.backend);
  std::string rows = kTuneHeader;
  for (const Operation* const operation : options.operations) {
    std::vector<TuneSample> samples;
    for (const std::string& algorithm :
         tunable.algorithms_of(*operation, options.is_symmetric)) {
      std::cout << "# " << algorithm << std::endl;
      std::vector<std::string> own = {operation->name};
      // Copies the arguments except names of operations.
      for (const std::string& argument : arguments) {
        if (FindOperation(argument) == nullptr) own.push_back(argument);
      }
      own.insert(own.end(), {"--tune=", absl::StrCat("--json=", file)});
      setenv(tunable.variable, algorithm.c_str(), 1);
      const int status = RunAgain(std::move(own));
      if (status != 0) return status;
      StatusOr<std::vector<TuneSample>> more =
          ReadSamples(file, options.backend);
      if (!more.ok()) return Fail(more.status().message());
      samples.insert(samples.end(), more->begin(), more->end());
    }
    if (samples.empty()) {
      std::cout << "# " << operation->name << ": goes one way" << std::endl;
    }
    rows += TableRows(*operation,
                      {.backend = options.backend,
                       .ranks = options.nproc,
                       .processors = muster::UsableProcessors(),
                       .is_symmetric = options.is_symmetric},
                      samples);
  }
  std::ofstream stream(options.tune);
  stream << rows << std::flush;
  if (!stream) return Fail(absl::StrCat("cannot write ", options.tune));
  std::cout << rows;
  return 0;
}

// The folder for the rendezvous of the ranks' peers.
class PeersFolder {
 public:
  PeersFolder() {
    const char* const of_world = std::getenv(kWorldFolder);
    if (of_world != nullptr) {
      path_ = of_world;
    } else if (GetRank() > 0) {
      path_ = GetDefaultStore()->Get("bench/peers_folder");
    } else {
      StatusOr<std::unique_ptr<Folder>> own = Folder::Create();
      if (!own.ok()) throw DistError(own.status());
      own_ = *std::move(own);
      path_ = own_->path();
      GetDefaultStore()->Set("bench/peers_folder", path_);
    }
  }

  const std::string& path() const { return path_; }

 private:
  std::unique_ptr<Folder> own_;
  std::string path_;
};

// The measurements of this rank, and whether all results were right.
class Run {
 public:
  explicit Run(const BenchOptions& options) : options_(options) {}

  void MeasureAll() {
    StartPeers();
    for (const Operation* const operation : options_.operations) {
      CheckRanks(*operation);
      Print(absl::StrCat(
          "# ", operation->name, ", ", GetWorldSize(), " ranks, backend ",
          options_.backend,
          options_.device == DeviceType::kCuda ? ", CUDA tensors\n" : "\n"));
      std::vector<std::string> names;
      for (const auto& peer : peers_) names.push_back(peer->name());
      Print(HeadText(names, options_.report_timestamps));
      for (const DataType type : options_.data_types) {
        for (const ReduceOp op : options_.reduce_ops) {
          for (const int root : GetRoots(*operation)) {
            RunSizes({.operation = operation,
                      .data_type = type,
                      .reduce_op = op,
                      .root = root});
          }
          if (!operation->reduces) break;
        }
      }
    }
  }

  const std::vector<Row>& rows() const { return rows_; }

  // The maximum on this rank.
  MemoryUse Memory() const {
    MemoryUse most = OwnMemoryUse();
    for (const Row& row : rows_) {
      most.shared_bytes = std::max(most.shared_bytes, row.memory.shared_bytes);
    }
    return most;
  }

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

  void CheckRanks(const Operation& operation) const {
    if (operation.flow == Operation::Flow::kRing &&
        options_.backend == "nccl" && GetWorldSize() == 1) {
      throw DistError(InvalidArgumentError(
          "sendrecv by nccl needs 2 ranks: NCCL has no send to oneself alone"));
    }
  }

  std::vector<int> GetRoots(const Operation& operation) const {
    if (!options_.all_roots) return {options_.root};
    std::vector<int> roots(operation.has_root ? GetWorldSize() : 1);
    std::iota(roots.begin(), roots.end(), 0);
    return roots;
  }

  std::string Timestamp() const {
    if (!options_.report_timestamps) return "";
    return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::Now(),
                            absl::LocalTimeZone());
  }

  void StartPeers() {
    if (options_.peers.empty()) return;
    folder_.emplace();
    for (size_t i = 0; i < options_.peers.size(); ++i) {
      const std::string own = absl::StrCat(folder_->path(), "/", i);
      std::error_code exists;
      std::filesystem::create_directory(own, exists);
      auto peer = Peer::Start(options_.peers[i], own, GetRank(), GetWorldSize(),
                              options_.timeout);
      if (!peer.ok()) throw DistError(peer.status());
      peers_.push_back(*std::move(peer));
    }
  }

  void RunSizes(Case measured) {
    const bool has_sizes = measured.operation->flow != Operation::Flow::kNone;
    for (int64_t bytes = options_.bytes_min; bytes <= options_.bytes_max;) {
      measured.count = CountFor(measured, bytes, GetWorldSize());
      if (!RunSize(measured) || !has_sizes) return;
      bytes = options_.step_bytes > 0
                  ? bytes + options_.step_bytes
                  : std::max<int64_t>(bytes, 1) * options_.step_factor;
    }
  }

  // Returns whether there is such an operation.
  bool RunSize(Case measured) {
    Line line;
    try {
      const Operation& operation = *measured.operation;
      if (operation.out_of_place() && options_.out_of_place) {
        measured.in_place = false;
        line.out_of_place.push_back(Measure(measured, options_, peers_));
      }
      // An operation with in-place results only is always measured.
      if (operation.in_place() &&
          (options_.in_place || !operation.out_of_place())) {
        measured.in_place = true;
        line.in_place.push_back(Measure(measured, options_, peers_));
      }
    } catch (const DistError& error) {
      // The call was refused on every rank.
      const bool is_no_operation = (IsInvalidArgument(error.status()) ||
                                    IsUnimplemented(error.status())) &&
                                   measured.operation->reduces;
      if (is_no_operation && (options_.all_types || options_.all_ops)) {
        return false;
      }
      throw;
    }
    if (line.out_of_place.empty() && line.in_place.empty()) return false;
    Print(LineText(line, Timestamp()));
    for (const auto& rows : {line.out_of_place, line.in_place}) {
      rows_.insert(rows_.end(), rows.begin(), rows.end());
    }
    return true;
  }

  const BenchOptions& options_;
  // Must outlive the peers.
  std::optional<PeersFolder> folder_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<Row> rows_;
};

// The error of a wrong --backend.
class WrongBackend : public DistError {
 public:
  using DistError::DistError;
};

void Join(const BenchOptions& options) {
  try {
    InitProcessGroupOptions group = {.backend = options.BackendSpec(),
                                     .timeout = options.timeout};
    group.nccl.cta_policy = options.cta_policy;
    const Device device = ChooseDevice(options);
    if (device.type == DeviceType::kCuda) group.device_id = device.index;
    InitProcessGroup(group);
  } catch (const DistError& error) {
    // Libraries that the environment names are loaded now.
    const Status backend = dataplane::CheckBackend(options.BackendSpec());
    if (IsInvalidArgument(backend)) {
      throw WrongBackend(
          InvalidArgumentError(absl::StrCat("--backend: ", backend.message())));
    }
    if (std::getenv("RANK") != nullptr) throw;
    throw DistError(
        Status(error.status().code(),
               absl::StrCat(error.what(), "; --nproc=N starts N ranks here")));
  }
  if (options.root >= GetWorldSize()) {
    throw DistError(InvalidArgumentError(absl::StrCat(
        "--root must be 0 to ", GetWorldSize() - 1, ", got ", options.root)));
  }
}

// The file of the figures. Opened before all work; its old content stays if a
// measurement fails.
class FiguresFile {
 public:
  explicit FiguresFile(const std::string& path)
      : path_(path),
        // A pipe or a terminal cannot be replaced.
        is_replaced_(!std::filesystem::exists(path) ||
                     std::filesystem::is_regular_file(path)),
        written_path_(is_replaced_ ? path + ".part" : path),
        file_(written_path_) {
    if (!file_) Fail();
  }
  ~FiguresFile() {
    std::error_code ignored;
    if (is_replaced_) std::filesystem::remove(written_path_, ignored);
  }
  FiguresFile(const FiguresFile&) = delete;
  FiguresFile& operator=(const FiguresFile&) = delete;

  void Write(const std::string& text) {
    file_ << text;
    file_.close();
    std::error_code error;
    if (file_ && is_replaced_) {
      std::filesystem::rename(written_path_, path_, error);
    }
    if (!file_ || error) Fail();
  }

 private:
  [[noreturn]] void Fail() const {
    throw DistError(
        UnavailableError(absl::StrCat("cannot write --json=", path_)));
  }

  const std::string path_;
  const bool is_replaced_;
  const std::string written_path_;
  std::ofstream file_;
};

// Returns whether all results are right.
bool MeasureAll(const BenchOptions& options) {
  std::optional<FiguresFile> file;
  if (GetRank() == 0 && !options.json.empty()) file.emplace(options.json);
  Run run(options);
  run.MeasureAll();
  std::vector<MemoryUse> memory;
  if (options.memory_report) memory = MemoryOfRanks(run.Memory());
  if (file.has_value()) file->Write(JsonText(run.rows(), memory));
  if (GetRank() == 0) {
    if (options.memory_report) std::cout << MemoryText(memory);
    std::cout << (!options.check   ? "# results were not looked at\n"
                  : run.AllRight() ? "# all results are right\n"
                                   : "# WRONG RESULTS\n");
  }
  return run.AllRight();
}

int RunRank(const BenchOptions& options) {
  try {
    // The log should show it if ranks cannot share memory.
    const int level =
        std::exchange(FLAGS_minloglevel,
                      std::min<int>(FLAGS_minloglevel, google::GLOG_WARNING));
    Join(options);
    FLAGS_minloglevel = level;
    const bool all_right = MeasureAll(options);
    DestroyProcessGroup();
    return all_right ? 0 : 1;
  } catch (const WrongBackend& error) {
    FailRank(error.what());
    return kUsage;
  } catch (const DistError& error) {
    return FailRank(error.what());
  }
}

int Main(const std::vector<std::string>& arguments) {
  const StatusOr<BenchOptions> options =
      ParseBenchOptions(arguments, base::OwnEnvironment());
  if (!options.ok()) {
    std::cerr << "muster-bench: " << options.status().message()
              << "; see muster-bench --help" << std::endl;
    return kUsage;
  }
  if (options->help) {
    std::cout << BenchHelpText();
    return 0;
  }
  if (options->version) {
    std::cout << "muster-bench " << MUSTER_VERSION << "\n";
    return 0;
  }
  std::signal(SIGPIPE, SIG_IGN);
  if (!options->tune.empty()) return Tune(*options, arguments);
  if (options->nproc > 0) return RunWorld(options->nproc, arguments);
  return RunRank(*options);
}

}  // namespace
}  // namespace muster::worker::bench

int main(int argc, char** argv) {
  FLAGS_logtostderr = true;
  if (std::getenv("GLOG_minloglevel") == nullptr) {
    FLAGS_minloglevel = google::GLOG_ERROR;
  }
  muster::base::InitLogging(argv[0]);
  return muster::worker::bench::Main(
      std::vector<std::string>(argv + 1, argv + argc));
}
