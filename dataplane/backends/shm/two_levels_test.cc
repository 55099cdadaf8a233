// What the conformance suites do not look at, in groups over several hosts.

#include "dataplane/backends/shm/two_levels.h"

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dataplane/communicator.h"
#include "dataplane/testing/local_world.h"
#include "dataplane/testing/sample.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

using ::testing::HasSubstr;
using testing::LocalWorld;
using testing::Sample;

constexpr int kRanks = 4;
constexpr std::chrono::seconds kSoon{10};

constexpr CollectiveKind kTaken[] = {CollectiveKind::kAllReduce,
                                     CollectiveKind::kBroadcast,
                                     CollectiveKind::kReduce,
                                     CollectiveKind::kAllGather,
                                     CollectiveKind::kAllGatherIntoTensor,
                                     CollectiveKind::kReduceScatter,
                                     CollectiveKind::kReduceScatterTensor};

// Ranks are on these hosts while it lives: "0011" are two on each of two.
class OnHosts {
 public:
  explicit OnHosts(const char* hosts) {
    setenv("MUSTER_SHM_HOSTS", "address", 1);
    setenv("MUSTER_LOCAL_WORLD_HOSTS", hosts, 1);
  }
  ~OnHosts() {
    unsetenv("MUSTER_SHM_HOSTS");
    unsetenv("MUSTER_LOCAL_WORLD_HOSTS");
  }
};

class TwoLevelsTest : public ::testing::TestWithParam<const char*> {
 private:
  const OnHosts on_hosts_{GetParam()};
};

TEST_P(TwoLevelsTest, WhatWentInTwoLevelsIsKnown) {
  LocalWorld world({.backend = "shm", .world_size = kRanks});
  world.OnEachRank([](Communicator& communicator) {
    const auto ran = [&](CollectiveKind kind) {
      Sample sample(kind, {.rank = communicator.rank(), .world_size = kRanks});
      EXPECT_TRUE(communicator.Start(sample.collective)->Wait().ok());
      const LastRun last = communicator.last_run(DeviceType::kCpu);
      EXPECT_EQ(last.backend, "shm");
      return last.algorithm;
    };
    EXPECT_EQ(ran(CollectiveKind::kAllReduce), "two_levels");
    EXPECT_EQ(ran(CollectiveKind::kAllToAll), "direct");
    EXPECT_EQ(ran(CollectiveKind::kBarrier), "two_levels");
  });
}

// One lane carries small tensors and all carry large ones: ranks that differ in
// this meet none the less.
TEST_P(TwoLevelsTest, RanksOfWhichOneHasALargeTensorAreAllToldSo) {
  for (const CollectiveKind kind : kTaken) {
    for (const int odd_one : {0, 1, kRanks - 1}) {
      for (const bool odd_is_large : {false, true}) {
        SCOPED_TRACE(absl::StrCat(CollectiveKindName(kind), ", rank ", odd_one,
                                  odd_is_large ? " large" : " small"));
        LocalWorld world({.backend = "shm", .world_size = kRanks});
        world.OnEachRank([&](Communicator& communicator) {
          const int rank = communicator.rank();
          const bool is_large = (rank == odd_one) == odd_is_large;
          Sample sample(kind, {.rank = rank,
                               .world_size = kRanks,
                               .count = is_large ? 50'000u : 8u});
          absl::Status status =
              communicator.Start(sample.collective)->Wait(Clock::now() + kSoon);
          // Some are over for a rank when it has given what it has.
          for (int i = 0; i < 2 && status.ok(); ++i) {
            Sample meeting(CollectiveKind::kAllToAll,
                           {.rank = rank, .world_size = kRanks});
            status = communicator.Start(meeting.collective)
                         ->Wait(Clock::now() + kSoon);
          }
          EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
              << status;
          EXPECT_THAT(std::string(status.message()),
                      HasSubstr(CollectiveKindName(kind)));
        });
      }
    }
  }
}

// Its host knows, when all else are done: nobody else says so.
TEST(TwoHostsTest, ARankThatExpectsALargeBroadcastIsToldByItsHost) {
  const OnHosts on_hosts("0011");
  LocalWorld world({.backend = "shm", .world_size = kRanks});
  world.OnEachRank([&](Communicator& communicator) {
    const int rank = communicator.rank();
    Sample sample(CollectiveKind::kBroadcast,
                  {.rank = rank,
                   .world_size = kRanks,
                   .count = rank == kRanks - 1 ? 50'000u : 8u});
    const absl::Status status =
        communicator.Start(sample.collective)->Wait(Clock::now() + kSoon);
    if (communicator.rank() < 2) return;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  });
}

INSTANTIATE_TEST_SUITE_P(Hosts, TwoLevelsTest,
                         ::testing::Values("0011", "0110", "0012"));

}  // namespace
}  // namespace muster::dataplane
