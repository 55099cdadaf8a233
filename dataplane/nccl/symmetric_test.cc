// The nccl backend's symmetric memory, on the fake NCCL and CUDA.

#include "dataplane/nccl/symmetric.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <future>
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
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/nccl_options.h"

namespace muster::dataplane::nccl {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SymmetricTest : public testing::BackendTest {
 protected:
  static Collective::Tensors MakeHalves(const Tensor& tensor) {
    const int64_t half = tensor.element_count() / 2;
    float* const data = static_cast<float*>(tensor.data());
    return {Tensor(data, tensor.data_type(), {half}, tensor.device()),
            Tensor(data + half, tensor.data_type(), {half}, tensor.device())};
  }

  using Allocated = StatusOr<std::shared_ptr<SymmetricMemory>>;

  // The results of all ranks, each of which allocates its entry of `bytes`.
  std::vector<Allocated> AllocateEach(const std::vector<size_t>& bytes) {
    std::vector<std::thread> threads;
    std::vector<Allocated> all(bytes.size());
    for (size_t rank = 0; rank < bytes.size(); ++rank) {
      threads.emplace_back([&, rank] {
        all[rank] = backends_[rank]->AllocateSymmetric({.bytes = bytes[rank]});
      });
    }
    for (std::thread& thread : threads) thread.join();
    return all;
  }

  // Allocates `bytes` on all ranks.
  void Allocate(size_t bytes) {
    for (Allocated& one :
         AllocateEach(std::vector<size_t>(backends_.size(), bytes))) {
      ASSERT_TRUE(one.ok()) << one.status();
      pieces_.push_back(*std::move(one));
    }
  }

  // Checks an all_reduce of 1, 2, 4, ... on all ranks' first pieces.
  void ExpectSum(float sum) {
    std::vector<Tensor> tensors;
    std::vector<std::shared_ptr<Work>> works;
    for (size_t rank = 0; rank < backends_.size(); ++rank) {
      tensors.push_back(MakeTensor(rank, 3, static_cast<float>(1 << rank)));
      works.push_back(AllReduce(static_cast<int>(rank), tensors[rank]));
    }
    for (const auto& work : works) EXPECT_EQ(Wait(work), OkStatus());
    for (const Tensor& each : tensors) EXPECT_THAT(GetValues(each), Each(sum));
  }

  Tensor MakeTensor(size_t place, int64_t count, float value) {
    SymmetricMemory& memory = *pieces_[place];
    float* const data = static_cast<float*>(memory.data());
    std::fill_n(data, count, value);
    return Tensor(data, dataplane::DataType::kFloat32, {count},
                  memory.device());
  }

  std::vector<std::shared_ptr<SymmetricMemory>> pieces_;
};

TEST_F(SymmetricTest, CollectivesRunOnItAsOnAnyOther) {
  testing::TakeAborts();
  Make(3);
  Allocate(12);
  ExpectSum(7);
  pieces_.clear();
  // Deregisters the windows in the order that NCCL requires.
  backends_.clear();
  EXPECT_EQ(testing::TakeAborts(), 0);
}

TEST_F(SymmetricTest, ItIsGivenBackWhileOthersAreGathered) {
  Make(1, 0);
  Allocate(4);
  backends_[0]->BeginTogether();
  const auto first = AllReduce(0, OnDevice(1, 1));
  pieces_.clear();
  const auto second = AllReduce(0, OnDevice(1, 1));
  backends_[0]->EndTogether();
  EXPECT_EQ(Wait(first), OkStatus());
  EXPECT_EQ(Wait(second), OkStatus());
}

// The fake NCCL records a misuse if a collective is in progress.
TEST_F(SymmetricTest, ItIsGivenBackWhenNothingIsUnderWay) {
  Make(2, 0);
  Allocate(4);
  const Tensor mine = OnDevice(1, 1);
  const auto first = AllReduce(0, mine);
  pieces_.clear();
  const auto second = AllReduce(1, OnDevice(1, 2));
  EXPECT_EQ(Wait(first), OkStatus());
  EXPECT_EQ(Wait(second), OkStatus());
  EXPECT_THAT(GetValues(mine), Each(3));
}

TEST_F(SymmetricTest, ItMayOutliveItsGroup) {
  for (const bool fails : {false, true}) {
    store_ = std::make_shared<dataplane::testing::InMemoryStore>();
    Make(2);
    Allocate(4);
    if (fails) {
      for (auto& one : backends_) one->Abort(AbortedError("enough"));
    }
    backends_.clear();
    MakeTensor(0, 1, 5);
    pieces_.clear();
  }
}

TEST_F(SymmetricTest, OfAGroupThatHasFailedItIsGivenBackAfterTheCommunicator) {
  Make(2);
  Allocate(4);
  const auto stuck = AllReduce(0, MakeTensor(0, 1, 1));
  backends_[0]->Abort(AbortedError("rank 1 is gone"));
  pieces_[0] = nullptr;
  EXPECT_EQ(Wait(stuck), AbortedError("rank 1 is gone"));
}

TEST_F(SymmetricTest, SoIsWhatWasGivenBackBeforeAndWaitsForItsTurn) {
  // The abort takes longer than the rest of the group's end.
  static std::promise<void> gate;
  static std::shared_future<void> going = gate.get_future().share();
  platform_.nccl.CommAbort = [](Comm comm) {
    going.wait();
    return testing::HostNcclApi().CommAbort(comm);
  };
  Make(2);
  Allocate(4);
  const auto stuck = AllReduce(0, OnDevice(1, 1));
  pieces_[0] = nullptr;
  const auto behind = AllReduce(0, OnDevice(1, 1));
  backends_[0]->Abort(AbortedError("rank 1 is gone"));
  EXPECT_EQ(Wait(behind), AbortedError("rank 1 is gone"));
  EXPECT_THAT(testing::TakeMisuses(), IsEmpty());
  gate.set_value();
  // The collective may be on the device until the abort is done.
  EXPECT_EQ(Wait(stuck), AbortedError("rank 1 is gone"));
}

TEST_F(SymmetricTest, WhoDoesNotComeEndsTheGroupInTime) {
  Make(2, 0);
  const Status status =
      backends_[0]
          ->AllocateSymmetric(
              {.bytes = 4,
               .deadline = Clock::now() + std::chrono::milliseconds(20)})
          .status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(
      status.message(),
      "group \"world\": rank 1 did not come to allocate symmetric memory");
  EXPECT_THAT(CulpritRanks(status), ElementsAre(1));
  EXPECT_EQ(Wait(AllReduce(0, OnDevice(1, 1))), status);
}

// NCCL does not check this.
TEST_F(SymmetricTest, SizesThatDifferEndTheGroup) {
  Make(2);
  Allocate(12);
  ExpectSum(3);
  const std::vector<Allocated> all = AllocateEach({8, 4});
  EXPECT_EQ(all[0].status(),
            InvalidArgumentError(
                "group \"world\": rank 1 allocates 4 bytes of symmetric "
                "memory, rank 0 8"));
  EXPECT_EQ(all[1].status(),
            InvalidArgumentError(
                "group \"world\": rank 0 allocates 8 bytes of symmetric "
                "memory, rank 1 4"));
  EXPECT_EQ(Wait(AllReduce(0, MakeTensor(0, 1, 1))), all[0].status());
}

// The error must not be kResourceExhausted, because other ranks do not have it.
TEST_F(SymmetricTest, AStoreWithoutRoomEndsTheGroup) {
  class FullStore : public dataplane::testing::InMemoryStore {
   public:
    Status SetBy(const std::string& key, const std::string& value,
                 Instant) override {
      return key.starts_with("nccl/symmetric/")
                 ? ResourceExhaustedError("1 key of at most 1")
                 : Set(key, value);
    }
  };
  store_ = std::make_shared<FullStore>();
  Make(2, 0);
  const Status status = backends_[0]->AllocateSymmetric({.bytes = 4}).status();
  EXPECT_EQ(status, InternalError("1 key of at most 1"));
}

TEST_F(SymmetricTest, NothingIsLeftInTheStore) {
  Make(2, 0);
  Allocate(12);
  Allocate(8);
  ExpectSum(3);
  // The communicator's id.
  EXPECT_LE(store_->size(), 1U);
}

TEST_F(SymmetricTest, AnAbortEndsTheWaitForTheOthers) {
  Make(2, 0);
  std::thread later([&] {
    while (store_->sets() == 0) std::this_thread::yield();
    backends_[0]->Abort(AbortedError("enough"));
  });
  EXPECT_EQ(backends_[0]->AllocateSymmetric({.bytes = 4}).status(),
            AbortedError("enough"));
  later.join();
  EXPECT_EQ(backends_[0]->AllocateSymmetric({.bytes = 4}).status(),
            AbortedError("enough"));
}

TEST_F(SymmetricTest, AnotherGroupMayUseIt) {
  Make(2, 0);
  Allocate(12);
  auto owners = std::move(backends_);
  backends_.clear();
  store_ = std::make_shared<dataplane::testing::InMemoryStore>();
  Make(2, 0);
  ExpectSum(3);
  // Also after its own group is destroyed.
  owners.clear();
  ExpectSum(3);
}

TEST_F(SymmetricTest, ASplitGroupHasItsOwn) {
  Make(2, 0);
  Allocate(12);
  auto parents = std::move(backends_);
  backends_.clear();
  store_ = std::make_shared<dataplane::testing::InMemoryStore>();
  for (int rank = 0; rank < 2; ++rank) {
    backends_.push_back(*CreateNcclBackend(
        platform_,
        {.rank = rank,
         .world_size = 2,
         .group_name = "part",
         .store = store_,
         .device = 0,
         .parent_handle = parents[static_cast<size_t>(rank)]->Split({})}));
  }
  pieces_.clear();
  Allocate(12);
  ExpectSum(3);
}

// The fake NCCL records a misuse if the communicator or the memory is freed
// before its windows.
TEST_F(SymmetricTest, AGroupThatIsShrunkGivesItsOwnBack) {
  Make(3, 0);
  Allocate(12);
  ExpectSum(7);
  auto parents = std::move(backends_);
  backends_.clear();
  store_ = std::make_shared<dataplane::testing::InMemoryStore>();
  testing::TakeMade();
  for (int rank = 0; rank < 2; ++rank) {
    backends_.push_back(*CreateNcclBackend(
        platform_, {.rank = rank,
                    .world_size = 2,
                    .group_name = "part",
                    .store = store_,
                    .device = 0,
                    .parent_handle = parents[static_cast<size_t>(rank)]->Split(
                        {.excluded = {2}})}));
  }
  ExpectSum(3);
  EXPECT_EQ(testing::TakeMade(), (testing::Made{.by_shrink = 2}));
  pieces_.clear();
  Allocate(12);
  ExpectSum(3);
}

TEST_F(SymmetricTest, AnOlderNcclHasNone) {
  platform_.nccl.CommWindowRegister = nullptr;
  platform_.nccl_version = 22602;
  Make(1);
  EXPECT_EQ(backends_[0]->AllocateSymmetric({.bytes = 4}).status(),
            UnimplementedError(
                "NCCL 2.26.2 has no symmetric memory: 2.27.0 is needed"));
  EXPECT_EQ(Wait(AllReduce(0, OnDevice(1, 1))), OkStatus());
}

// Copy engines need NCCL's AlltoAll and Scatter. Without copy engines, or
// without these functions, an exchange is sends and receives.
TEST_F(SymmetricTest, WithCopyEnginesAnExchangeIsOneCall) {
  const auto calls_of = [&](NcclOptions::CtaPolicy policy) {
    backends_.clear();
    store_ = std::make_shared<dataplane::testing::InMemoryStore>();
    NcclOptions options;
    options.cta_policy = policy;
    Make(2, -1, options);
    const Tensor out[] = {OnDevice(2, 0), OnDevice(2, 0)};
    std::vector<std::shared_ptr<Work>> works;
    for (const bool single : {true, false}) {
      for (int rank = 0; rank < 2; ++rank) {
        const Tensor in = OnDevice(2, static_cast<float>(rank + 1));
        Collective all = {.kind = CollectiveKind::kAllToAllSingle,
                          .inputs = {in},
                          .outputs = {out[rank]}};
        if (!single) {
          all.kind = CollectiveKind::kAllToAll;
          all.inputs = MakeHalves(in);
          all.outputs = MakeHalves(out[rank]);
        }
        works.push_back(backends_[static_cast<size_t>(rank)]->Start(all));
      }
    }
    const Tensor parts = OnDevice(2, 7);
    const Tensor part[] = {OnDevice(1, 0), OnDevice(1, 0)};
    for (int rank = 0; rank < 2; ++rank) {
      Collective scatter = {
          .kind = CollectiveKind::kScatter, .outputs = {part[rank]}, .root = 1};
      if (rank == 1) scatter.inputs = MakeHalves(parts);
      works.push_back(backends_[static_cast<size_t>(rank)]->Start(scatter));
    }
    for (const auto& work : works) EXPECT_EQ(Wait(work), OkStatus());
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_THAT(GetValues(out[rank]), ElementsAre(1, 2));
      EXPECT_THAT(GetValues(part[rank]), ElementsAre(7));
    }
    return testing::TakeCopyEngineCalls();
  };
  testing::TakeCopyEngineCalls();
  using enum NcclOptions::CtaPolicy;
  EXPECT_EQ(calls_of(kDefault), 0);
  EXPECT_EQ(calls_of(kZero), 6);
  platform_.nccl.AlltoAll = nullptr;
  platform_.nccl.Scatter = nullptr;
  EXPECT_EQ(calls_of(kZero), 0);
}

}  // namespace
}  // namespace muster::dataplane::nccl
