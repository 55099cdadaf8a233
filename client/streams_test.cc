// How collectives of CUDA tensors affect streams and the host, on a fake CUDA
// and NCCL, with a group of one.

#include "muster/streams.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dataplane/cuda/testing/host_cuda.h"
#include "dataplane/nccl/nccl_backend.h"
#include "dataplane/nccl/testing/host_nccl.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/muster.hpp"

namespace muster {
namespace {

using dataplane::BackendOptions;
using dataplane::DeviceType;
using dataplane::cuda::testing::Launch;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// How often a stream waited for another.
std::atomic<int> g_waits{0};

const dataplane::nccl::Platform& ThePlatform() {
  static const auto* const platform = [] {
    auto* const made = new dataplane::nccl::Platform{
        .cuda = dataplane::cuda::testing::HostCudaApi(),
        .nccl = dataplane::nccl::testing::HostNcclApi(),
        .nccl_version = 22809};
    static const auto wait = made->cuda.StreamWaitEvent;
    made->cuda.StreamWaitEvent = [](auto stream, auto event, unsigned flags) {
      ++g_waits;
      return wait(stream, event, flags);
    };
    return made;
  }();
  return *platform;
}

class StreamsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    RegisterBackend("nccl-host", {DeviceType::kCuda},
                    [](const BackendOptions& options)
                        -> StatusOr<std::unique_ptr<dataplane::Backend>> {
                      return dataplane::nccl::CreateNcclBackend(ThePlatform(),
                                                                options);
                    });
  }

  StreamsTest() {
    InitProcessGroup({.backend = "cpu:gloo,cuda:nccl-host",
                      .init_method = "tcp://127.0.0.1:0?rank=0&world_size=1"});
    EXPECT_EQ(ThePlatform().cuda.StreamCreateWithPriority(&stream_, 0, 0), 0);
    void* data = nullptr;
    EXPECT_EQ(ThePlatform().cuda.Malloc(&data, 16), 0);
    data_ = static_cast<float*>(data);
    std::fill_n(data_, 4, 1.0F);
  }

  ~StreamsTest() override {
    if (IsInitialized()) DestroyProcessGroup();
    ThePlatform().cuda.StreamDestroy(stream_);
    ThePlatform().cuda.Free(data_);
    EXPECT_THAT(dataplane::nccl::testing::TakeMisuses(), IsEmpty());
    EXPECT_THAT(dataplane::cuda::testing::TakeMisuses(), IsEmpty());
  }

  Tensor OnDevice() {
    return Tensor(data_, DataType::kFloat32, {4}, {DeviceType::kCuda, 0});
  }

  // Blocks the stream until Go(); then the stream writes `value`.
  void HoldStream(float value) {
    Launch(stream_, [this, value, going = go_.get_future().share()] {
      going.wait();
      std::fill_n(data_, 4, value);
    });
  }
  void Go() { go_.set_value(); }

  // Records the data that the stream sees at this point.
  void Look() {
    Launch(stream_, [this] { seen_.assign(data_, data_ + 4); });
  }
  std::vector<float> Seen() {
    EXPECT_EQ(ThePlatform().cuda.StreamSynchronize(stream_), 0);
    return seen_;
  }

  Stream stream_ = nullptr;
  float* data_ = nullptr;
  std::promise<void> go_;
  std::vector<float> seen_;
};

TEST_F(StreamsTest, WithoutAsyncOpItIsInTheCurrentStreamItself) {
  // Creates the communicator first.
  ASSERT_TRUE(AllReduce(OnDevice(), {.async_op = true})
                  .WaitFor(std::chrono::minutes(1)));
  g_waits = 0;
  AllReduce(OnDevice());
  EXPECT_EQ(g_waits, 0);
  AllReduce(OnDevice(), {.async_op = true}).Wait();
  EXPECT_GE(g_waits, 1);
}

TEST_F(StreamsTest, AThreadHasACurrentStreamForEachDevice) {
  EXPECT_EQ(CurrentStream(0), nullptr);
  {
    const StreamGuard guard(3, stream_);
    EXPECT_EQ(CurrentStream(3), stream_);
    EXPECT_EQ(CurrentStream(0), nullptr);
    std::thread([] { EXPECT_EQ(CurrentStream(3), nullptr); }).join();
  }
  EXPECT_EQ(CurrentStream(3), nullptr);
  EXPECT_THROW(CurrentStream(-1), DistError);
  EXPECT_THROW(SetCurrentStream(-1, stream_), DistError);
}

TEST_F(StreamsTest, ACollectiveHoldsUpTheStreamAndNotTheHost) {
  const StreamGuard guard(0, stream_);
  HoldStream(2);
  Work work = AllReduce(
      OnDevice(), {.op = ReduceOp::kPremulSum, .factor = 10, .async_op = true});
  work.Wait();
  Look();
  EXPECT_FALSE(work.IsCompleted());
  EXPECT_FALSE(work.WaitFor(std::chrono::milliseconds(1)));
  EXPECT_EQ(work.Result().size(), 1U);
  Go();
  EXPECT_THAT(Seen(), Each(20));
  EXPECT_TRUE(work.WaitFor(std::chrono::minutes(1)));
  EXPECT_TRUE(work.IsSuccess());
}

TEST_F(StreamsTest, TheSameWithoutAWorkOfOnesOwn) {
  const StreamGuard guard(0, stream_);
  HoldStream(2);
  AllReduce(OnDevice(), {.op = ReduceOp::kPremulSum, .factor = 10});
  // Dropped without a wait.
  AllReduce(OnDevice(),
            {.op = ReduceOp::kPremulSum, .factor = 10, .async_op = true});
  Look();
  Go();
  EXPECT_THAT(Seen(), Each(200));
}

TEST_F(StreamsTest, ABarrierHoldsUpTheHost) {
  const StreamGuard guard(0, stream_);
  const auto group = NewGroup(NewGroupOptions{.backend = "nccl-host"});
  HoldStream(2);
  std::thread later([this] { Go(); });
  Barrier(BarrierOptions{.group = group});
  EXPECT_THAT(std::vector<float>(data_, data_ + 4), Each(2));
  later.join();
}

TEST_F(StreamsTest, ResultNeedsAWait) {
  const StreamGuard guard(0, stream_);
  HoldStream(2);
  Work work = AllReduce(OnDevice(), {.async_op = true});
  EXPECT_THROW(work.Result(), DistError);
  Go();
  work.Wait();
  EXPECT_EQ(work.Result().size(), 1U);
}

TEST_F(StreamsTest, AGroupThatIsBoundToADeviceTakesNoOther) {
  DestroyProcessGroup();
  const std::string alone = "tcp://127.0.0.1:0?rank=0&world_size=1";
  EXPECT_THROW((InitProcessGroup({.backend = "nccl-host", .device_id = -1})),
               DistError);
  InitProcessGroup({.backend = "nccl-host",
                    .device_id = 1,
                    .nccl = {.blocking_wait = true, .max_ctas = 8},
                    .init_method = alone});
  dataplane::nccl::testing::TakeMade();
  const auto group = NewGroup(NewGroupOptions{.nccl = NcclOptions{}});
  for (const auto& one : {WorldGroup(), group}) {
    try {
      AllReduce(OnDevice(), {.group = one});
      ADD_FAILURE() << "taken by " << one->name();
    } catch (const DistError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("tensors on cuda:0 in a group whose device is "
                            "cuda:1"));
    }
  }
  const Tensor on_1(data_, DataType::kFloat32, {4}, {DeviceType::kCuda, 1});
  Work work = AllReduce(on_1, {.async_op = true});
  work.Wait();
  // blocking_wait requires that.
  EXPECT_TRUE(work.IsCompleted());
  AllReduce(on_1, {.group = group});
  EXPECT_EQ(dataplane::nccl::testing::LastConfig().max_ctas,
            dataplane::nccl::kUndefined);
  EXPECT_EQ(dataplane::nccl::testing::TakeMade().by_split, 1);
}

TEST_F(StreamsTest, SymmetricMemoryIsOwnedByItsTensor) {
  SymmetricTensor numbers =
      AllocateSymmetric(nullptr, DataType::kFloat32, {2, 3});
  EXPECT_EQ(numbers.tensor().Describe(), "float32[2,3] on cuda:0");
  std::fill_n(static_cast<float*>(numbers.tensor().data()), 6, 1.0F);
  AllReduce(numbers.tensor(), {.op = ReduceOp::kPremulSum, .factor = 3});
  Barrier();
  // The owner keeps the memory of a group that has ended.
  const auto group = NewGroup(NewGroupOptions{.backend = "nccl-host"});
  const SymmetricTensor other = AllocateSymmetric(group, DataType::kInt8, {1});
  void* const at = other.tensor().data();
  DestroyProcessGroup(group);
  EXPECT_EQ(other.tensor().data(), at);
  static_cast<int8_t*>(at)[0] = 1;
  const SymmetricTensor moved = std::move(numbers);
  EXPECT_EQ(moved.tensor().element_count(), 6);
  EXPECT_EQ(numbers.tensor().element_count(), 0);  // NOLINT: looked at
  const auto problem = [](const std::vector<int64_t>& shape, DeviceType device,
                          int timeout_ms = 0) -> std::string {
    try {
      AllocateSymmetric(
          nullptr, DataType::kInt8, shape,
          {.device = device, .timeout = std::chrono::milliseconds(timeout_ms)});
    } catch (const DistError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_THAT(problem({2}, DeviceType::kCpu),
              HasSubstr("the gloo backend has no symmetric memory"));
  EXPECT_THAT(problem({2, 0}, DeviceType::kCuda),
              HasSubstr("argument shape: no elements in int8[2,0]"));
  EXPECT_THAT(problem({-1}, DeviceType::kCuda),
              HasSubstr("argument shape: negative dimension in int8[-1]"));
  EXPECT_THAT(problem({int64_t{1} << 40, int64_t{1} << 40}, DeviceType::kCuda),
              HasSubstr("does not fit into 63 bits"));
  EXPECT_THAT(problem({1}, DeviceType::kCuda, -5),
              HasSubstr("timeout must not be negative but was -5 ms"));
  // Neither error ends the group.
  EXPECT_EQ(problem({1}, DeviceType::kCuda), "none");
}

TEST_F(StreamsTest, OfSeveralBackendsEachHasTheCommunicatorOfItsOwn) {
  DestroyProcessGroup();
  InitProcessGroup({.backend = "cpu:gloo,cuda:nccl-host",
                    .device_id = 0,
                    .init_method = "tcp://127.0.0.1:0?rank=0&world_size=1"});
  AllReduce(OnDevice());
  dataplane::nccl::testing::TakeMade();
  const auto group = SplitGroup(nullptr, {{0}});
  AllReduce(OnDevice(), {.group = group});
  EXPECT_EQ(dataplane::nccl::testing::TakeMade(),
            dataplane::nccl::testing::Made{.by_split = 1});
  // The flight recorder has it, too.
  for (const std::string& name : {WorldGroup()->name(), group->name()}) {
    EXPECT_THAT(
        FlightRecorderJson(),
        HasSubstr("\"" + name + "/nccl\":{\"asyncError\":\"no error\""));
  }
}

}  // namespace
}  // namespace muster
