// Kills or stops a rank at a random point of a collective, send or receive in
// shared memory. To run more rounds, or one with the seed that a failure has
// printed:
//
//   ./dev test //dataplane/cpu/shm:shm_faults_test
//       --test_env=MUSTER_SHM_FAULTS=500 --test_timeout=1800
//   ... --test_env=MUSTER_SHM_FAULT_SEED=17 --test_env=MUSTER_SHM_FAULTS=1

#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dataplane/communicator.h"
#include "dataplane/culprit.h"
#include "dataplane/testing/process_world.h"
#include "dataplane/testing/sample.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane {
namespace {

using std::chrono::milliseconds;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using testing::ProcessWorld;
using testing::RankOutcome;
using testing::Sample;
using ::testing::StartsWith;

// The timeout of collectives in a group with a stopped rank.
constexpr milliseconds kTimeout(500);

uint64_t GetNumber(const char* variable, uint64_t otherwise) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

struct Fault {
  explicit Fault(uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](size_t end) {
      return static_cast<size_t>(random() % end);
    };
    // Also more ranks than processors.
    constexpr int kWorldSizes[] = {2, 2, 3, 4, 4, 8, 16};
    // For one round, for a few, and for many.
    constexpr size_t kCounts[] = {1, 1000, 100'000, 1'000'000};
    const auto kinds = testing::KindsWithTensors();
    world_size = kWorldSizes[below(std::size(kWorldSizes))];
    kind = kinds[below(kinds.size())];
    count = kCounts[below(std::size(kCounts))];
    if (world_size > 4) count = std::min<size_t>(count, 10'000);
    victim = static_cast<int>(below(world_size));
    stops = below(2) == 0;
    delay_us = static_cast<int64_t>(1 + below(2000));
    is_symmetric = below(2) == 0;
    is_read = below(3) == 0;
  }

  std::string Describe() const {
    return absl::StrCat(
        "rank ", victim, " of ", world_size,
        stops ? " is stopped in " : " is killed in ", CollectiveKindName(kind),
        " of ", count, is_symmetric ? " in symmetric memory" : "",
        is_read ? " by single_copy" : "", " after ", delay_us, " us");
  }

  int world_size = 0;
  CollectiveKind kind = CollectiveKind::kBarrier;
  size_t count = 0;
  int victim = 0;
  bool stops = false;
  int64_t delay_us = 0;
  bool is_symmetric = false;
  // Read by the system, if in ordinary memory.
  bool is_read = false;
};

StatusOr<std::shared_ptr<SymmetricMemory>> Allocate(Communicator& communicator,
                                                    size_t bytes) {
  return communicator.AllocateSymmetric(
      {.bytes = bytes,
       .device = DeviceType::kCpu,
       .deadline = Clock::now() + std::chrono::minutes(1)});
}

// Moves the tensors of `collective`, which are zeros, to `memory`, which has
// room.
void MoveTo(const SymmetricMemory& memory, Collective& collective) {
  auto* next = static_cast<std::byte*>(memory.data());
  for (Collective::Tensors* tensors :
       {&collective.tensors, &collective.inputs, &collective.outputs}) {
    for (Tensor& tensor : *tensors) {
      tensor = Tensor(next, tensor.data_type(), {tensor.element_count()});
      next += (tensor.bytes() + 63) / 64 * 64;
    }
  }
}

void Kill(int) { kill(getpid(), SIGKILL); }
void Stop(int) { kill(getpid(), SIGSTOP); }

// Makes `fault` happen to this process after its delay.
void EndWithin(const Fault& fault) {
  signal(SIGALRM, fault.stops ? &Stop : &Kill);
  itimerval timer = {};
  timer.it_value.tv_usec = fault.delay_us;
  setitimer(ITIMER_REAL, &timer, nullptr);
}

std::string FormatReport(const Status& failure) {
  return absl::StrCat(StatusCodeToString(failure.code()), " culprit ",
                      CulpritRank(failure).value_or(-1), ": ",
                      failure.message());
}

milliseconds GetTimeout(const Fault& fault, bool is_first) {
  // On a loaded machine some ranks start late.
  return fault.stops && !is_first ? kTimeout
                                  : milliseconds(std::chrono::minutes(30));
}

std::string RunUntilFailure(Communicator& communicator, const Fault& fault) {
  Sample sample(fault.kind, {.rank = communicator.rank(),
                             .world_size = communicator.world_size(),
                             .count = fault.count});
  sample.collective.reduce_op = ReduceOp::kMax;
  std::shared_ptr<SymmetricMemory> memory;
  if (fault.is_symmetric) {
    // At most an input and an output per rank.
    const size_t parts = 2 * static_cast<size_t>(fault.world_size);
    auto allocated =
        Allocate(communicator, parts * (fault.count * sizeof(float) + 64));
    if (!allocated.ok()) return allocated.status().ToString();
    memory = *std::move(allocated);
    MoveTo(*memory, sample.collective);
  }
  for (bool is_first = true;; is_first = false) {
    sample.collective.timeout = GetTimeout(fault, is_first);
    const Status status = communicator.Run(Collective(sample.collective));
    if (!status.ok()) return FormatReport(status);
    if (!is_first) continue;
    ProcessWorld::Ready();
    if (communicator.rank() == fault.victim) EndWithin(fault);
  }
}

// Each rank sends to the next.
std::string PassOnUntilFailure(Communicator& communicator, const Fault& fault) {
  const int world_size = communicator.world_size();
  std::vector<float> given(fault.count, 1);
  std::vector<float> got(fault.count);
  Collective receive = {
      .kind = CollectiveKind::kRecv,
      .outputs = {Tensor(got)},
      .peer = (communicator.rank() + world_size - 1) % world_size};
  Collective send = {.kind = CollectiveKind::kSend,
                     .inputs = {Tensor(given)},
                     .peer = (communicator.rank() + 1) % world_size};
  for (bool is_first = true;; is_first = false) {
    receive.timeout = send.timeout = GetTimeout(fault, is_first);
    const auto comes = communicator.Start(receive);
    const auto goes = communicator.Start(send);
    Status status = comes->Wait();
    if (status.ok()) status = goes->Wait();
    if (!status.ok()) return FormatReport(status);
    if (!is_first) continue;
    ProcessWorld::Ready();
    if (communicator.rank() == fault.victim) EndWithin(fault);
  }
}

using UntilFailure = std::string(Communicator&, const Fault&);

// `what`: the beginning of the labels of its operations.
void Happen(const Fault& fault, UntilFailure* run, const std::string& what) {
  ProcessWorld world("shm", fault.world_size, [&](Communicator& communicator) {
    return communicator.backend_name() == "shm"
               ? run(communicator, fault)
               : absl::StrCat("runs on ", communicator.backend_name());
  });
  for (int rank = 0; rank < fault.world_size; ++rank) world.AwaitReady(rank);
  for (const RankOutcome& outcome : world.JoinAllBut(fault.victim)) {
    EXPECT_EQ(outcome.wait_status, 0);
    // The culprit of a stop is not checked: other ranks wait for ranks that
    // wait for the stopped one.
    EXPECT_THAT(
        outcome.report,
        StartsWith(fault.stops ? std::string("DEADLINE_EXCEEDED ")
                               : absl::StrCat("UNAVAILABLE culprit ",
                                              fault.victim, ": ", what)));
  }
  world.Signal(fault.victim, SIGCONT);
  for (const RankOutcome& outcome : world.Join()) {
    if (fault.stops) {
      EXPECT_NE(outcome.report, "");
    }
    EXPECT_EQ(WIFSIGNALED(outcome.wait_status), !fault.stops);
  }
}

void ExpectNoHang(bool in_collectives) {
  const uint64_t first = GetNumber("MUSTER_SHM_FAULT_SEED", 1);
  const uint64_t rounds = GetNumber("MUSTER_SHM_FAULTS", 12);
  for (uint64_t seed = first; seed < first + rounds; ++seed) {
    const Fault fault(seed);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", fault.Describe()));
    if (in_collectives) {
      if (fault.is_read) setenv("MUSTER_SHM_ALGORITHM", "single_copy", 1);
      Happen(fault, &RunUntilFailure,
             std::string(CollectiveKindName(fault.kind)));
      unsetenv("MUSTER_SHM_ALGORITHM");
    } else {
      Happen(fault, &PassOnUntilFailure, "");
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(ShmFaultsTest, NoRankHangsWhateverHappensToAnother) {
  ExpectNoHang(/*in_collectives=*/true);
}

TEST(ShmFaultsTest, NorInSendsAndReceives) {
  ExpectNoHang(/*in_collectives=*/false);
}

std::string BarriersUntilFailure(Communicator& communicator,
                                 const Fault& fault) {
  for (;;) {
    const Status status = communicator.Run(
        Collective{.timeout = GetTimeout(fault, /*is_first=*/false)});
    if (!status.ok()) return status.ToString();
  }
}

// The fault comes at any moment from before the rank joins to just after.
TEST(ShmFaultsTest, NorWhileTheGroupIsFormed) {
  const uint64_t first = GetNumber("MUSTER_SHM_FAULT_SEED", 1);
  const uint64_t rounds = GetNumber("MUSTER_SHM_FAULTS", 8);
  for (uint64_t seed = first; seed < first + rounds; ++seed) {
    Fault fault(seed);
    fault.world_size = std::min(fault.world_size, 8);
    fault.victim %= fault.world_size;
    fault.delay_us *= 20;
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", fault.Describe()));
    ProcessWorld world("shm", fault.world_size,
                       [&](Communicator& communicator) {
                         return BarriersUntilFailure(communicator, fault);
                       },
                       {.begin =
                            [&](int rank) {
                              if (rank == fault.victim) EndWithin(fault);
                            },
                        .timeout = std::chrono::seconds(fault.stops ? 2 : 10)});
    // Some reports name a rank that waits for a stopped one, or that left when
    // it saw a dead one: there is no coordinator here, which would know more.
    // But at least one rank has seen a death itself.
    bool is_named = fault.stops;
    for (const RankOutcome& outcome : world.JoinAllBut(fault.victim)) {
      EXPECT_EQ(outcome.wait_status, 0);
      EXPECT_THAT(outcome.report, HasSubstr("culprit_ranks='"));
      is_named |= absl::StrContains(
          outcome.report, absl::StrCat("culprit_ranks='", fault.victim, "'"));
    }
    EXPECT_TRUE(is_named);
    world.Signal(fault.victim, SIGCONT);
  }
}

// Rank 0 uses a tensor whose ends can be read but whose middle cannot. The
// error must come before the timeout.
void ExpectRefusalOfAHole(const std::string& backend,
                          const std::string& algorithm, bool sends) {
  SCOPED_TRACE(absl::StrCat(backend, " ", algorithm, sends ? " send" : ""));
  constexpr size_t kBytes = 4 << 20;
  ProcessWorld world(backend, 2, [&](Communicator& communicator) {
    void* const bytes = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED) return std::string("mmap failed");
    const Tensor tensor(bytes, DataType::kUint8, {kBytes});
    Collective collective = {.kind = CollectiveKind::kBroadcast,
                             .tensors = {tensor},
                             .timeout = std::chrono::seconds(3)};
    Status status = communicator.Run(Collective(collective));
    if (!status.ok()) return status.ToString();
    const LastRun last = communicator.last_run(DeviceType::kCpu);
    if (!algorithm.empty() && last.algorithm != algorithm) {
      return absl::StrCat("went by ", last.algorithm);
    }
    const bool is_root = communicator.rank() == 0;
    auto* const hole = static_cast<std::byte*>(bytes) + kBytes / 4;
    if (is_root && mprotect(hole, kBytes / 4, PROT_NONE) != 0) {
      return std::string("mprotect failed");
    }
    if (!sends) return FormatReport(communicator.Run(collective));
    collective.kind = is_root ? CollectiveKind::kSend : CollectiveKind::kRecv;
    collective.tensors.clear();
    (is_root ? collective.inputs : collective.outputs) = {tensor};
    collective.peer = is_root ? 1 : 0;
    return FormatReport(communicator.Start(collective)->Wait());
  });
  for (const RankOutcome& outcome : world.Join()) {
    EXPECT_THAT(outcome.report,
                ContainsRegex("^INVALID_ARGUMENT culprit 0: [a-z]+ #[12] on "
                              "group \"[^\"]*\": .*memory of rank 0: [^\\[]"));
  }
}

TEST(ShmFaultsTest, ATensorThatCannotBeReadIsTheCulprit) {
  ASSERT_EQ(setenv("MUSTER_SHM_ALGORITHM", "single_copy", 1), 0);
  ExpectRefusalOfAHole("shm", "single_copy", /*sends=*/false);
  ASSERT_EQ(unsetenv("MUSTER_SHM_ALGORITHM"), 0);
  ExpectRefusalOfAHole("shm", "", /*sends=*/true);
  ExpectRefusalOfAHole("gloo", "", /*sends=*/false);
  // The same with all data on connections.
  ASSERT_EQ(setenv("MUSTER_GLOO_PEER_MEMORY", "0", 1), 0);
  ExpectRefusalOfAHole("gloo", "", /*sends=*/false);
  ExpectRefusalOfAHole("gloo", "", /*sends=*/true);
  ASSERT_EQ(unsetenv("MUSTER_GLOO_PEER_MEMORY"), 0);
}

// A rank destroys its group during a collective and reuses its tensor, while
// another rank is late. No rank may take the new contents for a result.
void ExpectThatADestroyedGroupSpoilsNoResult(int world_size) {
  constexpr int kLate = 1;
  constexpr size_t kCount = 4 << 20;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    std::mt19937_64 random(seed);
    Fault fault(seed);
    fault.stops = true;
    fault.delay_us = 250 + random() % 4750;
    const bool frees = random() % 2 == 0;
    SCOPED_TRACE(absl::StrCat("seed ", seed, " after ", fault.delay_us, " us"));
    ProcessWorld world("shm", world_size, [&](Communicator& communicator) {
      auto memory = Allocate(communicator, kCount * sizeof(float));
      if (!memory.ok()) return memory.status().ToString();
      auto* const elements = static_cast<float*>((*memory)->data());
      std::fill_n(elements, kCount, 1.0f);
      const Collective collective = {
          .kind = CollectiveKind::kAllReduce,
          .tensors = {Tensor(elements, DataType::kFloat32, {kCount})}};
      Status status = communicator.Run(Collective());
      if (!status.ok()) return status.ToString();
      ProcessWorld::Ready();
      if (communicator.rank() == kLate) EndWithin(fault);
      if (communicator.rank() == 0) {
        const auto work = communicator.Start(collective);
        // Long enough for all but the late rank to finish their parts.
        const Instant until = Clock::now() + milliseconds(100);
        while (Clock::now() < until && !work->IsCompleted()) {
        }
        communicator.Abort(CancelledError("destroyed"));
        work->Wait().IgnoreError();
        if (frees) *memory = nullptr;
        if (!frees) std::fill_n(elements, kCount, 1000.0f);
        ProcessWorld::Ready();
        return std::string();
      }
      status = communicator.Run(Collective(collective));
      if (!status.ok()) return std::string();
      const auto sum = static_cast<float>(world_size);
      const auto right = std::count(elements, elements + kCount, sum);
      return right == kCount ? "" : absl::StrCat("OK with ", right, " right");
    });
    for (int rank = 0; rank < world_size; ++rank) world.AwaitReady(rank);
    world.AwaitReady(0);
    world.Signal(kLate, SIGCONT);
    for (const RankOutcome& outcome : world.Join()) {
      EXPECT_EQ(outcome.report, "");
      EXPECT_EQ(outcome.wait_status, 0);
    }
  }
}

TEST(ShmFaultsTest, ARankThatDestroysItsGroupSpoilsNoResult) {
  ExpectThatADestroyedGroupSpoilsNoResult(3);
}

// Three ranks on one host and one on another.
TEST(ShmFaultsTest, NorInAGroupOverTwoHosts) {
  ASSERT_EQ(setenv("MUSTER_SHM_HOSTS", "address", 1), 0);
  ASSERT_EQ(setenv("MUSTER_LOCAL_WORLD_HOSTS", "0001", 1), 0);
  ExpectThatADestroyedGroupSpoilsNoResult(4);
  ASSERT_EQ(unsetenv("MUSTER_SHM_HOSTS"), 0);
  ASSERT_EQ(unsetenv("MUSTER_LOCAL_WORLD_HOSTS"), 0);
}

// A stopped rank continues its collective after the others have given it up and
// reused their tensors.
TEST(ShmFaultsTest, ARankThatWasStoppedChangesNothingOfOthers) {
  constexpr int kVictim = 1;
  constexpr size_t kCount = 4 << 20;
  constexpr float kMine = 7;
  // Sent when the ranks shall check their tensors.
  sigset_t looked;
  sigemptyset(&looked);
  sigaddset(&looked, SIGUSR1);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &looked, nullptr), 0);
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    Fault fault(seed);
    fault.stops = true;
    SCOPED_TRACE(absl::StrCat("after ", fault.delay_us, " us"));
    ProcessWorld world("shm", 3, [&](Communicator& communicator) {
      const auto memory = Allocate(communicator, kCount * sizeof(float));
      if (!memory.ok()) return memory.status().ToString();
      auto* const elements = static_cast<float*>((*memory)->data());
      Collective collective = {
          .kind = CollectiveKind::kAllReduce,
          .tensors = {Tensor(elements, DataType::kFloat32, {kCount})}};
      const bool is_victim = communicator.rank() == kVictim;
      Status status = communicator.Run(Collective(collective));
      ProcessWorld::Ready();
      collective.timeout = kTimeout;
      if (is_victim) EndWithin(fault);
      while (status.ok()) status = communicator.Run(Collective(collective));
      if (!IsDeadlineExceeded(status) && !is_victim) {
        return status.ToString();
      }
      if (!is_victim) std::fill_n(elements, kCount, kMine);
      ProcessWorld::Ready();
      int received = 0;
      sigwait(&looked, &received);
      const auto mine = std::count(elements, elements + kCount, kMine);
      return absl::StrCat(mine);
    });
    for (int rank = 0; rank < 3; ++rank) world.AwaitReady(rank);
    for (const int rank : {0, 2}) world.AwaitReady(rank);
    world.Signal(kVictim, SIGCONT);
    world.AwaitReady(kVictim);
    for (int rank = 0; rank < 3; ++rank) world.Signal(rank, SIGUSR1);
    const std::vector<RankOutcome> outcomes = world.Join();
    for (const int rank : {0, 2}) {
      EXPECT_EQ(outcomes[rank].report, absl::StrCat(kCount)) << rank;
    }
  }
}

}  // namespace
}  // namespace muster::dataplane
