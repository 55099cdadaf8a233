#include "dataplane/cuda/testing/host_cuda.h"

#include <cstring>
#include <future>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::cuda::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class HostCudaTest : public ::testing::Test {
 protected:
  Stream MakeStream() {
    Stream stream = nullptr;
    EXPECT_EQ(api_.StreamCreateWithPriority(&stream, kStreamNonBlocking, 0),
              kSuccess);
    return stream;
  }

  Event MakeEvent() {
    Event event = nullptr;
    EXPECT_EQ(api_.EventCreateWithFlags(&event, kEventDisableTiming), kSuccess);
    return event;
  }

  const Api api_ = HostCudaApi();
};

TEST_F(HostCudaTest, AStreamDoesOneThingAfterTheOtherAndLater) {
  const Stream stream = MakeStream();
  const Event event = MakeEvent();
  // An event that was not recorded counts as reached.
  EXPECT_EQ(api_.EventQuery(event), kSuccess);
  std::promise<void> go;
  Launch(stream, [future = go.get_future().share()] { future.wait(); });
  std::vector<char> from(8, 1);
  std::vector<char> to(8);
  EXPECT_EQ(api_.MemcpyAsync(to.data(), from.data(), 8, kMemcpyDefault, stream),
            kSuccess);
  EXPECT_EQ(api_.EventRecord(event, stream), kSuccess);
  EXPECT_EQ(api_.EventQuery(event), kNotReady);
  EXPECT_THAT(to, Each(0));
  // The copy reads the contents at the time when it runs.
  from.assign(8, 2);
  go.set_value();
  EXPECT_EQ(api_.EventSynchronize(event), kSuccess);
  EXPECT_THAT(to, Each(2));
  EXPECT_EQ(api_.EventDestroy(event), kSuccess);
  EXPECT_EQ(api_.StreamDestroy(stream), kSuccess);
  EXPECT_THAT(TakeMisuses(), IsEmpty());
}

TEST_F(HostCudaTest, AStreamWaitsForWhatWasRecordedByThen) {
  const Stream first = MakeStream();
  const Stream second = MakeStream();
  const Event event = MakeEvent();
  std::promise<void> go;
  std::vector<int> order;
  Launch(first, [&, future = go.get_future().share()] {
    future.wait();
    order.push_back(1);
  });
  EXPECT_EQ(api_.EventRecord(event, first), kSuccess);
  EXPECT_EQ(api_.StreamWaitEvent(second, event, 0), kSuccess);
  Launch(second, [&] { order.push_back(2); });
  // The second stream does not wait for a later record.
  Launch(first, [] {});
  EXPECT_EQ(api_.EventRecord(event, first), kSuccess);
  go.set_value();
  EXPECT_EQ(api_.StreamSynchronize(second), kSuccess);
  EXPECT_THAT(order, ElementsAre(1, 2));
  EXPECT_EQ(api_.StreamDestroy(first), kSuccess);
  EXPECT_EQ(api_.StreamDestroy(second), kSuccess);
  EXPECT_EQ(api_.EventDestroy(event), kSuccess);
  EXPECT_EQ(CountLeaks().streams + CountLeaks().events, 0U);
}

TEST_F(HostCudaTest, MemoryIsKnownAndGivenBack) {
  void* data = nullptr;
  ASSERT_EQ(api_.Malloc(&data, 100), kSuccess);
  EXPECT_TRUE(IsDeviceMemory(data, 100));
  EXPECT_TRUE(IsDeviceMemory(static_cast<char*>(data) + 60, 40));
  EXPECT_FALSE(IsDeviceMemory(static_cast<char*>(data) + 60, 41));
  EXPECT_FALSE(IsDeviceMemory(&data, 1));
  EXPECT_EQ(api_.MemsetAsync(data, 7, 100, nullptr), kSuccess);
  EXPECT_EQ(api_.StreamSynchronize(nullptr), kSuccess);
  EXPECT_EQ(*static_cast<char*>(data), 7);
  void* pinned = nullptr;
  ASSERT_EQ(api_.HostAlloc(&pinned, 10, kHostAllocPortable), kSuccess);
  EXPECT_EQ(CountLeaks().memory, 2U);
  EXPECT_EQ(api_.FreeHost(pinned), kSuccess);
  EXPECT_EQ(api_.Free(data), kSuccess);
  EXPECT_EQ(CountLeaks().memory, 0U);
  EXPECT_THAT(TakeMisuses(), IsEmpty());
  EXPECT_NE(api_.Free(data), kSuccess);
  EXPECT_THAT(TakeMisuses(), ElementsAre("Free of no device memory"));
}

TEST_F(HostCudaTest, WhatIsNotThereIsAMisuse) {
  EXPECT_NE(api_.SetDevice(2), kSuccess);
  EXPECT_EQ(api_.SetDevice(1), kSuccess);
  int device = 0;
  EXPECT_EQ(api_.GetDevice(&device), kSuccess);
  EXPECT_EQ(device, 1);
  const Stream gone = MakeStream();
  EXPECT_EQ(api_.StreamDestroy(gone), kSuccess);
  const Event event = MakeEvent();
  EXPECT_NE(api_.EventRecord(event, gone), kSuccess);
  EXPECT_NE(api_.StreamSynchronize(gone), kSuccess);
  EXPECT_EQ(api_.EventDestroy(event), kSuccess);
  EXPECT_NE(api_.EventQuery(event), kSuccess);
  EXPECT_THAT(
      TakeMisuses(),
      ElementsAre("SetDevice of 2", "EventRecord of no event or no stream",
                  "StreamSynchronize of no stream", "EventQuery of no event"));
}

}  // namespace
}  // namespace muster::dataplane::cuda::testing
