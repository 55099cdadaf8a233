#include "worker/bench/peer.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace muster::worker::bench {
namespace {

using Clock = std::chrono::steady_clock;

// How long a peer may take to end after it is told to.
constexpr std::chrono::seconds kEnding{2};

// Whether `descriptor` becomes readable or is closed by `deadline`.
bool Await(int descriptor, Clock::time_point deadline) {
  pollfd wait = {descriptor, POLLIN, 0};
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    const int ready =
        poll(&wait, 1,
             static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (left.count() <= 0) return false;
  }
}

std::vector<std::string> EnvironmentFor(const std::string& folder, int rank,
                                        int world_size) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    if (absl::StartsWith(text, "RANK=") ||
        absl::StartsWith(text, "MUSTER_BENCH_FOLDER=") ||
        absl::StartsWith(text, "WORLD_SIZE=")) {
      continue;
    }
    environment.emplace_back(*entry);
  }
  environment.push_back(absl::StrCat("RANK=", rank));
  environment.push_back(absl::StrCat("WORLD_SIZE=", world_size));
  environment.push_back(absl::StrCat("MUSTER_BENCH_FOLDER=", folder));
  return environment;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Peer::Peer(std::string command, std::chrono::milliseconds timeout, pid_t pid,
           int to, int from)
    : command_(std::move(command)),
      timeout_(timeout),
      pid_(pid),
      to_(to),
      from_(from) {}

StatusOr<std::unique_ptr<Peer>> Peer::Start(const std::string& command,
                                            const std::string& folder, int rank,
                                            int world_size,
                                            std::chrono::milliseconds timeout) {
  std::vector<std::string> words =
      absl::StrSplit(command, ' ', absl::SkipWhitespace());
  std::vector<std::string> environment =
      EnvironmentFor(folder, rank, world_size);
  int to[2];
  int from[2];
  if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) {
    return ResourceExhaustedError(
        absl::StrCat("no pipe for ", command, ": ", std::strerror(errno)));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
  pid_t pid = -1;
  const int error =
      posix_spawnp(&pid, words[0].c_str(), &actions, nullptr,
                   Pointers(words).data(), Pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  close(to[0]);
  close(from[1]);
  if (error != 0) {
    close(to[1]);
    close(from[0]);
    return UnavailableError(
        absl::StrCat("cannot run ", command, ": ", std::strerror(error)));
  }
  auto peer =
      std::unique_ptr<Peer>(new Peer(command, timeout, pid, to[1], from[0]));
  StatusOr<std::string> line = peer->ReadLine();
  if (!line.ok()) return line.status();
  absl::string_view name = *line;
  if (!absl::ConsumePrefix(&name, "ready ")) {
    return UnavailableError(
        absl::StrCat(command, " should say that it is ready, said: ", *line));
  }
  peer->name_ = std::string(name);
  return peer;
}

Peer::~Peer() {
  close(to_);
  close(from_);
  // A system call that the C library may not have.
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  if (process < 0 || !Await(process, Clock::now() + kEnding)) {
    kill(pid_, SIGKILL);
  }
  if (process >= 0) close(process);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

StatusOr<std::string> Peer::ReadLine() {
  const Clock::time_point deadline = Clock::now() + timeout_;
  size_t end = said_.find('\n');
  while (end == std::string::npos) {
    if (!Await(from_, deadline)) {
      return DeadlineExceededError(
          absl::StrCat(command_, " did not answer in --timeout (",
                       timeout_.count(), " ms), after: ", said_));
    }
    std::array<char, 4096> more;
    const ssize_t count = read(from_, more.data(), more.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      return UnavailableError(absl::StrCat(command_, " ended, after: ", said_));
    }
    said_.append(more.data(), count);
    end = said_.find('\n');
  }
  std::string line = said_.substr(0, end);
  said_.erase(0, end + 1);
  return line;
}

StatusOr<std::optional<double>> Peer::Run(const Case& measured, int calls) {
  const std::string order = absl::StrCat(
      "run ", measured.operation->name, " ", DataTypeName(measured.data_type),
      " ", ReduceOpName(measured.reduce_op), " ", measured.count, " ",
      measured.root, " ", calls, "\n");
  // Smaller than a pipe's buffer. If the peer has ended, ReadLine fails.
  (void)!write(to_, order.data(), order.size());
  StatusOr<std::string> line = ReadLine();
  if (!line.ok()) return line.status();
  absl::string_view answer = *line;
  double seconds = 0;
  if (answer == "none") return std::optional<double>();
  if (absl::ConsumePrefix(&answer, "seconds ") &&
      absl::SimpleAtod(answer, &seconds)) {
    return std::optional<double>(seconds);
  }
  return DataLossError(absl::StrCat(name_, ": ", *line));
}

}  // namespace muster::worker::bench
