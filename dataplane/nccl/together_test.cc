// Batches of sends and receives, on the fake NCCL and CUDA.

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dataplane/culprit.h"
#include "dataplane/nccl/testing/backend_test.h"
#include "dataplane/nccl/testing/host_nccl.h"
#include "dataplane/observe/consistency_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::nccl {
namespace {

using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

class TogetherTest : public testing::BackendTest {
 protected:
  static Collective MakeSend(const Tensor& tensor, int peer) {
    return {.kind = CollectiveKind::kSend, .inputs = {tensor}, .peer = peer};
  }
  static Collective MakeRecv(const Tensor& tensor, int peer) {
    return {.kind = CollectiveKind::kRecv, .outputs = {tensor}, .peer = peer};
  }

  void Start(int rank, const std::vector<Collective>& collectives) {
    Backend& backend = *backends_[static_cast<size_t>(rank)];
    backend.BeginTogether();
    for (const Collective& one : collectives) {
      works_.push_back(backend.Start(one));
    }
    backend.EndTogether();
  }

  void WaitForAll() {
    for (const auto& work : works_) EXPECT_EQ(Wait(work), OkStatus());
  }

  std::vector<std::shared_ptr<Work>> works_;
};

// As in NCCL, a send waits in its stream until it is received: without a batch
// the two would wait for ever.
TEST_F(TogetherTest, TwoThatBothSendFirstAreOneGroupOfNcclEach) {
  Make(2);
  testing::TakeLaunches();
  testing::TakeMade();
  const std::vector<Tensor> got = {OnDevice(3, 0), OnDevice(3, 0)};
  for (int rank = 0; rank < 2; ++rank) {
    Start(rank, {MakeSend(OnDevice(3, static_cast<float>(rank + 1)), 1 - rank),
                 MakeRecv(got[static_cast<size_t>(rank)], 1 - rank)});
  }
  WaitForAll();
  EXPECT_THAT(GetValues(got[0]), Each(2));
  EXPECT_THAT(GetValues(got[1]), Each(1));
  EXPECT_EQ(works_[1]->source_rank(), 1);
  EXPECT_THAT(testing::TakeLaunches(), ElementsAre(2, 2));
  // The batches use the group's communicator.
  EXPECT_EQ(testing::TakeMade(), (testing::Made{.by_id = 2}));
}

TEST_F(TogetherTest, AtDebugLevelDetailTheyAreOneGroupAsWell) {
  Make(2);
  for (int rank = 0; rank < 2; ++rank) {
    auto& backend = backends_[static_cast<size_t>(rank)];
    backend = std::make_unique<ConsistencyCheck>(
        std::move(backend), ConsistencyCheckOptions{.group_name = "world",
                                                    .rank = rank,
                                                    .world_size = 2,
                                                    .store = store_});
  }
  testing::TakeLaunches();
  testing::TakeMade();
  const std::vector<Tensor> got = {OnDevice(3, 0), OnDevice(3, 0)};
  for (int rank = 0; rank < 2; ++rank) {
    works_.push_back(AllReduce(rank, OnDevice(1, 1)));
    Start(rank, {MakeSend(OnDevice(3, static_cast<float>(rank + 1)), 1 - rank),
                 MakeRecv(got[static_cast<size_t>(rank)], 1 - rank)});
  }
  WaitForAll();
  EXPECT_THAT(GetValues(got[0]), Each(2));
  EXPECT_THAT(GetValues(got[1]), Each(1));
  EXPECT_THAT(testing::TakeLaunches(), UnorderedElementsAre(1, 1, 2, 2));
  EXPECT_EQ(testing::TakeMade(), (testing::Made{.by_id = 2}));
}

TEST_F(TogetherTest, InARingEachWithBothNeighbours) {
  Make(3);
  std::vector<Tensor> got;
  for (int rank = 0; rank < 3; ++rank) {
    const Tensor mine = OnDevice(1, static_cast<float>(rank));
    got.push_back(OnDevice(1, -1));
    got.push_back(OnDevice(1, -1));
    const int next = (rank + 1) % 3;
    const int previous = (rank + 2) % 3;
    Start(rank, {MakeSend(mine, next), MakeSend(mine, previous),
                 MakeRecv(got[got.size() - 2], previous),
                 MakeRecv(got[got.size() - 1], next)});
  }
  WaitForAll();
  for (int rank = 0; rank < 3; ++rank) {
    const auto place = static_cast<size_t>(2 * rank);
    EXPECT_THAT(GetValues(got[place]), Each((rank + 2) % 3));
    EXPECT_THAT(GetValues(got[place + 1]), Each((rank + 1) % 3));
  }
}

TEST_F(TogetherTest, ARankMaySendToItself) {
  Make(1);
  const Tensor got = OnDevice(3, 0);
  Collective sends = MakeSend(OnDevice(3, 7), 0);
  Collective receives = MakeRecv(got, 0);
  Start(0, {receives, sends});
  WaitForAll();
  EXPECT_THAT(GetValues(got), Each(7));
  // Outside a batch either of them would wait for ever.
  for (Collective* const one : {&sends, &receives}) {
    EXPECT_EQ(backends_[0]->Supports(*one).code(), StatusCode::kUnimplemented);
    one->begins_together = true;
    EXPECT_EQ(backends_[0]->Supports(*one), OkStatus());
  }
}

// A batch takes no collective number, so ranks outside it count alike.
TEST_F(TogetherTest, TheyAreNoCollectivesThatRanksMayMiss) {
  Make(3, 0);
  Start(0, {MakeSend(OnDevice(1, 1), 1)});
  Start(1, {MakeRecv(OnDevice(1, 0), 0)});
  const Instant deadline = Clock::now() + milliseconds(400);
  Collective late = {.kind = CollectiveKind::kAllReduce,
                     .tensors = {OnDevice(1, 1)},
                     .timeout = milliseconds(400)};
  late.deadline = Clock::now() + std::chrono::minutes(1);
  // By then it has noted that it has come to its first collective.
  const auto waits = backends_[2]->Start(late);
  late.deadline = deadline;
  const Status status = Wait(backends_[0]->Start(late));
  WaitForAll();
  EXPECT_THAT(CulpritRanks(status), ElementsAre(1));
  backends_[2]->Abort(status);
  EXPECT_EQ(Wait(waits), status);
}

TEST_F(TogetherTest, WhoDoesNotComeIsNamed) {
  Make(3, 0);
  Collective late = MakeRecv(OnDevice(1, 0), 2);
  late.timeout = milliseconds(20);
  late.deadline = Clock::now() + late.timeout;
  Start(0, {late, MakeSend(OnDevice(1, 0), 1)});
  const Status status = Wait(works_[1]);
  EXPECT_EQ(std::string(status.message()),
            "recv #0 on group \"world\": timed out after 20ms waiting for "
            "rank 2");
  EXPECT_THAT(CulpritRanks(status), ElementsAre(2));
}

}  // namespace
}  // namespace muster::dataplane::nccl
