// How collectives of CUDA tensors use the host, on the fake CUDA.
// staging_conformance_test tests their results.

#include "dataplane/cuda/staging.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dataplane/cuda/stream.h"
#include "dataplane/cuda/testing/host_cuda.h"
#include "dataplane/culprit.h"
#include "dataplane/failed_call.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/mutex.h"

namespace muster::dataplane::cuda {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Launch;

// Doubles CPU tensors, or fails. In an all_to_all the other rank sends what it
// receives; in the announcement before that, the values of `seen`.
class DoublingBackend : public Backend {
 public:
  struct Seen {
    Mutex mutex;
    std::vector<int64_t> sizes;
    // In the announcement before an all_to_all.
    bool announced = false;
    int64_t chunks_of_other = 0;
    int64_t count_of_other = 3;
    Status fail;
  };

  explicit DoublingBackend(Seen& seen) : seen_(seen) {}

  std::string name() const override { return "gloo"; }
  std::span<const DeviceType> devices() const override { return {}; }
  Status Supports(const Collective& collective) const override {
    return collective.cuda_device() < 0 ? OkStatus()
                                        : UnimplementedError("not on the CPU");
  }
  std::shared_ptr<Work> Start(const Collective& collective) override {
    MutexLock lock(seen_.mutex);
    if (!collective.tensors.empty()) {
      const Tensor& tensor = collective.tensors[0];
      auto* const data = static_cast<float*>(tensor.data());
      for (int64_t i = 0; i < tensor.element_count(); ++i) data[i] *= 2;
      seen_.sizes.push_back(tensor.element_count());
    } else if (IsAnnouncement(collective)) {
      seen_.announced = true;
      const auto* const own =
          static_cast<const int64_t*>(collective.inputs[0].data());
      // The tensors of a list are contiguous, too.
      auto* const all = static_cast<int64_t*>(collective.outputs[0].data());
      std::copy_n(own, 2, all);
      all[2] = seen_.chunks_of_other;
      all[3] = seen_.count_of_other;
    } else {
      for (size_t i = 0; i < collective.inputs.size(); ++i) {
        const Tensor& from = collective.inputs[i];
        std::copy_n(static_cast<const float*>(from.data()),
                    from.element_count(),
                    static_cast<float*>(collective.outputs[i].data()));
        seen_.sizes.push_back(from.element_count());
      }
    }
    auto work = std::make_shared<PromisedWork>(collective.Describe());
    work->Complete(seen_.fail);
    return work;
  }
  void Abort(Status) override {}

 private:
  bool IsAnnouncement(const Collective& collective) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(seen_.mutex) {
    return !seen_.announced &&
           (collective.kind == CollectiveKind::kAllToAll ||
            collective.kind == CollectiveKind::kAllToAllSingle);
  }

  Seen& seen_;
};

class StagingTest : public ::testing::Test {
 protected:
  StagingTest() {
    backend_ = CreateStaging(
        api_, std::make_unique<DoublingBackend>(seen_),
        {.world_size = 2, .group_name = "world", .chunk_bytes = 16});
    EXPECT_EQ(api_.StreamCreateWithPriority(&stream_, 0, 0), kSuccess);
    SetCurrentStream(0, stream_);
  }

  ~StagingTest() override {
    backend_.reset();
    SetCurrentStream(0, nullptr);
    EXPECT_EQ(api_.StreamDestroy(stream_), kSuccess);
    // Also waits for copies that were left running.
    testing::SynchronizeAll();
    for (void* const data : memory_) api_.Free(data);
    EXPECT_THAT(testing::TakeMisuses(), IsEmpty());
  }

  Tensor OnDevice(int64_t count, float value) {
    void* data = nullptr;
    EXPECT_EQ(api_.Malloc(&data, static_cast<size_t>(count) * 4), kSuccess);
    memory_.push_back(data);
    std::fill_n(static_cast<float*>(data), count, value);
    return Tensor(data, DataType::kFloat32, {count}, {DeviceType::kCuda, 0});
  }

  static std::vector<float> GetValues(const Tensor& tensor) {
    const auto* const data = static_cast<const float*>(tensor.data());
    return {data, data + tensor.element_count()};
  }

  // Makes the current stream wait for `go` and then call `then`.
  void Hold(
      std::promise<void>& go, std::function<void()> then = [] {}) {
    Launch(stream_, [going = go.get_future().share(), then] {
      going.wait();
      then();
    });
  }

  std::shared_ptr<Work> AllReduce(
      const Tensor& tensor,
      std::chrono::milliseconds timeout = std::chrono::minutes(1)) {
    return backend_->Start({.kind = CollectiveKind::kAllReduce,
                            .tensors = {tensor},
                            .timeout = timeout,
                            .deadline = Clock::now() + timeout,
                            .sequence = 7});
  }

  const Api api_ = testing::HostCudaApi();
  DoublingBackend::Seen seen_;
  std::unique_ptr<Backend> backend_;
  Stream stream_ = nullptr;
  std::vector<void*> memory_;
};

TEST_F(StagingTest, ATensorGoesInChunksInItsOrder) {
  const Tensor tensor = OnDevice(19, 1);
  EXPECT_EQ(AllReduce(tensor)->Wait(), OkStatus());
  EXPECT_THAT(GetValues(tensor), Each(2));
  EXPECT_THAT(seen_.sizes, ElementsAre(4, 4, 4, 4, 3));
  seen_.sizes.clear();
  EXPECT_EQ(AllReduce(OnDevice(1, 1))->Wait(), OkStatus());
  EXPECT_THAT(seen_.sizes, ElementsAre(1));
  EXPECT_EQ(AllReduce(Tensor(nullptr, DataType::kFloat32, {0},
                             {DeviceType::kCuda, 0}))
                ->Wait(),
            OkStatus());
}

class StagedAllToAllTest : public StagingTest {
 protected:
  std::shared_ptr<Work> AllToAll() {
    seen_.announced = false;
    return backend_->Start({.kind = CollectiveKind::kAllToAllSingle,
                            .inputs = {given_},
                            .outputs = {taken_},
                            .input_splits = {1, 3},
                            .output_splits = {1, 3},
                            .deadline = Clock::now() + std::chrono::minutes(1),
                            .sequence = 7});
  }

  const Tensor given_ = OnDevice(4, 7);
  const Tensor taken_ = OnDevice(4, 1);
};

// Eight elements in chunks of four.
TEST_F(StagedAllToAllTest, TakesTheChunksThatAnyRankNeeds) {
  EXPECT_EQ(AllToAll()->Wait(), OkStatus());
  EXPECT_THAT(GetValues(taken_), Each(7));
  EXPECT_THAT(seen_.sizes, ElementsAre(1, 2, 0, 1));
  seen_.sizes.clear();
  seen_.chunks_of_other = 5;
  EXPECT_EQ(AllToAll()->Wait(), OkStatus());
  EXPECT_THAT(seen_.sizes, ElementsAre(1, 1, 0, 1, 0, 1, 0, 0, 0, 0));
}

TEST_F(StagedAllToAllTest, ListsGoAlike) {
  const Tensor first = OnDevice(1, 7);
  const Tensor second = OnDevice(3, 7);
  const Tensor other = OnDevice(3, 1);
  const auto work =
      backend_->Start({.kind = CollectiveKind::kAllToAll,
                       .inputs = {first, second},
                       .outputs = {OnDevice(1, 1), other},
                       .deadline = Clock::now() + std::chrono::minutes(1)});
  EXPECT_EQ(work->Wait(), OkStatus());
  EXPECT_THAT(GetValues(other), Each(7));
  EXPECT_THAT(seen_.sizes, ElementsAre(1, 2, 0, 1));
}

TEST_F(StagedAllToAllTest, OneChunkIsTheWholeOfIt) {
  const Tensor few = OnDevice(2, 7);
  const Tensor taken = OnDevice(2, 1);
  seen_.count_of_other = 1;
  const auto work =
      backend_->Start({.kind = CollectiveKind::kAllToAllSingle,
                       .inputs = {few},
                       .outputs = {taken},
                       .deadline = Clock::now() + std::chrono::minutes(1)});
  EXPECT_EQ(work->Wait(), OkStatus());
  EXPECT_THAT(GetValues(taken), Each(7));
  EXPECT_THAT(seen_.sizes, ElementsAre(2));
}

// Also while the caller's stream is busy.
TEST_F(StagedAllToAllTest, PartsThatDisagreeAreToldBeforeAnyMoves) {
  const testing::Leaks before = testing::CountLeaks();
  std::promise<void> go;
  Hold(go);
  seen_.count_of_other = 4;
  const Status status = AllToAll()->Wait();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "all_to_all_single #7 on group \"world\": rank 1 gives rank 0 4 "
            "float32 in all_to_all_single #7, rank 0 takes 3");
  EXPECT_EQ(CulpritRank(status), 1);
  EXPECT_THAT(seen_.sizes, IsEmpty());
  EXPECT_THAT(GetValues(taken_), Each(1));
  // No slots were leaked to copies.
  backend_.reset();
  go.set_value();
  const testing::Leaks after = testing::CountLeaks();
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.memory, before.memory);
}

TEST_F(StagedAllToAllTest, WhatFailsBeforeItIsItsOwnFailure) {
  seen_.fail = UnavailableError("rank 1 is gone");
  EXPECT_EQ(AllToAll()->Wait(), seen_.fail);
  EXPECT_THAT(seen_.sizes, IsEmpty());
}

// The tensor's rows have one element, so that one chunk holds all.
TEST_F(StagingTest, AnAllGatherIntoATensorTakesNoMoreChunksThanItsRowsNeed) {
  const auto work =
      backend_->Start({.kind = CollectiveKind::kAllGatherIntoTensor,
                       .inputs = {OnDevice(1, 7)},
                       .outputs = {OnDevice(2, 1)},
                       .deadline = Clock::now() + std::chrono::minutes(1)});
  EXPECT_EQ(work->Wait(), OkStatus());
  EXPECT_THAT(seen_.sizes, ElementsAre(1));
}

TEST_F(StagingTest, ItIsOrderedWithTheCurrentStream) {
  const Tensor tensor = OnDevice(6, 1);
  float* const data = static_cast<float*>(tensor.data());
  std::promise<void> go;
  Hold(go, [data] { std::fill_n(data, 6, 5.0F); });
  const auto work = AllReduce(tensor);
  EXPECT_FALSE(work->IsCompleted());
  go.set_value();
  EXPECT_EQ(work->Synchronize(), OkStatus());
  std::vector<float> behind;
  Launch(stream_, [&] { behind = GetValues(tensor); });
  EXPECT_EQ(api_.StreamSynchronize(stream_), kSuccess);
  EXPECT_THAT(behind, Each(10));
  EXPECT_EQ(work->Wait(), OkStatus());
}

TEST_F(StagingTest, AFailureEndsAllThatComesLater) {
  seen_.fail = UnavailableError("rank 1 is gone");
  const Tensor tensor = OnDevice(40, 1);
  EXPECT_EQ(AllReduce(tensor)->Wait(), seen_.fail);
  EXPECT_EQ(AllReduce(tensor)->Wait(), seen_.fail);
  EXPECT_EQ(AllReduce(tensor)->Synchronize(), seen_.fail);
}

TEST_F(StagingTest, AnAbortEndsWhatWaitsForTheCallersStream) {
  std::promise<void> go;
  Hold(go);
  const auto work = AllReduce(OnDevice(4, 1));
  const auto next = AllReduce(OnDevice(4, 1));
  backend_->Abort(AbortedError("enough"));
  EXPECT_EQ(work->Wait(), AbortedError("enough"));
  EXPECT_EQ(next->Synchronize(), AbortedError("enough"));
  go.set_value();
}

TEST_F(StagingTest, AStreamThatIsStuckIsATimeoutAndHoldsUpNobodysEnd) {
  std::promise<void> go;
  Hold(go);
  const Status status =
      AllReduce(OnDevice(4, 1), std::chrono::milliseconds(20))->Wait();
  EXPECT_TRUE(IsDeadlineExceeded(status));
  EXPECT_EQ(status.message(),
            "all_reduce #7: timed out after 20 ms waiting for what "
            "the current stream had been given before");
  EXPECT_EQ(FindFailedCall(status), FailedCall{"all_reduce #7"});
  backend_.reset();
  go.set_value();
}

TEST_F(StagingTest, WhatItDoesNotTakeIsSaid) {
  float value = 0;
  const auto supports = [&](CollectiveKind kind, Tensor first, Tensor second) {
    return backend_->Supports(
        {.kind = kind, .inputs = {first, second}, .outputs = {first}});
  };
  const Tensor on_cpu(&value, {1});
  const Tensor on_0(&value, {1}, {DeviceType::kCuda, 0});
  const Tensor on_1(&value, {1}, {DeviceType::kCuda, 1});
  EXPECT_EQ(supports(CollectiveKind::kReduceScatter, on_0, on_0), OkStatus());
  EXPECT_EQ(supports(CollectiveKind::kReduceScatter, on_cpu, on_cpu),
            UnimplementedError("the gloo backend of cuda takes CUDA "
                               "tensors, got float32[1]"));
  EXPECT_EQ(
      supports(CollectiveKind::kReduceScatter, on_0, on_1),
      InvalidArgumentError("tensors on cuda:1 and cuda:0 in one collective"));
}

}  // namespace
}  // namespace muster::dataplane::cuda
