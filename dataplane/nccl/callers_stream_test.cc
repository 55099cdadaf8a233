// Collectives that run in their callers' streams, because the callers wait for
// them at once.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include "dataplane/cuda/stream.h"
#include "dataplane/cuda/testing/host_cuda.h"
#include "dataplane/nccl/testing/backend_test.h"
#include "dataplane/nccl/testing/host_nccl.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/dataplane/nccl_options.h"

namespace muster::dataplane::nccl {
namespace {

using ::testing::Each;

// The number of StreamWaitEvent calls.
std::atomic<int> g_waits{0};

class CallersStreamTest : public testing::BackendTest {
 protected:
  CallersStreamTest() {
    static const auto wait = platform_.cuda.StreamWaitEvent;
    platform_.cuda.StreamWaitEvent = [](cuda::Stream stream, cuda::Event event,
                                        unsigned flags) {
      ++g_waits;
      return wait(stream, event, flags);
    };
  }
  ~CallersStreamTest() override { cuda::SetCurrentStream(0, nullptr); }

  std::shared_ptr<Work> InCurrentStream(const Tensor& tensor, int rank = 0) {
    Collective collective = {.kind = CollectiveKind::kAllReduce,
                             .tensors = {tensor}};
    collective.in_current_stream = true;
    return backends_[static_cast<size_t>(rank)]->Start(collective);
  }

  // Makes a group of one rank with its communicator.
  void MakeOne(const NcclOptions& options = {}) {
    Make(1, /*device=*/-1, options);
    EXPECT_EQ(Wait(AllReduce(0, OnDevice(1, 1))), OkStatus());
    g_waits = 0;
  }

  void MakeTwo() {
    Make(2);
    const auto works = {AllReduce(0, OnDevice(1, 1)),
                        AllReduce(1, OnDevice(1, 1))};
    for (const auto& work : works) EXPECT_EQ(Wait(work), OkStatus());
  }

  // Makes the stream wait for the promise.
  static void Hold(cuda::Stream stream, std::promise<void>& go) {
    cuda::testing::Launch(
        stream, [future = go.get_future().share()] { future.wait(); });
  }
};

TEST_F(CallersStreamTest, NoStreamWaitsForAnother) {
  MakeOne();
  cuda::SetCurrentStream(0, MakeStream());
  for (int i = 0; i < 3; ++i) {
    const auto work = InCurrentStream(OnDevice(4, 1));
    EXPECT_EQ(work->Synchronize(), OkStatus());
    EXPECT_EQ(Wait(work), OkStatus());
  }
  EXPECT_EQ(g_waits, 0);
}

TEST_F(CallersStreamTest, ItComesBetweenWhatTheStreamHasBeforeAndBehind) {
  MakeTwo();
  const cuda::Stream stream = MakeStream();
  const Tensor mine = OnDevice(4, 1);
  std::promise<void> go;
  std::vector<float> behind;
  cuda::SetCurrentStream(0, stream);
  Hold(stream, go);
  cuda::testing::Launch(
      stream, [&] { std::fill_n(static_cast<float*>(mine.data()), 4, 2.0F); });
  const auto first = InCurrentStream(mine);
  EXPECT_EQ(first->Synchronize(), OkStatus());
  cuda::testing::Launch(stream, [&] { behind = GetValues(mine); });
  cuda::SetCurrentStream(0, nullptr);
  const auto second = AllReduce(1, OnDevice(4, 10));
  EXPECT_FALSE(first->IsCompleted());
  go.set_value();
  EXPECT_EQ(platform_.cuda.StreamSynchronize(stream), cuda::kSuccess);
  EXPECT_THAT(behind, Each(12));
  EXPECT_EQ(Wait(first), OkStatus());
  EXPECT_EQ(Wait(second), OkStatus());
}

// Kernels of one communicator must not run at the same time, also in different
// streams.
TEST_F(CallersStreamTest, OneWaitsForWhatIsInOtherStreams) {
  MakeOne();
  const std::vector<cuda::Stream> streams = {MakeStream(), MakeStream(),
                                             MakeStream()};
  std::promise<void> go;
  Hold(streams[0], go);
  cuda::SetCurrentStream(0, streams[0]);
  // In the group's own stream, after the first.
  std::vector<std::shared_ptr<Work>> works = {AllReduce(0, OnDevice(4, 1))};
  std::atomic<int> behind{0};
  for (const cuda::Stream stream : {streams[1], streams[2]}) {
    cuda::SetCurrentStream(0, stream);
    works.push_back(InCurrentStream(OnDevice(4, 1)));
    cuda::testing::Launch(stream, [&] { ++behind; });
  }
  // None of them completes earlier, either.
  EXPECT_TRUE(IsDeadlineExceeded(
      works.back()->Wait(Clock::now() + std::chrono::milliseconds(50))));
  EXPECT_EQ(behind, 0);
  go.set_value();
  for (const auto& work : works) EXPECT_EQ(Wait(work), OkStatus());
  for (const cuda::Stream stream : streams) {
    EXPECT_EQ(platform_.cuda.StreamSynchronize(stream), cuda::kSuccess);
  }
  EXPECT_EQ(behind, 2);
}

TEST_F(CallersStreamTest, AnotherStreamWaitsForIt) {
  MakeOne();
  const cuda::Stream stream = MakeStream();
  const cuda::Stream other = MakeStream();
  const Tensor tensor = OnDevice(4, 1);
  std::promise<void> go;
  std::vector<float> seen;
  Hold(stream, go);
  cuda::SetCurrentStream(0, stream);
  cuda::testing::Launch(stream, [&] {
    std::fill_n(static_cast<float*>(tensor.data()), 4, 2.0F);
  });
  const auto work = InCurrentStream(tensor);
  cuda::SetCurrentStream(0, other);
  EXPECT_EQ(work->Synchronize(), OkStatus());
  cuda::testing::Launch(other, [&] { seen = GetValues(tensor); });
  go.set_value();
  EXPECT_EQ(platform_.cuda.StreamSynchronize(other), cuda::kSuccess);
  EXPECT_THAT(seen, Each(2));
  EXPECT_EQ(Wait(work), OkStatus());
}

// Otherwise it would run after work that threads enqueue in the stream until
// then.
TEST_F(CallersStreamTest, WhatCannotBeginAtOnceIsInTheGroupsStream) {
  Make(2);
  const cuda::Stream stream = MakeStream();
  cuda::SetCurrentStream(0, stream);
  const Tensor mine = OnDevice(4, 1);
  const auto first = InCurrentStream(mine);
  // There is no communicator yet; that does not block the stream.
  EXPECT_EQ(platform_.cuda.StreamSynchronize(stream), cuda::kSuccess);
  std::promise<void> go;
  Hold(stream, go);
  cuda::SetCurrentStream(0, nullptr);
  const auto second = InCurrentStream(OnDevice(4, 10), 1);
  EXPECT_EQ(Wait(first), OkStatus());
  EXPECT_EQ(Wait(second), OkStatus());
  EXPECT_THAT(GetValues(mine), Each(11));
  go.set_value();
  EXPECT_EQ(platform_.cuda.StreamSynchronize(stream), cuda::kSuccess);
}

TEST_F(CallersStreamTest, OneBehindWhatNcclHasYetToTakeIsInTheGroupsStream) {
  MakeOne();
  // More polls than a start makes.
  testing::SetPolls(2000);
  const auto first = AllReduce(0, OnDevice(4, 1));
  const cuda::Stream stream = MakeStream();
  cuda::SetCurrentStream(0, stream);
  const auto second = InCurrentStream(OnDevice(4, 1));
  std::promise<void> go;
  Hold(stream, go);
  testing::SetPolls(0);
  EXPECT_EQ(Wait(first), OkStatus());
  EXPECT_EQ(Wait(second), OkStatus());
  go.set_value();
}

TEST_F(CallersStreamTest, WhatBeginsTogetherIsInTheGroupsStream) {
  MakeOne();
  const cuda::Stream stream = MakeStream();
  cuda::SetCurrentStream(0, stream);
  backends_[0]->BeginTogether();
  const auto first = InCurrentStream(OnDevice(4, 1));
  const auto second = InCurrentStream(OnDevice(4, 1));
  std::promise<void> go;
  Hold(stream, go);
  backends_[0]->EndTogether();
  EXPECT_EQ(Wait(first), OkStatus());
  EXPECT_EQ(Wait(second), OkStatus());
  go.set_value();
}

TEST_F(CallersStreamTest, AStreamOfHighPriorityIsTheGroupsOwn) {
  MakeOne({.is_high_priority_stream = true});
  cuda::SetCurrentStream(0, MakeStream());
  const auto work = InCurrentStream(OnDevice(4, 1));
  EXPECT_EQ(work->Synchronize(), OkStatus());
  EXPECT_EQ(Wait(work), OkStatus());
  EXPECT_GE(g_waits, 1);
}

TEST_F(CallersStreamTest, AnAbortEndsOneThatWaitsForItsPeer) {
  MakeTwo();
  const cuda::Stream stream = MakeStream();
  cuda::SetCurrentStream(0, stream);
  const auto work = InCurrentStream(OnDevice(4, 1));
  EXPECT_EQ(work->Synchronize(), OkStatus());
  backends_[0]->Abort(AbortedError("enough"));
  EXPECT_EQ(Wait(work), AbortedError("enough"));
  EXPECT_EQ(platform_.cuda.StreamSynchronize(stream), cuda::kSuccess);
}

}  // namespace
}  // namespace muster::dataplane::nccl
