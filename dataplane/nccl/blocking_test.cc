// Blocking communicators, on the fake NCCL and CUDA, which record a misuse if
// another thread uses or aborts one during a call.

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "dataplane/culprit.h"
#include "dataplane/nccl/testing/backend_test.h"
#include "dataplane/nccl/testing/host_nccl.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/dataplane/nccl_options.h"

namespace muster::dataplane::nccl {
namespace {

using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::ElementsAre;

class BlockingTest : public testing::BackendTest {
 protected:
  ~BlockingTest() override { testing::SetConnectHook(nullptr); }

  void MakeBlocking(int size, int device = -1) {
    Make(size, device, {.blocking = true});
  }

  // Waits until all ranks have their communicators.
  void Connect() {
    std::vector<std::shared_ptr<Work>> works;
    for (size_t rank = 0; rank < backends_.size(); ++rank) {
      works.push_back(AllReduce(static_cast<int>(rank), OnDevice(1, 1)));
    }
    for (const auto& work : works) EXPECT_EQ(Wait(work), OkStatus());
  }

  // Makes every later call wait in NCCL for `go`.
  void HoldCalls(std::promise<void>& go) {
    testing::SetConnectHook(
        [going = go.get_future().share()] { going.wait(); });
  }

  // Waits until calls that were left running have returned and freed
  // everything.
  static void AwaitNoComms() {
    while (testing::CountLeaks().comms > 0) std::this_thread::yield();
  }

  Collective Late(milliseconds timeout) {
    return {.kind = CollectiveKind::kAllReduce,
            .tensors = {OnDevice(1, 1)},
            .timeout = timeout,
            .deadline = Clock::now() + timeout};
  }
};

TEST_F(BlockingTest, ACallThatWaitsInNcclHoldsUpNobodysThread) {
  MakeBlocking(2);
  Connect();
  std::promise<void> go;
  HoldCalls(go);
  const Tensor mine = OnDevice(2, 1);
  const Tensor others = OnDevice(2, 2);
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 3; ++i) {
    works.push_back(AllReduce(0, mine));
    works.push_back(AllReduce(1, others));
  }
  for (const auto& work : works) EXPECT_FALSE(work->IsCompleted());
  EXPECT_EQ(backends_[0]->communicator_states()["nccl"]["state"],
            "in progress");
  go.set_value();
  for (const auto& work : works) EXPECT_EQ(Wait(work), OkStatus());
  EXPECT_THAT(GetValues(mine), Each(12));
  EXPECT_THAT(GetValues(others), Each(12));
}

TEST_F(BlockingTest, ATimeoutIsToldWhileACallWaitsAndAbortsNothingBefore) {
  MakeBlocking(2);
  Connect();
  std::promise<void> go;
  HoldCalls(go);
  testing::TakeAborts();
  const auto began = Clock::now();
  const Status status = Wait(backends_[0]->Start(Late(milliseconds(50))));
  EXPECT_EQ(std::string(status.message()),
            "all_reduce #0 on group \"world\": timed out after 50ms waiting "
            "for rank 1");
  EXPECT_THAT(CulpritRanks(status), ElementsAre(1));
  EXPECT_EQ(Wait(AllReduce(0, OnDevice(1, 1))), status);
  // The end of the group does not wait for it, either.
  backends_[0] = nullptr;
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(20));
  EXPECT_EQ(testing::TakeAborts(), 0);
  // The call also keeps its stream and 4 bytes on the device.
  go.set_value();
  backends_.clear();
  AwaitNoComms();
  EXPECT_EQ(testing::TakeAborts(), 1);
  allowed_leaks_ = 1;
  allowed_streams_ = 1;
}

TEST_F(BlockingTest, ARankThatNeverComesToTheCommunicatorIsNamedInTime) {
  MakeBlocking(2);
  const Status status = Wait(backends_[0]->Start(Late(milliseconds(50))));
  EXPECT_EQ(std::string(status.message()),
            "all_reduce #0 on group \"world\": timed out after 50ms waiting "
            "for rank 1");
  backends_[0] = nullptr;
  // The other rank comes now: the call that was left running aborts its
  // communicator.
  const auto late = AllReduce(1, OnDevice(1, 1));
  while (backends_[1]->communicator_states()["nccl"]["state"] != "ready") {
    std::this_thread::yield();
  }
  while (testing::CountLeaks().comms > 1) std::this_thread::yield();
  backends_[1]->Abort(AbortedError("rank 0 is gone"));
  EXPECT_EQ(Wait(late), AbortedError("rank 0 is gone"));
}

TEST_F(BlockingTest, AnAbortEndsACollectiveThatIsOnTheDevice) {
  MakeBlocking(2);
  Connect();
  const auto work = AllReduce(0, OnDevice(1, 1));
  // Waits until the call has returned.
  while (backends_[0]->communicator_states()["nccl"]["state"] ==
         "in progress") {
    std::this_thread::yield();
  }
  backends_[0]->Abort(AbortedError("rank 1 is gone"));
  EXPECT_EQ(Wait(work), AbortedError("rank 1 is gone"));
}

TEST_F(BlockingTest, AGroupInPeaceGivesItsCommunicatorsBackUnaborted) {
  testing::TakeAborts();
  MakeBlocking(2);
  Connect();
  const auto send = backends_[0]->Start(
      {.kind = CollectiveKind::kSend, .inputs = {OnDevice(1, 3)}, .peer = 1});
  const Tensor got = OnDevice(1, 0);
  EXPECT_EQ(Wait(backends_[1]->Start(
                {.kind = CollectiveKind::kRecv, .outputs = {got}, .peer = 0})),
            OkStatus());
  EXPECT_EQ(Wait(send), OkStatus());
  EXPECT_THAT(GetValues(got), Each(3));
  backends_.clear();
  EXPECT_EQ(testing::TakeAborts(), 0);
}

TEST_F(BlockingTest, GroupsThatAreMadeOfItMeetAnew) {
  MakeBlocking(2, /*device=*/0);
  Connect();
  EXPECT_EQ(backends_[0]->Split({.group_name = "part"}), nullptr);
  backends_.clear();
  store_ = std::make_shared<dataplane::testing::InMemoryStore>();
  Make(2, /*device=*/0);
  SplitOptions blocking = {.group_name = "part"};
  blocking.nccl = std::make_shared<NcclOptions>(NcclOptions{.blocking = true});
  EXPECT_EQ(backends_[0]->Split(blocking), nullptr);
}

TEST_F(BlockingTest, SymmetricMemoryIsRegisteredAndGivenBack) {
  MakeBlocking(2);
  const SymmetricOptions options = {.bytes = 8, .deadline = Instant::max()};
  auto other = std::async(std::launch::async, [&] {
    return *backends_[1]->AllocateSymmetric(options);
  });
  auto mine = *backends_[0]->AllocateSymmetric(options);
  auto others = other.get();
  EXPECT_NE(mine->data(), nullptr);
  mine = nullptr;
  others = nullptr;
  Connect();
}

}  // namespace
}  // namespace muster::dataplane::nccl
