#include "dataplane/testing/process_world.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/testing/addresses.h"
#include "dataplane/testing/directory_store.h"
#include "glog/logging.h"
#include "muster/dataplane/factory.h"

namespace muster::dataplane::testing {
namespace {

// In a forked rank: the pipe to which Ready() writes.
int g_ready_pipe = -1;

std::string RunRank(const std::string& backend_name, int rank, int world_size,
                    const std::string& directory,
                    const ProcessWorld::Body& body,
                    const ProcessWorld::Joining& joining) {
  joining.begin(rank);
  BackendOptions options = {
      .rank = rank,
      .world_size = world_size,
      .group_name = "world",
      .store = std::make_shared<DirectoryStore>(directory),
      .deadline = Clock::now() + joining.timeout,
      .local_address = GetAddress(rank)};
  joining.adjust(options);
  auto backend = CreateBackend(backend_name, options);
  if (!backend.ok()) return backend.status().ToString();
  Communicator communicator({.group_name = "world",
                             .rank = rank,
                             .world_size = world_size,
                             .default_timeout = std::chrono::seconds(60)},
                            *std::move(backend));
  return body(communicator);
}

std::string ReadAll(int descriptor) {
  std::string text;
  char buffer[4096];
  ssize_t bytes = 0;
  while ((bytes = read(descriptor, buffer, sizeof(buffer))) > 0) {
    text.append(buffer, bytes);
  }
  return text;
}

}  // namespace

ProcessWorld::ProcessWorld(const std::string& backend, int world_size,
                           const Body& body, const Joining& joining)
    : processes_(world_size) {
  const char* base = std::getenv("TEST_TMPDIR");
  std::string pattern =
      absl::StrCat(base == nullptr ? "/tmp" : base, "/world.XXXXXX");
  CHECK(mkdtemp(pattern.data()) != nullptr) << pattern;
  directory_ = pattern;
  for (int rank = 0; rank < world_size; ++rank) {
    int ready[2];
    int report[2];
    CHECK_EQ(pipe(ready), 0);
    CHECK_EQ(pipe(report), 0);
    const pid_t pid = fork();
    CHECK_GE(pid, 0);
    if (pid == 0) {
      close(ready[0]);
      close(report[0]);
      g_ready_pipe = ready[1];
      const std::string text =
          RunRank(backend, rank, world_size, directory_, body, joining);
      const bool written = write(report[1], text.data(), text.size()) ==
                           static_cast<ssize_t>(text.size());
      // _exit, not exit: this process must not run the parent's destructors.
      _exit(written ? 0 : 1);
    }
    close(ready[1]);
    close(report[1]);
    processes_[rank] = {pid, ready[0], report[0]};
  }
}

ProcessWorld::~ProcessWorld() {
  for (const Process& process : processes_) {
    if (process.pid > 0) kill(process.pid, SIGKILL);
  }
  Join();
  std::filesystem::remove_all(directory_);
}

void ProcessWorld::AwaitReady(int rank) {
  char byte = 0;
  CHECK_EQ(read(processes_[rank].ready_pipe, &byte, 1), 1)
      << "rank " << rank << " ended before it was ready";
}

void ProcessWorld::Ready() { CHECK_EQ(write(g_ready_pipe, "r", 1), 1); }

void ProcessWorld::Signal(int rank, int signal) {
  CHECK_EQ(kill(processes_[rank].pid, signal), 0);
}

std::vector<RankOutcome> ProcessWorld::JoinAllBut(int rank) {
  std::vector<RankOutcome> outcomes;
  for (Process& process : processes_) {
    const bool excepted = rank >= 0 && &process == &processes_[rank];
    if (process.pid <= 0 || excepted) continue;
    RankOutcome outcome;
    outcome.report = ReadAll(process.report_pipe);
    waitpid(process.pid, &outcome.wait_status, 0);
    close(process.report_pipe);
    close(process.ready_pipe);
    process.pid = -1;
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

}  // namespace muster::dataplane::testing
