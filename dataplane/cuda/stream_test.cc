#include "dataplane/cuda/stream.h"

#include <mutex>
#include <thread>

#include "dataplane/cuda/testing/host_cuda.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::dataplane::cuda {
namespace {

using ::testing::IsEmpty;

class StreamTest : public ::testing::Test {
 protected:
  StreamTest() {
    EXPECT_EQ(cuda_.StreamCreateWithPriority(&stream_, kStreamNonBlocking, 0),
              kSuccess);
  }
  ~StreamTest() override {
    EXPECT_EQ(cuda_.StreamDestroy(stream_), kSuccess);
    EXPECT_THAT(testing::TakeMisuses(), IsEmpty());
  }

  const Api cuda_ = testing::HostCudaApi(/*devices=*/3);
  Stream stream_ = nullptr;
};

// Going back would create a context on device 0, which the program has never
// used.
TEST_F(StreamTest, AThreadOfItsOwnDoesNotGoBackToDevice0) {
  int device = 0;
  std::thread([&] {
    BeginOwnThread(cuda_);
    for (int i = 0; i < 2; ++i) const DeviceGuard guard(cuda_, 2);
    EXPECT_EQ(cuda_.GetDevice(&device), kSuccess);
  }).join();
  EXPECT_EQ(device, 2);
  EXPECT_TRUE(testing::HasContext(2));
  EXPECT_FALSE(testing::HasContext(0));
  // A thread of the program goes back to its device.
  { const DeviceGuard guard(cuda_, 2); }
  EXPECT_EQ(cuda_.GetDevice(&device), kSuccess);
  EXPECT_EQ(device, 0);
}

TEST_F(StreamTest, WhatIsNotReachedYetIsNobodysLastError) {
  Event event = nullptr;
  ASSERT_EQ(cuda_.EventCreateWithFlags(&event, kEventDisableTiming), kSuccess);
  Stream busy = nullptr;
  ASSERT_EQ(cuda_.StreamCreateWithPriority(&busy, 0, 0), kSuccess);
  std::mutex held;
  held.lock();
  testing::Launch(busy, [&] { const std::lock_guard wait(held); });
  ASSERT_EQ(cuda_.EventRecord(event, busy), kSuccess);
  EXPECT_EQ(Query(cuda_, event), kNotReady);
  EXPECT_EQ(cuda_.GetLastError(), kSuccess);
  held.unlock();
  EXPECT_EQ(cuda_.StreamSynchronize(busy), kSuccess);
  EXPECT_EQ(Query(cuda_, event), kSuccess);
  EXPECT_EQ(cuda_.EventDestroy(event), kSuccess);
  EXPECT_EQ(cuda_.StreamDestroy(busy), kSuccess);
}

TEST_F(StreamTest, AStreamThatIsCapturedTakesNoCollective) {
  SetCurrentStream(1, stream_);
  EXPECT_EQ(CheckIsNotCaptured(cuda_, 1), OkStatus());
  testing::BeginCapture(stream_);
  EXPECT_EQ(CheckIsNotCaptured(cuda_, 1),
            FailedPreconditionError(
                "the current stream of cuda:1 is captured into a CUDA graph, "
                "which collectives, sends and receives cannot be"));
  EXPECT_EQ(CheckIsNotCaptured(cuda_, 0), OkStatus());
  testing::EndCapture(stream_);
  EXPECT_EQ(CheckIsNotCaptured(cuda_, 1), OkStatus());
  SetCurrentStream(1, nullptr);
}

}  // namespace
}  // namespace muster::dataplane::cuda
