// Calls in progress, captured graphs and slow aborts, on the fake NCCL and
// CUDA.

#include <future>
#include <memory>

#include "dataplane/cuda/stream.h"
#include "dataplane/cuda/testing/host_cuda.h"
#include "dataplane/nccl/testing/backend_test.h"
#include "dataplane/nccl/testing/host_nccl.h"
#include "dataplane/testing/in_memory_store.h"
#include "gtest/gtest.h"

namespace muster::dataplane::nccl {
namespace {

using ProgressTest = testing::BackendTest;

// As in NCCL from 2.19 on, whose own thread enqueues each call.
TEST_F(ProgressTest, WhatNcclTakesSoonIsInTheStreamWhenStartReturns) {
  Make(1);
  EXPECT_EQ(Wait(AllReduce(0, OnDevice(1, 1))), OkStatus());
  testing::SetPolls(3);
  const auto first = AllReduce(0, OnDevice(1, 1));
  EXPECT_EQ(backends_[0]->communicator_states()["nccl"]["state"], "ready");
  EXPECT_EQ(Wait(first), OkStatus());
  testing::SetPolls(0);
}

TEST_F(ProgressTest, WhatNcclHasTakenMeanwhileHoldsUpNothing) {
  Make(1);
  EXPECT_EQ(Wait(AllReduce(0, OnDevice(1, 1))), OkStatus());
  // More polls than a start makes, and then as many as it takes.
  testing::SetPolls(1'000'000);
  const auto first = AllReduce(0, OnDevice(1, 1));
  EXPECT_EQ(backends_[0]->communicator_states()["nccl"]["state"],
            "in progress");
  backends_[0]->Abort(AbortedError("enough"));
  EXPECT_EQ(Wait(first), AbortedError("enough"));
  testing::SetPolls(0);
}

// A captured graph contains only the program's calls: calls of the backend's
// threads at the same time do not become part of it.
TEST_F(ProgressTest, GraphsOfTheProgramAreNotSpoiled) {
  Make(1);
  const Tensor tensor = OnDevice(1, 1);
  EXPECT_EQ(Wait(AllReduce(0, tensor)), OkStatus());
  const cuda::Stream busy = MakeStream();
  const cuda::Stream captured = MakeStream();
  std::promise<void> gate;
  cuda::testing::Launch(busy, [&] { gate.get_future().wait(); });
  cuda::SetCurrentStream(0, busy);
  const auto work = AllReduce(0, tensor);
  cuda::testing::BeginCapture(captured);
  // From here on the backend also polls for its end.
  gate.set_value();
  EXPECT_EQ(Wait(work), OkStatus());
  cuda::SetCurrentStream(0, captured);
  EXPECT_EQ(backends_[0]->Supports(
                {.kind = CollectiveKind::kAllReduce, .tensors = {tensor}}),
            FailedPreconditionError(
                "the current stream of cuda:0 is captured into a CUDA graph, "
                "which collectives, sends and receives cannot be"));
  cuda::testing::EndCapture(captured);
  cuda::SetCurrentStream(0, nullptr);
}

// When NCCL frees memory, CUDA waits for everything on the device, possibly for
// a collective of another communicator.
TEST_F(ProgressTest, AllCommunicatorsAreToldOfAnAbortBeforeOneIsWaitedFor) {
  Make(2);
  const auto first = AllReduce(0, OnDevice(1, 1));
  EXPECT_EQ(Wait(AllReduce(1, OnDevice(1, 1))), OkStatus());
  EXPECT_EQ(Wait(first), OkStatus());
  const auto send = backends_[0]->Start(
      {.kind = CollectiveKind::kSend, .inputs = {OnDevice(1, 1)}, .peer = 1});
  const auto got = backends_[1]->Start(
      {.kind = CollectiveKind::kRecv, .outputs = {OnDevice(1, 1)}, .peer = 0});
  EXPECT_EQ(Wait(send), OkStatus());
  EXPECT_EQ(Wait(got), OkStatus());
  testing::TakeAborts();
  std::promise<int> told;
  testing::SetFreeHook([&] { told.set_value(testing::TakeAborts()); });
  backends_[0]->Abort(AbortedError("enough"));
  EXPECT_EQ(told.get_future().get(), 2);
  testing::SetFreeHook(nullptr);
  backends_[1]->Abort(AbortedError("enough"));
}

TEST_F(ProgressTest, WhatIsStuckGivingMemoryBackHoldsUpNobody) {
  for (const bool aborts : {true, false}) {
    store_ = std::make_shared<dataplane::testing::InMemoryStore>();
    Make(2);
    const auto first = AllReduce(0, OnDevice(1, 1));
    EXPECT_EQ(Wait(AllReduce(1, OnDevice(1, 1))), OkStatus());
    EXPECT_EQ(Wait(first), OkStatus());
    std::promise<void> gate;
    std::promise<void> left;
    testing::SetFreeHook([&] {
      gate.get_future().wait();
      left.set_value_at_thread_exit();
    });
    if (aborts) {
      const auto work = AllReduce(0, OnDevice(1, 1));
      backends_[0]->Abort(AbortedError("enough"));
      EXPECT_EQ(Wait(work), AbortedError("enough"));
      EXPECT_EQ(Wait(AllReduce(0, OnDevice(1, 1))), AbortedError("enough"));
    }
    backends_[0] = nullptr;
    testing::SetFreeHook(nullptr);
    gate.set_value();
    left.get_future().wait();
    backends_.clear();
  }
  // 4 bytes on the device per rank: freeing them would have waited as well.
  allowed_leaks_ = 2;
}

TEST_F(ProgressTest, AThousandGroupsLeaveNothing) {
  const Tensor tensor = OnDevice(1, 1);
  for (int i = 0; i < 1000; ++i) {
    Make(1);
    const auto work = AllReduce(0, tensor);
    if (i % 10 == 0) {
      backends_[0]->Abort(AbortedError("enough"));
    } else {
      EXPECT_EQ(Wait(work), OkStatus());
    }
    backends_.clear();
  }
  // The fixture checks the rest after each test.
  EXPECT_EQ(testing::CountLeaks().comms, 0U);
}

}  // namespace
}  // namespace muster::dataplane::nccl
