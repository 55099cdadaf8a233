// Groups of the nccl backend that are made of ranks of another group, on the
// fake NCCL and CUDA.

#include "dataplane/nccl/split.h"

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dataplane/culprit.h"
#include "dataplane/nccl/nccl_backend.h"
#include "dataplane/nccl/testing/backend_test.h"
#include "dataplane/nccl/testing/host_nccl.h"
#include "dataplane/testing/in_memory_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/nccl_options.h"

namespace muster::dataplane::nccl {
namespace {

using dataplane::testing::InMemoryStore;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::Made;
using testing::TakeMade;

constexpr int kAll = 3;

class SplitTest : public testing::BackendTest {
 protected:
  SplitTest() { TakeMade(); }
  ~SplitTest() override { parts_.clear(); }

  Backend& backend(int rank) { return *backends_[static_cast<size_t>(rank)]; }

  // Splits rank `rank` into part 0, of `size` ranks, as its rank
  // `rank_in_part`.
  void SplitOff(int rank, int rank_in_part, int size,
                Instant deadline = Instant::max()) {
    auto parent_handle = backend(rank).Split({.part = 0, .group_name = "part"});
    EXPECT_NE(parent_handle, nullptr);
    Join(rank_in_part, size, std::move(parent_handle), deadline);
  }

  void Join(int rank, int size, std::shared_ptr<ParentHandle> parent_handle,
            Instant deadline = Instant::max()) {
    parts_.push_back(*CreateNcclBackend(
        platform_, {.rank = rank,
                    .world_size = size,
                    .group_name = "part",
                    .store = part_store_,
                    .deadline = deadline,
                    .device = 0,
                    .parent_handle = std::move(parent_handle)}));
  }

  // Checks an all_reduce on all ranks of `group`, with the values 1, 2, 4, ...
  void ExpectSum(std::vector<std::unique_ptr<Backend>>& group, float sum) {
    std::vector<Tensor> tensors;
    std::vector<std::shared_ptr<Work>> works;
    for (size_t rank = 0; rank < group.size(); ++rank) {
      tensors.push_back(OnDevice(2, static_cast<float>(1 << rank)));
      works.push_back(group[rank]->Start(
          {.kind = CollectiveKind::kAllReduce, .tensors = {tensors.back()}}));
    }
    for (const auto& work : works) EXPECT_EQ(Wait(work), OkStatus());
    for (const Tensor& tensor : tensors) {
      EXPECT_THAT(GetValues(tensor), Each(sum));
    }
  }

  // The error of rank 0 of the part if rank 1 does not come.
  static Status TooLate(const std::string& why) {
    Status status = DeadlineExceededError("group \"part\": " + why);
    SetCulpritRank(status, 1);
    return status;
  }

  std::shared_ptr<InMemoryStore> part_store_ =
      std::make_shared<InMemoryStore>();
  std::vector<std::unique_ptr<Backend>> parts_;
};

TEST_F(SplitTest, ACommunicatorComesOfTheOtherGroupsAndNotOfTheStore) {
  Make(kAll, /*device=*/0);
  EXPECT_NE(backend(1).Split({.part = kNoPart}), nullptr);
  SplitOff(2, 1, 2);
  SplitOff(0, 0, 2);
  std::swap(parts_[0], parts_[1]);
  ExpectSum(parts_, 3);
  ExpectSum(backends_, 7);
  EXPECT_EQ(TakeMade(), (Made{.by_id = 3, .by_split = 2}));
  EXPECT_EQ(part_store_->sets(), 0);
}

TEST_F(SplitTest, SeveralPartsAreMadeAtOnce) {
  Make(kAll, 0);
  std::vector<std::shared_ptr<ParentHandle>> descents;
  for (int rank = 0; rank < kAll; ++rank) {
    descents.push_back(backend(rank).Split({.part = rank == 1 ? 5 : 0}));
  }
  // Ranks of a part keep their order.
  Join(0, 2, descents[0]);
  Join(1, 2, descents[2]);
  ExpectSum(parts_, 3);
  parts_.clear();
  Join(0, 1, descents[1]);
  ExpectSum(parts_, 1);
}

// The fake NCCL records a misuse if it does not wait.
TEST_F(SplitTest, ASplitWaitsForWhatWasStartedBefore) {
  Make(2, 0);
  const Tensor mine = OnDevice(2, 1);
  const Tensor others = OnDevice(2, 2);
  std::vector<std::shared_ptr<Work>> works;
  works.push_back(AllReduce(0, mine));
  SplitOff(0, 0, 2);
  works.push_back(AllReduce(0, mine));
  works.push_back(AllReduce(1, others));
  SplitOff(1, 1, 2);
  works.push_back(AllReduce(1, others));
  for (const auto& work : works) EXPECT_EQ(Wait(work), OkStatus());
  EXPECT_THAT(GetValues(mine), Each(6));
  ExpectSum(parts_, 3);
}

TEST_F(SplitTest, AGroupThatIsBoundToNoDeviceIsNotSplit) {
  Make(2);
  ExpectSum(backends_, 3);
  EXPECT_EQ(backend(0).Split({}), nullptr);
}

TEST_F(SplitTest, WhenTheOtherGroupHasEndedAGroupBeginsAnew) {
  Make(2, 0);
  ExpectSum(backends_, 3);
  TakeMade();
  SplitOff(0, 0, 2);
  // The other rank's group ends before that rank comes to the split.
  for (auto& one : backends_) one->Abort(AbortedError("rank 2 is gone"));
  SplitOff(1, 1, 2);
  ExpectSum(parts_, 3);
  EXPECT_EQ(TakeMade(), (Made{.by_id = 2, .by_split = 1}));
  EXPECT_EQ(part_store_->sets(), 1);
}

TEST_F(SplitTest, WhoDoesNotComeToASplitLetsTheNewGroupAloneTimeOut) {
  Make(2, 0);
  SplitOff(0, 0, 2, Clock::now() + std::chrono::milliseconds(30));
  EXPECT_EQ(Wait(parts_[0]->Start({.kind = CollectiveKind::kBarrier})),
            TooLate("rank 1 did not come to make the communicator"));
  // The rank comes late; its handle is dropped.
  backend(1).Split({.part = 0});
  ExpectSum(backends_, 3);
}

TEST_F(SplitTest, WhatNobodyTakesIsGivenBack) {
  Make(2, 0);
  for (auto& one : backends_) one->Split({.part = 0});
  // A backend's destructor waits for splits that other ranks need.
  backends_.clear();
  EXPECT_EQ(TakeMade(), (Made{.by_id = 2, .by_split = 2}));
}

TEST_F(SplitTest, WhoLeavesWaitsForASplitThatOthersNeedItFor) {
  Make(2, 0);
  ExpectSum(backends_, 3);
  testing::TakeAborts();
  backend(0).Split({.part = kNoPart});
  std::thread leaver([this] { backends_[0].reset(); });
  SplitOff(1, 0, 1);
  leaver.join();
  ExpectSum(parts_, 1);
  EXPECT_EQ(testing::TakeAborts(), 0);
}

TEST_F(SplitTest, ASplitThatNcclRefusesEndsTheGroup) {
  Make(1, 0);
  ExpectSum(backends_, 1);
  backend(0).Split({.part = -5});
  const Status status = Wait(AllReduce(0, OnDevice(1, 1)));
  EXPECT_TRUE(IsInternal(status)) << status;
  EXPECT_THAT(testing::TakeMisuses(), ElementsAre("CommSplit of color -5"));
}

TEST_F(SplitTest, TheOtherGroupMayGo) {
  Make(2, 0);
  for (int rank = 0; rank < 2; ++rank) SplitOff(rank, rank, 2);
  ExpectSum(parts_, 3);
  backends_.clear();
  ExpectSum(parts_, 3);
}

// Ranks 0 and 2 of three remain.
class ShrinkTest : public SplitTest {
 protected:
  void ShrinkTo(bool aborts, Instant deadline = Instant::max()) {
    for (const int rank : {0, 2}) {
      Join(rank / 2, 2,
           backend(rank).Split(
               {.excluded = {1}, .aborts = aborts, .group_name = "part"}),
           deadline);
    }
  }
};

TEST_F(ShrinkTest, WhatIsLeftOfAGroupHasItsCommunicatorFromThat) {
  // Also if the group was bound to its device only by its collectives.
  for (const int device : {0, -1}) {
    store_ = std::make_shared<InMemoryStore>();
    part_store_ = std::make_shared<InMemoryStore>();
    Make(kAll, device);
    ExpectSum(backends_, 7);
    TakeMade();
    testing::TakeAborts();
    ShrinkTo(/*aborts=*/false);
    ExpectSum(parts_, 3);
    EXPECT_EQ(TakeMade(), (Made{.by_shrink = 2}));
    EXPECT_EQ(testing::TakeAborts(), 0);
    // The old group has ended.
    EXPECT_EQ(Wait(AllReduce(0, OnDevice(1, 1))),
              AbortedError("group \"world\" was shrunk"));
    parts_.clear();
    backends_.clear();
  }
}

TEST_F(ShrinkTest, OneThatIsToBeEndedIsAborted) {
  Make(kAll, 0);
  ExpectSum(backends_, 7);
  TakeMade();
  testing::TakeAborts();
  ShrinkTo(/*aborts=*/true);
  ExpectSum(parts_, 3);
  EXPECT_EQ(TakeMade(), (Made{.by_shrink = 2}));
  EXPECT_EQ(testing::TakeAborts(), 2);
}

TEST_F(ShrinkTest, WhenOneRankHasNothingLeftAllMeetAnew) {
  Make(kAll, 0);
  ExpectSum(backends_, 7);
  TakeMade();
  backend(2).Abort(AbortedError("rank 1 is gone"));
  ShrinkTo(/*aborts=*/true);
  ExpectSum(parts_, 3);
  EXPECT_EQ(TakeMade(), (Made{.by_id = 2}));
}

TEST_F(ShrinkTest, NothingComesOfACommunicatorThatIsBusy) {
  Make(kAll, 0);
  ExpectSum(backends_, 7);
  TakeMade();
  const auto stuck = AllReduce(0, OnDevice(1, 1));
  ShrinkTo(/*aborts=*/false);
  ExpectSum(parts_, 3);
  EXPECT_EQ(TakeMade(), (Made{.by_id = 2}));
  EXPECT_FALSE(stuck->IsCompleted());
}

TEST_F(ShrinkTest, AnOlderNcclHasNoShrink) {
  platform_.nccl.CommShrink = nullptr;
  Make(kAll, 0);
  ExpectSum(backends_, 7);
  TakeMade();
  ShrinkTo(/*aborts=*/false);
  ExpectSum(parts_, 3);
  EXPECT_EQ(TakeMade(), (Made{.by_id = 2}));
}

TEST_F(ShrinkTest, WhoDoesNotComeToItIsMissedInTime) {
  Make(kAll, 0);
  ExpectSum(backends_, 7);
  Join(0, 2, backend(0).Split({.excluded = {1}, .group_name = "part"}),
       Clock::now() + std::chrono::milliseconds(30));
  EXPECT_EQ(Wait(parts_[0]->Start({.kind = CollectiveKind::kBarrier})),
            TooLate("rank 1 did not come to make the communicator"));
  // Also a handle that no group uses.
  EXPECT_NE(backend(2).Split({.excluded = {1}}), nullptr);
}

TEST_F(SplitTest, TheOptionsAreTheNewGroups) {
  Make(1, 0);
  auto parent_handle = backend(0).Split(
      {.group_name = "part",
       .nccl = std::make_shared<NcclOptions>(NcclOptions{.max_ctas = 3})});
  Join(0, 1, std::move(parent_handle));
  ExpectSum(parts_, 1);
  EXPECT_EQ(testing::LastConfig().max_ctas, 3);
  EXPECT_EQ(testing::LastConfig().blocking, 0);
  EXPECT_THAT(testing::TakeMisuses(), IsEmpty());
}

}  // namespace
}  // namespace muster::dataplane::nccl
