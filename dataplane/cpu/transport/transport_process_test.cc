// Tests the gloo and the shm backend between processes that are killed and
// stopped.

#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/communicator.h"
#include "dataplane/culprit.h"
#include "dataplane/testing/process_world.h"
#include "dataplane/testing/sample.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

using ::testing::HasSubstr;
using testing::ProcessWorld;
using testing::RankOutcome;
using testing::Sample;
using ::testing::StartsWith;

// The shm backend has the connections, threads and failures of gloo.
std::string TestedBackend() {
  const char* const backend = std::getenv("MUSTER_TESTED_BACKEND");
  return backend == nullptr ? "gloo" : backend;
}

constexpr size_t kSmall = 8;
constexpr size_t kStream = 300'000;
// More than one piece when shm runs on several hosts.
constexpr size_t kPieces = 5'000'000;

std::string Report(const Status& status) {
  const auto culprit = CulpritRank(status);
  return absl::StrCat(StatusCodeToString(status.code()), " culprit ",
                      culprit.value_or(-1), ": ", status.message());
}

// Runs collectives until one fails. Reports ready after the first, which may
// take longer than `timeout`.
std::string RunUntilFailure(Communicator& communicator, CollectiveKind kind,
                            size_t count, std::chrono::milliseconds timeout) {
  Sample sample(kind, {.rank = communicator.rank(),
                       .world_size = communicator.world_size(),
                       .count = count});
  sample.collective.reduce_op = ReduceOp::kMax;
  sample.collective.timeout = timeout;
  for (int round = 0;; ++round) {
    const Instant start = Clock::now();
    const Status status = round % 2 == 0
                              ? communicator.Run(Collective(sample.collective))
                              : communicator.Start(sample.collective)->Wait();
    if (!status.ok()) {
      const std::chrono::duration<double> took = Clock::now() - start;
      return absl::StrCat(took.count() < 10 ? "soon " : "late ",
                          Report(status));
    }
    if (round == 0) ProcessWorld::Ready();
  }
}

// Sends round the ring of ranks until a send fails.
std::string SendUntilFailure(Communicator& communicator, size_t count) {
  const testing::SampleOptions options = {
      .rank = communicator.rank(),
      .world_size = communicator.world_size(),
      .count = count};
  const Sample send(CollectiveKind::kSend, options);
  const Sample receive(CollectiveKind::kRecv, options);
  for (int round = 0;; ++round) {
    const Instant start = Clock::now();
    const auto sent = communicator.Start(send.collective);
    const auto received = communicator.Start(receive.collective);
    Status status = received->Wait();
    if (status.ok()) status = sent->Wait();
    if (!status.ok()) {
      const std::chrono::duration<double> took = Clock::now() - start;
      return absl::StrCat(took.count() < 10 ? "soon " : "late ",
                          Report(status));
    }
    if (round == 0) ProcessWorld::Ready();
  }
}

TEST(GlooProcessTest, ProcessesReduceAndLeaveInAnyOrder) {
  ProcessWorld world(TestedBackend(), 4, [](Communicator& communicator) {
    for (int i = 0; i < 20; ++i) {
      std::vector<int64_t> values(i % 2 == 0 ? kSmall : kStream / 10,
                                  communicator.rank() + i);
      const Status status = communicator
                                .Start({.kind = CollectiveKind::kAllReduce,
                                        .tensors = {Tensor(values)}})
                                ->Wait();
      if (!status.ok()) return Report(status);
      if (values.back() != 6 + 4 * i) return std::string("wrong sum");
    }
    // The first rank to finish leaves at once, while others may still run.
    return std::string("done");
  });
  for (const RankOutcome& outcome : world.Join()) {
    EXPECT_EQ(outcome.report, "done");
    EXPECT_EQ(outcome.wait_status, 0);
  }
}

class GlooProcessFailureTest : public ::testing::TestWithParam<size_t> {};

TEST_P(GlooProcessFailureTest, KilledRankIsNamedOnEveryOtherRank) {
  const size_t count = GetParam();
  constexpr int kVictim = 2;
  for (const int world_size : {3, 4, 6}) {
    ProcessWorld world(
        TestedBackend(), world_size, [&](Communicator& communicator) {
          return RunUntilFailure(communicator, CollectiveKind::kAllReduce,
                                 count, std::chrono::minutes(30));
        });
    for (int rank = 0; rank < world_size; ++rank) world.AwaitReady(rank);
    world.Signal(kVictim, SIGKILL);
    const std::vector<RankOutcome> outcomes = world.Join();
    for (int rank = 0; rank < world_size; ++rank) {
      if (rank == kVictim) {
        EXPECT_TRUE(WIFSIGNALED(outcomes[rank].wait_status));
        continue;
      }
      EXPECT_THAT(outcomes[rank].report,
                  StartsWith("soon UNAVAILABLE culprit 2: all_reduce #"))
          << "rank " << rank << " of " << world_size;
      EXPECT_THAT(outcomes[rank].report,
                  HasSubstr("rank 2 closed its connection without leaving"));
    }
  }
}

TEST(GlooProcessTest, KilledRankIsNamedInALargeAllReduce) {
  constexpr int kRanks = 4;
  for (int victim = 0; victim < kRanks; ++victim) {
    ProcessWorld world(
        TestedBackend(), kRanks, [&](Communicator& communicator) {
          return RunUntilFailure(communicator, CollectiveKind::kAllReduce,
                                 kPieces, std::chrono::minutes(30));
        });
    for (int rank = 0; rank < kRanks; ++rank) world.AwaitReady(rank);
    world.Signal(victim, SIGKILL);
    const std::vector<RankOutcome> outcomes = world.Join();
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) continue;
      EXPECT_THAT(outcomes[rank].report,
                  StartsWith(absl::StrCat("soon UNAVAILABLE culprit ", victim,
                                          ": all_reduce #")))
          << "rank " << rank;
    }
  }
}

TEST(GlooProcessTest, StoppedRankEndsALargeAllReduceAtTheDeadline) {
  constexpr int kRanks = 4;
  for (const int victim : {0, 3}) {
    ProcessWorld world(
        TestedBackend(), kRanks, [&](Communicator& communicator) {
          return RunUntilFailure(communicator, CollectiveKind::kAllReduce,
                                 kPieces, std::chrono::seconds(5));
        });
    for (int rank = 0; rank < kRanks; ++rank) world.AwaitReady(rank);
    world.Signal(victim, SIGSTOP);
    for (const RankOutcome& outcome : world.JoinAllBut(victim)) {
      EXPECT_THAT(outcome.report, StartsWith("soon DEADLINE_EXCEEDED "));
      EXPECT_THAT(outcome.report, HasSubstr("timed out after 5s waiting for "));
    }
    world.Signal(victim, SIGCONT);
    world.Join();
  }
}

TEST_P(GlooProcessFailureTest, KilledRankIsNamedInEveryKindOfCollective) {
  const size_t count = GetParam();
  constexpr int kRanks = 4;
  for (const CollectiveKind kind : testing::KindsWithTensors()) {
    for (const int victim : {0, 2}) {
      ProcessWorld world(TestedBackend(), kRanks,
                         [&](Communicator& communicator) {
                           return RunUntilFailure(communicator, kind, count,
                                                  std::chrono::minutes(30));
                         });
      for (int rank = 0; rank < kRanks; ++rank) world.AwaitReady(rank);
      world.Signal(victim, SIGKILL);
      const std::vector<RankOutcome> outcomes = world.Join();
      for (int rank = 0; rank < kRanks; ++rank) {
        if (rank == victim) continue;
        EXPECT_THAT(outcomes[rank].report,
                    StartsWith(absl::StrCat("soon UNAVAILABLE culprit ", victim,
                                            ": ", CollectiveKindName(kind))))
            << "rank " << rank;
      }
    }
  }
}

TEST_P(GlooProcessFailureTest, KilledRankIsNamedInSendsAndReceives) {
  const size_t count = GetParam();
  constexpr int kRanks = 4;
  for (const int victim : {0, 2}) {
    ProcessWorld world(TestedBackend(), kRanks,
                       [&](Communicator& communicator) {
                         return SendUntilFailure(communicator, count);
                       });
    for (int rank = 0; rank < kRanks; ++rank) world.AwaitReady(rank);
    world.Signal(victim, SIGKILL);
    const std::vector<RankOutcome> outcomes = world.Join();
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) continue;
      EXPECT_THAT(
          outcomes[rank].report,
          StartsWith(absl::StrCat("soon UNAVAILABLE culprit ", victim, ": ")))
          << "rank " << rank;
    }
  }
}

TEST(GlooProcessTest, WhatWasSentLastReachesWhoIsSlow) {
  ProcessWorld world(TestedBackend(), 4, [](Communicator& communicator) {
    // So many that the receiver is still taking them when their sender leaves.
    constexpr int kMessages = 6;
    std::vector<int64_t> values(4096, communicator.rank());
    const auto start = [&](CollectiveKind kind, int peer) {
      Collective collective = {.kind = kind, .peer = peer};
      (kind == CollectiveKind::kSend ? collective.inputs : collective.outputs)
          .push_back(Tensor(values));
      return communicator.Start(collective);
    };
    if (communicator.rank() != 0) {
      std::vector<std::shared_ptr<Work>> sent;
      sent.reserve(kMessages);
      for (int i = 0; i < kMessages; ++i) {
        sent.push_back(start(CollectiveKind::kSend, 0));
      }
      Status status;
      for (const auto& work : sent) status.Update(work->Wait());
      // Leaves the group at once.
      return Report(status);
    }
    int64_t sum = 0;
    for (int peer = 1; peer < 4; ++peer) {
      for (int i = 0; i < kMessages; ++i) {
        const auto work = start(CollectiveKind::kRecv, peer);
        const Status status = work->Wait();
        if (!status.ok()) return Report(status);
        sum += values.back();
      }
    }
    return absl::StrCat(sum);
  });
  const std::vector<RankOutcome> outcomes = world.Join();
  EXPECT_EQ(outcomes[0].report, "36");
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(outcomes[rank].report, "OK culprit -1: ");
  }
}

TEST_P(GlooProcessFailureTest, StoppedRankEndsTheOthersAtTheDeadline) {
  const size_t count = GetParam();
  ProcessWorld world(TestedBackend(), 3, [&](Communicator& communicator) {
    return RunUntilFailure(communicator, CollectiveKind::kAllReduce, count,
                           std::chrono::seconds(2));
  });
  for (int rank = 0; rank < 3; ++rank) world.AwaitReady(rank);
  world.Signal(1, SIGSTOP);
  // Rank 1 ends only after SIGCONT, so the others are joined first.
  std::vector<RankOutcome> outcomes;
  outcomes = world.JoinAllBut(1);
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_THAT(outcome.report, StartsWith("soon DEADLINE_EXCEEDED "));
    EXPECT_THAT(outcome.report, HasSubstr("timed out after 2s"));
  }
  world.Signal(1, SIGCONT);
  outcomes = world.Join();
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_THAT(outcomes[0].report, HasSubstr("all_reduce #"));
}

INSTANTIATE_TEST_SUITE_P(SmallAndStream, GlooProcessFailureTest,
                         ::testing::Values(kSmall, kStream));

}  // namespace
}  // namespace muster::dataplane
