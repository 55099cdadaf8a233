#include "worker/bench/peer.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

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

std::vector<std::string> EnvironmentFor(const std::string& folder, int rank,
                                        int world_size) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    if (absl::StartsWith(text, "RANK=") ||
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

Peer::Peer(std::string command, pid_t pid, std::FILE* to, std::FILE* from)
    : command_(std::move(command)), pid_(pid), to_(to), from_(from) {}

absl::StatusOr<std::unique_ptr<Peer>> Peer::Start(const std::string& command,
                                                  const std::string& folder,
                                                  int rank, int world_size) {
  std::vector<std::string> words =
      absl::StrSplit(command, ' ', absl::SkipWhitespace());
  std::vector<std::string> environment =
      EnvironmentFor(folder, rank, world_size);
  int to[2];
  int from[2];
  if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(
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
    return absl::UnavailableError(
        absl::StrCat("cannot run ", command, ": ", std::strerror(error)));
  }
  auto peer = std::unique_ptr<Peer>(
      new Peer(command, pid, fdopen(to[1], "w"), fdopen(from[0], "r")));
  absl::StatusOr<std::string> line = peer->ReadLine();
  if (!line.ok()) return line.status();
  absl::string_view name = *line;
  if (!absl::ConsumePrefix(&name, "ready ")) {
    return absl::UnavailableError(
        absl::StrCat(command, " should say that it is ready, said: ", *line));
  }
  peer->name_ = std::string(name);
  return peer;
}

Peer::~Peer() {
  std::fclose(to_);
  std::fclose(from_);
  waitpid(pid_, nullptr, 0);
}

absl::StatusOr<std::string> Peer::ReadLine() {
  std::string line;
  for (int c = std::fgetc(from_); c != '\n'; c = std::fgetc(from_)) {
    if (c == EOF) {
      return absl::UnavailableError(
          absl::StrCat(command_, " ended, after: ", line));
    }
    line.push_back(static_cast<char>(c));
  }
  return line;
}

absl::StatusOr<std::optional<double>> Peer::Run(const Case& measured,
                                                int calls) {
  std::fprintf(to_, "run %s %s %s %zu %d %d\n", measured.operation->name,
               std::string(DataTypeName(measured.data_type)).c_str(),
               std::string(ReduceOpName(measured.reduce_op)).c_str(),
               measured.count, measured.root, calls);
  std::fflush(to_);
  absl::StatusOr<std::string> line = ReadLine();
  if (!line.ok()) return line.status();
  absl::string_view answer = *line;
  double seconds = 0;
  if (answer == "none") return std::optional<double>();
  if (absl::ConsumePrefix(&answer, "seconds ") &&
      absl::SimpleAtod(answer, &seconds)) {
    return std::optional<double>(seconds);
  }
  return absl::DataLossError(absl::StrCat(name_, ": ", *line));
}

}  // namespace muster::worker::bench
