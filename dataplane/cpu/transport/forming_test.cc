// Tests ranks that die or stand still at any step of the forming of a group,
// with the gloo and the shm backend.

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/communicator.h"
#include "dataplane/culprit.h"
#include "dataplane/observe/metrics.h"
#include "dataplane/testing/process_world.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/bootstrap_store.h"
#include "muster/dataplane/interruption.h"

namespace {

enum class Fate { kDies, kStandsStill };

// Returns when the other end of `pipe` is closed.
void AwaitEnd(int pipe) {
  char byte = 0;
  while (read(pipe, &byte, 1) != 0) {
  }
}

// The fate of this process: the steps before it, its kind, the pipe that the
// process closes then, and the pipe whose end lets it stop standing still.
std::atomic<int> g_steps_left{-1};
Fate g_fate = Fate::kDies;
int g_gone = -1;
int g_over = -1;

// Called at the beginning of each step.
void Step() {
  if (g_steps_left.load() < 0 || g_steps_left.fetch_sub(1) != 0) return;
  if (g_fate == Fate::kStandsStill) {
    close(g_gone);
    AwaitEnd(g_over);
  }
  kill(getpid(), SIGKILL);
}

// Whether this process's ports are flooded.
bool g_is_flooded = false;

// Floods the port from a separate process while this one lives: opens
// connections, sends nothing, and keeps the last ones.
void Flood(int listener) {
  sockaddr_storage address = {};
  socklen_t bytes = sizeof(address);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &bytes);
  if (fork() != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  close(listener);
  std::array<int, 300> sockets;
  sockets.fill(-1);
  for (size_t next = 0;; next = (next + 1) % sockets.size()) {
    close(sockets[next]);
    sockets[next] = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    connect(sockets[next], reinterpret_cast<const sockaddr*>(&address), bytes);
    poll(nullptr, 0, /*timeout=*/1);  // leave the processors to the ranks
  }
}

template <typename Function>
Function* SystemsOwn(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// The system calls of a rank that forms a group. A program's own functions take
// precedence over the system's.
extern "C" {

int socket(int domain, int type, int protocol) noexcept {
  Step();
  return SystemsOwn(socket, "socket")(domain, type, protocol);
}

int bind(int descriptor, const sockaddr* address, socklen_t bytes) noexcept {
  Step();
  return SystemsOwn(bind, "bind")(descriptor, address, bytes);
}

int listen(int descriptor, int backlog) noexcept {
  Step();
  const int result = SystemsOwn(listen, "listen")(descriptor, backlog);
  if (g_is_flooded) Flood(descriptor);
  return result;
}

int connect(int descriptor, const sockaddr* address, socklen_t bytes) {
  Step();
  return SystemsOwn(connect, "connect")(descriptor, address, bytes);
}

ssize_t send(int descriptor, const void* data, size_t bytes, int flags) {
  Step();
  return SystemsOwn(send, "send")(descriptor, data, bytes, flags);
}

ssize_t sendmsg(int descriptor, const msghdr* message, int flags) {
  Step();
  return SystemsOwn(sendmsg, "sendmsg")(descriptor, message, flags);
}

int memfd_create(const char* name, unsigned int flags) noexcept {
  Step();
  return SystemsOwn(memfd_create, "memfd_create")(name, flags);
}

}  // extern "C"

namespace muster::dataplane {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::ProcessWorld;
using testing::RankOutcome;
using ::testing::StartsWith;

constexpr int kRanks = 3;
// More steps than a group takes.
constexpr int kStepsMax = 200;

std::string TestedBackend() {
  const char* const backend = std::getenv("MUSTER_TESTED_BACKEND");
  return backend == nullptr ? "gloo" : backend;
}

// The ranks' store. Its calls are steps, and its waits end when a rank is known
// to be gone.
class WatchedStore : public BootstrapStore {
 public:
  WatchedStore(std::shared_ptr<BootstrapStore> store, Interruption interruption)
      : store_(std::move(store)), interruption_(std::move(interruption)) {}

  Status Set(const std::string& key, const std::string& value) override {
    ::Step();
    return store_->Set(key, value);
  }
  StatusOr<std::vector<std::string>> Get(const std::vector<std::string>& keys,
                                         Instant deadline) override {
    ::Step();
    for (;;) {
      if (Status gone = interruption_.status(); !gone.ok()) return gone;
      auto values = store_->Get(
          keys,
          std::min(deadline, Clock::now() + std::chrono::milliseconds(5)));
      if (!IsDeadlineExceeded(values.status()) || Clock::now() >= deadline) {
        return values;
      }
    }
  }
  StatusOr<int64_t> Add(const std::string& key, int64_t delta) override {
    return store_->Add(key, delta);
  }

 private:
  const std::shared_ptr<BootstrapStore> store_;
  const Interruption interruption_;
};

// Interrupts the forming of the group when `gone` is closed, which means that
// rank `victim` is gone.
void Watch(int gone, int victim, const Interruption& interruption) {
  std::thread([=] {
    AwaitEnd(gone);
    Status why = UnavailableError(absl::StrCat("rank ", victim, " is gone"));
    SetCulpritRank(why, victim);
    interruption.Interrupt(why);
  }).detach();
}

// Forms a group whose rank `victim` goes before step `step`. Returns the ranks'
// outcomes, the victim's last.
std::vector<RankOutcome> FormWithout(int victim, int step, Fate fate) {
  std::array<int, 2> gone;
  std::array<int, 2> over;
  CHECK_EQ(pipe(gone.data()), 0);
  CHECK_EQ(pipe(over.data()), 0);
  const auto body = [&](Communicator& communicator) {
    g_steps_left = -1;
    if (fate == Fate::kStandsStill) return std::string("formed");
    std::vector<int32_t> values = {1};
    const Status status = communicator.Run(Collective{
        .kind = CollectiveKind::kAllReduce, .tensors = {Tensor(values)}});
    return status.ok() ? "formed" : status.ToString();
  };
  const auto adjust = [&](BackendOptions& options) {
    close(over[1]);
    options.store =
        std::make_shared<WatchedStore>(options.store, options.interruption);
    if (options.rank != victim) {
      close(gone[1]);
      Watch(gone[0], victim, options.interruption);
      return;
    }
    g_gone = gone[1];
    g_over = over[0];
    g_fate = fate;
    g_steps_left = step;
  };
  ProcessWorld world(TestedBackend(), kRanks, body, {.adjust = adjust});
  close(gone[0]);
  close(gone[1]);
  close(over[0]);
  std::vector<RankOutcome> outcomes = world.JoinAllBut(victim);
  close(over[1]);
  std::vector<RankOutcome> last = world.Join();
  outcomes.push_back(std::move(last.front()));
  return outcomes;
}

class FormingFateTest
    : public ::testing::TestWithParam<std::tuple<Fate, int /*victim*/>> {};

TEST_P(FormingFateTest, TheOthersHearOfARankThatGoesAtAnyStep) {
  const auto [fate, victim] = GetParam();
  int step = 0;
  for (; step < kStepsMax; ++step) {
    std::vector<RankOutcome> outcomes = FormWithout(victim, step, fate);
    const RankOutcome last = std::move(outcomes.back());
    outcomes.pop_back();
    if (last.report == "formed") break;
    EXPECT_TRUE(WIFSIGNALED(last.wait_status)) << last.report;
    for (const RankOutcome& outcome : outcomes) {
      // Or a report names a rank that noticed earlier and has closed its port,
      // which resets connections that it had not accepted yet. The client's
      // error resolver corrects this.
      EXPECT_THAT(
          outcome.report,
          AnyOf("formed",
                AllOf(StartsWith("UNAVAILABLE"),
                      AnyOf(HasSubstr(absl::StrCat("rank ", victim)),
                            HasSubstr("cannot connect to rank "),
                            HasSubstr("refuses a connection"),
                            AllOf(HasSubstr("rank "),
                                  HasSubstr("Connection reset by peer"))))))
          << "step " << step;
      if (fate == Fate::kDies) {
        EXPECT_NE(outcome.report, "formed");
      }
    }
  }
  EXPECT_GE(step, 10);
  EXPECT_LT(step, kStepsMax);
  RecordProperty("steps", step);
}

// With few descriptors, clients that hold connections to a rank's port do not
// keep it from forming a group or from training.
TEST(FormingTest, StrangersThatSayNothingTakeNoDescriptors) {
  const auto body = [](Communicator& communicator) -> std::string {
    // Run until all ranks have refused many of them.
    std::vector<int64_t> refused = {0};
    while (refused[0] < 200) {
      refused[0] = refused_connections;
      const Status status =
          communicator.Run(Collective{.kind = CollectiveKind::kAllReduce,
                                      .tensors = {Tensor(refused)},
                                      .reduce_op = ReduceOp::kMin});
      if (!status.ok()) return status.ToString();
    }
    const int descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return descriptor >= 0 ? "trained" : std::strerror(errno);
  };
  const auto begin = [](int) {
    const rlimit few = {.rlim_cur = 128, .rlim_max = 128};
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    g_is_flooded = true;
  };
  ProcessWorld world(TestedBackend(), kRanks, body, {.begin = begin});
  for (const RankOutcome& outcome : world.Join()) {
    EXPECT_EQ(outcome.report, "trained");
  }
}

INSTANTIATE_TEST_SUITE_P(
    FatesAndVictims, FormingFateTest,
    ::testing::Combine(::testing::Values(Fate::kDies, Fate::kStandsStill),
                       ::testing::Values(0, 1, 2)));

}  // namespace
}  // namespace muster::dataplane
