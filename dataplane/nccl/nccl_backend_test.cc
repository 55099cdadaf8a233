// The nccl backend's use of streams, communicators and errors, on the fake NCCL
// and CUDA. nccl_conformance_test tests its results.

#include "dataplane/nccl/nccl_backend.h"

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dataplane/coalescing.h"
#include "dataplane/communicator.h"
#include "dataplane/cuda/stream.h"
#include "dataplane/cuda/testing/host_cuda.h"
#include "dataplane/culprit.h"
#include "dataplane/failed_call.h"
#include "dataplane/nccl/testing/backend_test.h"
#include "dataplane/nccl/testing/host_nccl.h"
#include "dataplane/observe/consistency_check.h"
#include "dataplane/testing/in_memory_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::nccl {
namespace {

using dataplane::testing::InMemoryStore;
using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr std::chrono::seconds kLong(60);

using NcclBackendTest = testing::BackendTest;

TEST_F(NcclBackendTest, ACollectiveBeginsAfterWhatIsOnTheCurrentStream) {
  Make(2);
  const cuda::Stream stream = MakeStream();
  const Tensor mine = OnDevice(4, 1);
  const Tensor others = OnDevice(4, 10);
  std::promise<void> go;
  cuda::SetCurrentStream(0, stream);
  cuda::testing::Launch(stream, [&, future = go.get_future().share()] {
    future.wait();
    std::fill_n(static_cast<float*>(mine.data()), 4, 2.0F);
  });
  const auto first = AllReduce(0, mine);
  cuda::SetCurrentStream(0, nullptr);
  const auto second = AllReduce(1, others);
  EXPECT_FALSE(first->IsCompleted());
  go.set_value();
  EXPECT_EQ(Wait(first), OkStatus());
  EXPECT_EQ(Wait(second), OkStatus());
  EXPECT_THAT(GetValues(mine), Each(12));
  EXPECT_THAT(GetValues(others), Each(12));
}

TEST_F(NcclBackendTest, SynchronizeHoldsUpTheCurrentStreamAndNotTheHost) {
  Make(2);
  const cuda::Stream stream = MakeStream();
  const cuda::Stream other = MakeStream();
  const Tensor mine = OnDevice(4, 1);
  // The values that the streams see.
  std::vector<float> behind;
  std::vector<float> beside;
  cuda::SetCurrentStream(0, stream);
  const auto first = AllReduce(0, mine);
  // The communicator is ready once the other rank has come.
  const auto second = AllReduce(1, OnDevice(4, 10));
  EXPECT_EQ(Wait(first), OkStatus());
  EXPECT_EQ(Wait(second), OkStatus());

  const auto third = AllReduce(0, mine);
  EXPECT_EQ(third->Synchronize(), OkStatus());
  cuda::testing::Launch(stream, [&] { behind = GetValues(mine); });
  cuda::testing::Launch(other, [&] { beside = GetValues(mine); });
  EXPECT_EQ(platform_.cuda.StreamSynchronize(other), cuda::kSuccess);
  EXPECT_THAT(beside, Each(11));
  EXPECT_FALSE(third->IsCompleted());
  // The other rank uses another current stream.
  cuda::SetCurrentStream(0, nullptr);
  const auto fourth = AllReduce(1, OnDevice(4, 100));
  EXPECT_EQ(platform_.cuda.StreamSynchronize(stream), cuda::kSuccess);
  EXPECT_THAT(behind, Each(111));
  EXPECT_EQ(Wait(third), OkStatus());
  EXPECT_EQ(third->Synchronize(), OkStatus());
  EXPECT_EQ(Wait(fourth), OkStatus());
}

TEST_F(NcclBackendTest, TheCheckOfDetailKeepsTheCallersStream) {
  Make(2);
  for (int rank = 0; rank < 2; ++rank) {
    auto& backend = backends_[static_cast<size_t>(rank)];
    backend = std::make_unique<ConsistencyCheck>(
        std::move(backend), ConsistencyCheckOptions{.group_name = "world",
                                                    .rank = rank,
                                                    .world_size = 2,
                                                    .store = store_});
  }
  const cuda::Stream stream = MakeStream();
  const Tensor mine = OnDevice(4, 1);
  std::promise<void> go;
  std::vector<float> behind;
  cuda::SetCurrentStream(0, stream);
  cuda::testing::Launch(stream, [&, future = go.get_future().share()] {
    future.wait();
    std::fill_n(static_cast<float*>(mine.data()), 4, 2.0F);
  });
  const Instant deadline = Clock::now() + kLong;
  const auto first = AllReduce(0, mine, deadline);
  cuda::SetCurrentStream(0, nullptr);
  const auto second = AllReduce(1, OnDevice(4, 10), deadline);
  // Returns when both ranks have come, before the results are there.
  cuda::SetCurrentStream(0, stream);
  EXPECT_EQ(first->Synchronize(), OkStatus());
  cuda::testing::Launch(stream, [&] { behind = GetValues(mine); });
  cuda::SetCurrentStream(0, nullptr);
  EXPECT_FALSE(first->IsCompleted());
  go.set_value();
  EXPECT_EQ(platform_.cuda.StreamSynchronize(stream), cuda::kSuccess);
  EXPECT_THAT(behind, Each(12));
  EXPECT_EQ(Wait(first), OkStatus());
  EXPECT_EQ(Wait(second), OkStatus());
}

TEST_F(NcclBackendTest, CoalescedCollectivesAreOneGroupOfNccl) {
  Make(1);
  Communicator communicator({.group_name = "world"}, std::move(backends_[0]));
  testing::TakeLaunches();
  std::vector<Collective> collectives;
  for (int i = 0; i < 4; ++i) {
    collectives.push_back(
        {.kind = CollectiveKind::kAllReduce, .tensors = {OnDevice(2, 3)}});
  }
  const auto work = StartCoalesced(communicator, collectives);
  EXPECT_EQ(work->Synchronize(), OkStatus());
  EXPECT_EQ(Wait(work), OkStatus());
  EXPECT_THAT(testing::TakeLaunches(), ElementsAre(4));
}

TEST_F(NcclBackendTest, SynchronizeOfABarrierHoldsUpTheHost) {
  Make(2);
  const auto mine = backends_[0]->Start({.kind = CollectiveKind::kBarrier});
  std::thread waiter([&] {
    EXPECT_EQ(mine->Synchronize(), OkStatus());
    EXPECT_TRUE(mine->IsCompleted());
  });
  const auto others = backends_[1]->Start({.kind = CollectiveKind::kBarrier});
  waiter.join();
  EXPECT_EQ(others->Synchronize(), OkStatus());
}

TEST_F(NcclBackendTest, SynchronizeOfWhatNeverBeganSaysWhy) {
  Make(2);
  const auto work = AllReduce(0, OnDevice(1, 1));
  std::thread waiter(
      [&] { EXPECT_EQ(work->Synchronize(), AbortedError("rank 1 is gone")); });
  backends_[0]->Abort(AbortedError("rank 1 is gone"));
  waiter.join();
  EXPECT_EQ(work->Synchronize(), AbortedError("rank 1 is gone"));
}

TEST_F(NcclBackendTest, WhatIsStartedTogetherIsOneGroupOfNccl) {
  Make(2);
  testing::TakeLaunches();
  for (int round = 0; round < 2; ++round) {
    std::vector<Tensor> tensors;
    std::vector<std::shared_ptr<Work>> works;
    for (int rank = 0; rank < 2; ++rank) {
      backends_[static_cast<size_t>(rank)]->BeginTogether();
      for (int i = 0; i < 3; ++i) {
        tensors.push_back(OnDevice(2, static_cast<float>(i)));
        works.push_back(AllReduce(rank, tensors.back()));
      }
      backends_[static_cast<size_t>(rank)]->EndTogether();
    }
    for (const auto& work : works) EXPECT_EQ(Wait(work), OkStatus());
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_THAT(GetValues(tensors[i]), Each(2 * (i % 3)));
    }
  }
  EXPECT_THAT(testing::TakeLaunches(), ElementsAre(3, 3, 3, 3));
}

TEST_F(NcclBackendTest, WhatNcclIsSlowToStartKeepsItsOrder) {
  testing::SetPolls(3);
  Make(2);
  const Tensor mine = OnDevice(2, 1);
  const Tensor others = OnDevice(2, 2);
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 4; ++i) {
    works.push_back(AllReduce(0, mine));
    works.push_back(AllReduce(1, others));
  }
  EXPECT_EQ(works.back()->Synchronize(), OkStatus());
  for (const auto& work : works) EXPECT_EQ(Wait(work), OkStatus());
  EXPECT_THAT(GetValues(mine), Each(24));
  EXPECT_THAT(GetValues(others), Each(24));
  testing::SetPolls(0);
}

TEST_F(NcclBackendTest, AGroupThatIsBoundToADeviceIsMadeAtOnce) {
  Make(2, /*device=*/1);
  // Rank 1 reads rank 0's id although nothing was started.
  while (store_->gets() == 0) std::this_thread::yield();
  EXPECT_EQ(backends_[0]->Supports({.kind = CollectiveKind::kAllReduce,
                                    .tensors = {OnDevice(1, 1)}}),
            InvalidArgumentError(
                "tensors on cuda:0 in a group whose device is cuda:1"));
  const auto first = AllReduce(0, OnDevice(1, 1, 1));
  const auto second = AllReduce(1, OnDevice(1, 1, 1));
  EXPECT_EQ(Wait(first), OkStatus());
  EXPECT_EQ(Wait(second), OkStatus());
  EXPECT_EQ(CreateNcclBackend(platform_, {.device = 2}).status(),
            InvalidArgumentError(
                "argument device_id: 2, but there are 2 CUDA devices"));
}

TEST_F(NcclBackendTest, AGroupInPeaceGivesItsCommunicatorsBackUnaborted) {
  testing::TakeAborts();
  Make(2);
  const auto first = AllReduce(0, OnDevice(1, 1));
  const auto second = AllReduce(1, OnDevice(1, 1));
  EXPECT_EQ(Wait(first), OkStatus());
  EXPECT_EQ(Wait(second), OkStatus());
  backends_.clear();
  EXPECT_EQ(testing::TakeAborts(), 0);
}

TEST_F(NcclBackendTest, AGroupCostsTheStoreOneSmallValue) {
  Make(3);
  for (int round = 0; round < 2; ++round) {
    std::vector<std::shared_ptr<Work>> works;
    for (int rank = 0; rank < 3; ++rank) {
      works.push_back(AllReduce(rank, OnDevice(1, 1)));
    }
    for (const auto& work : works) EXPECT_EQ(Wait(work), OkStatus());
  }
  EXPECT_EQ(store_->sets(), 1);
  EXPECT_EQ(store_->gets(), 2);
}

TEST_F(NcclBackendTest, SendsBothWaysAtOnceHoldUpNothing) {
  Make(2);
  std::vector<Tensor> got;
  std::vector<std::shared_ptr<Work>> works;
  for (int rank = 0; rank < 2; ++rank) {
    auto& backend = backends_[static_cast<size_t>(rank)];
    works.push_back(
        backend->Start({.kind = CollectiveKind::kSend,
                        .inputs = {OnDevice(3, static_cast<float>(rank + 1))},
                        .peer = 1 - rank}));
  }
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_FALSE(works[static_cast<size_t>(rank)]->IsCompleted());
    got.push_back(OnDevice(3, 0));
    works.push_back(backends_[static_cast<size_t>(rank)]->Start(
        {.kind = CollectiveKind::kRecv,
         .outputs = {got.back()},
         .peer = 1 - rank}));
  }
  for (const auto& work : works) EXPECT_EQ(Wait(work), OkStatus());
  EXPECT_THAT(GetValues(got[0]), Each(2));
  EXPECT_THAT(GetValues(got[1]), Each(1));
  EXPECT_EQ(works[2]->source_rank(), 1);
}

TEST_F(NcclBackendTest, AnAbortEndsWhatWaitsForOthersWithItsCause) {
  // A collective that the other rank does not join, before and after there is a
  // communicator.
  for (const bool made : {false, true}) {
    backends_.clear();
    // A fresh store, as each group has its own keys.
    store_ = std::make_shared<InMemoryStore>();
    Make(2);
    if (made) {
      const auto first = AllReduce(0, OnDevice(1, 1));
      const auto second = AllReduce(1, OnDevice(1, 1));
      EXPECT_EQ(Wait(first), OkStatus());
      EXPECT_EQ(Wait(second), OkStatus());
    }
    const Tensor mine = OnDevice(2, 5);
    const auto work = AllReduce(0, mine);
    backends_[0]->Abort(AbortedError("rank 1 is gone"));
    EXPECT_EQ(Wait(work), AbortedError("rank 1 is gone"));
    EXPECT_THAT(GetValues(mine), Each(5));
    EXPECT_EQ(Wait(AllReduce(0, mine)), AbortedError("rank 1 is gone"));
  }
}

class TimeoutTest : public NcclBackendTest {
 protected:
  Collective Late(milliseconds timeout) {
    return {.kind = CollectiveKind::kAllReduce,
            .tensors = {OnDevice(1, 1)},
            .timeout = timeout,
            .deadline = Clock::now() + timeout};
  }
};

TEST_F(TimeoutTest, ADeadlineEndsTheGroup) {
  Make(2);
  const auto first = AllReduce(0, OnDevice(1, 1));
  const auto second = AllReduce(1, OnDevice(1, 1));
  EXPECT_EQ(Wait(first), OkStatus());
  EXPECT_EQ(Wait(second), OkStatus());
  const Status status = Wait(backends_[0]->Start(Late(milliseconds(20))));
  EXPECT_TRUE(IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(std::string(status.message()),
            "all_reduce #0 on group \"world\": timed out after 20ms waiting "
            "for rank 1");
  EXPECT_THAT(CulpritRanks(status), ElementsAre(1));
}

TEST_F(TimeoutTest, OnlyThoseThatHaveNotComeAreNamed) {
  Make(4);
  // Rank 1 has a long deadline; by then it has noted that it has come.
  Collective patient = Late(milliseconds(400));
  patient.deadline = Clock::now() + kLong;
  const auto waits = backends_[1]->Start(patient);
  const Status status = Wait(backends_[0]->Start(Late(milliseconds(400))));
  EXPECT_EQ(std::string(status.message()),
            "all_reduce #0 on group \"world\": timed out after 400ms waiting "
            "for ranks 2, 3");
  EXPECT_THAT(CulpritRanks(status), ElementsAre(2, 3));
  backends_[1]->Abort(status);
  EXPECT_EQ(Wait(waits), status);
}

TEST_F(TimeoutTest,
       ACollectiveThatEndsWhileTheMissingAreLookedForHasNotFailed) {
  Make(2);
  const auto one = AllReduce(0, OnDevice(1, 1));
  const auto other = AllReduce(1, OnDevice(1, 1));
  EXPECT_EQ(Wait(one), OkStatus());
  EXPECT_EQ(Wait(other), OkStatus());
  Collective late = Late(std::chrono::seconds(4));
  late.deadline = Clock::now();
  const auto first = backends_[0]->Start(late);
  // Two keys: the unique id and this rank's note.
  while (store_->sets() < 2) std::this_thread::yield();
  const auto second = AllReduce(1, OnDevice(1, 1));
  EXPECT_EQ(Wait(first), OkStatus());
  EXPECT_EQ(Wait(second), OkStatus());
  // Also ends the search for missing ranks, which must have no effect.
  EXPECT_EQ(store_->Set("nccl/at/1", "2"), OkStatus());
  for (int i = 0; i < 200; ++i) {
    const auto mine = AllReduce(0, OnDevice(1, 1));
    const auto others = AllReduce(1, OnDevice(1, 1));
    EXPECT_EQ(Wait(mine), OkStatus());
    EXPECT_EQ(Wait(others), OkStatus());
  }
}

TEST_F(TimeoutTest, OfAReceiveItIsTheSender) {
  Make(3);
  Collective late = Late(milliseconds(20));
  late.kind = CollectiveKind::kRecv;
  late.outputs = std::move(late.tensors);
  late.peer = 2;
  const Status status = Wait(backends_[0]->Start(late));
  EXPECT_EQ(std::string(status.message()),
            "recv #0 on group \"world\": timed out after 20ms waiting for "
            "rank 2");
  EXPECT_THAT(CulpritRanks(status), ElementsAre(2));
}

TEST_F(NcclBackendTest, AnErrorOfNcclsSaysInWhichCollective) {
  Make(1);
  EXPECT_EQ(Wait(AllReduce(0, OnDevice(1, 1))), OkStatus());
  float on_host[1] = {};
  EXPECT_EQ(Wait(AllReduce(0, Tensor(on_host, {1}, {DeviceType::kCuda, 0}))),
            Labelled({"all_reduce #0"}, "world",
                     InternalError("ncclAllReduce: invalid argument")));
  EXPECT_THAT(testing::TakeMisuses(),
              ElementsAre("AllReduce of memory that is not on a device"));
}

TEST_F(NcclBackendTest, WhatItsCommunicatorsAreAtIsToBeHad) {
  Make(2);
  EXPECT_THAT(backends_[0]->communicator_states(), IsEmpty());
  const auto first = AllReduce(0, OnDevice(1, 1));
  EXPECT_EQ(backends_[0]->communicator_states()["nccl"]["state"], "being made");
  const auto second = AllReduce(1, OnDevice(1, 1));
  EXPECT_EQ(Wait(first), OkStatus());
  EXPECT_EQ(Wait(second), OkStatus());
  const auto third = AllReduce(0, OnDevice(1, 1));
  using Texts = std::map<std::string, std::string>;
  EXPECT_THAT(backends_[0]->communicator_states(),
              ElementsAre(Pair("nccl", Texts{{"asyncError", "no error"},
                                             {"cudaDev", "0"},
                                             {"endedCollectives", "1"},
                                             {"nRanks", "2"},
                                             {"rank", "0"},
                                             {"startedCollectives", "2"},
                                             {"state", "ready"}})));
  backends_[0]->Abort(AbortedError("rank 1 is gone"));
  EXPECT_EQ(Wait(third), AbortedError("rank 1 is gone"));
  EXPECT_EQ(backends_[0]->communicator_states()["nccl"]["state"], "ended");
}

TEST_F(NcclBackendTest, ARankThatMeetsNobodySaysSoInTime) {
  Make(2);
  const Status status = Wait(AllReduce(
      1, OnDevice(1, 1), Clock::now() + std::chrono::milliseconds(20)));
  EXPECT_TRUE(IsDeadlineExceeded(status)) << status;
}

// Uses ncclCommFinalize and ncclCommDestroy, which take half as long as an
// abort and leave no NCCL thread that could delay the process's end.
TEST_F(NcclBackendTest, AGroupThatIsDestroyedInPeaceAbortsNoCommunicator) {
  static std::atomic<int> destroyed{0};
  static std::atomic<int> aborted{0};
  platform_.nccl.CommDestroy = [](Comm comm) {
    ++destroyed;
    return testing::HostNcclApi().CommDestroy(comm);
  };
  platform_.nccl.CommAbort = [](Comm comm) {
    ++aborted;
    return testing::HostNcclApi().CommAbort(comm);
  };
  Make(2);
  OnDevice(1, 1);
  OnDevice(1, 1);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      Communicator communicator(
          {.group_name = "world",
           .rank = rank,
           .world_size = 2,
           .default_timeout = kLong},
          std::move(backends_[static_cast<size_t>(rank)]));
      float* const data = memory_[static_cast<size_t>(rank)];
      const Tensor tensor(data, dataplane::DataType::kFloat32, {1},
                          {DeviceType::kCuda, 0});
      EXPECT_EQ(Wait(communicator.Start(
                    {.kind = CollectiveKind::kAllReduce, .tensors = {tensor}})),
                OkStatus());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(destroyed, 2);
  EXPECT_EQ(aborted, 0);
}

TEST_F(NcclBackendTest, TensorsOnAnotherDeviceAreRefused) {
  Make(1);
  EXPECT_EQ(Wait(AllReduce(0, OnDevice(1, 1))), OkStatus());
  const auto supports = [&](const Collective::Tensors& inputs) {
    return backends_[0]->Supports({.kind = CollectiveKind::kReduceScatter,
                                   .inputs = inputs,
                                   .outputs = {OnDevice(1, 1)}});
  };
  EXPECT_EQ(supports({OnDevice(1, 1)}), OkStatus());
  EXPECT_EQ(supports({OnDevice(1, 1), OnDevice(1, 1, 1)}),
            InvalidArgumentError(
                "tensors on cuda:1 in a group whose device is cuda:0"));
}

// The first one is passed to NCCL when the communicator is ready.
TEST_F(NcclBackendTest, WhatNcclRefusesIsAnErrorOfTheCollective) {
  platform_.nccl.AllReduce = [](const void*, void*, size_t, DataType, RedOp,
                                Comm, cuda::Stream) {
    return Result{4};  // ncclInvalidArgument
  };
  Make(1);
  EXPECT_THAT(std::string(Wait(AllReduce(0, OnDevice(1, 1))).message()),
              HasSubstr("all_reduce #0 on group \"world\": ncclAllReduce: "));
}

// NCCL's kernel for one rank omits the last elements of most sizes.
TEST_F(NcclBackendTest, OneRankMultipliesAllOfItsElements) {
  Make(1);
  for (const int64_t count : {4097, 8193, 16385, 131'073, 200'001}) {
    const Tensor tensor = OnDevice(count, 3);
    Collective collective = {.kind = CollectiveKind::kAllReduce,
                             .tensors = {tensor},
                             .reduce_op = ReduceOp::kPremulSum,
                             .factor = 2};
    EXPECT_EQ(Wait(backends_[0]->Start(collective)), OkStatus());
    EXPECT_THAT(GetValues(tensor), Each(6)) << count;
  }
}

TEST_F(NcclBackendTest, Float8IsReducedWhereNcclAndTheDeviceCan) {
  uint8_t element = 0;
  const Tensor tensor(&element, dataplane::DataType::kFloat8E5m2, {1},
                      {DeviceType::kCuda, 0});
  const auto supports = [&](CollectiveKind kind) {
    Make(1);
    const Status status =
        backends_[0]->Supports({.kind = kind, .tensors = {tensor}});
    backends_.clear();
    store_ = std::make_shared<InMemoryStore>();
    return status;
  };
  platform_.nccl_version = 22400;
  EXPECT_EQ(supports(CollectiveKind::kAllReduce), OkStatus());
  platform_.nccl_version = 22304;
  EXPECT_EQ(supports(CollectiveKind::kAllReduce),
            UnimplementedError(
                "Unsupported Float8 type for NCCL reduction: float8_e5m2 needs "
                "NCCL 2.24.0, this is 2.23.4"));
  EXPECT_EQ(supports(CollectiveKind::kBroadcast), OkStatus());
  platform_.nccl_version = 22809;
  Make(1);
  EXPECT_EQ(
      backends_[0]->Supports({.kind = CollectiveKind::kAllReduce,
                              .tensors = {tensor},
                              .reduce_op = ReduceOp::kPremulSum,
                              .factor = 2}),
      UnimplementedError(
          "Unsupported Float8 type for NCCL reduction: float8_e5m2 needs a "
          "second rank for PREMUL_SUM: one alone does not multiply it"));
  EXPECT_EQ(backends_[0]->Supports({.kind = CollectiveKind::kAllReduce,
                                    .tensors = {tensor},
                                    .reduce_op = ReduceOp::kAvg}),
            OkStatus());
  backends_.clear();
  store_ = std::make_shared<InMemoryStore>();
  platform_.cuda.DeviceGetAttribute = [](int* value, int, int) {
    *value = 8;
    return cuda::kSuccess;
  };
  EXPECT_EQ(supports(CollectiveKind::kAllReduce),
            UnimplementedError(
                "Unsupported Float8 type for NCCL reduction: float8_e5m2 needs "
                "compute capability 9.0, that of cuda:0 is 8.x"));
  EXPECT_EQ(supports(CollectiveKind::kBroadcast), OkStatus());
}

TEST_F(NcclBackendTest, WhatNcclCannotDoIsSaid) {
  Make(1);
  const auto supports = [&](const Collective& collective) {
    return std::string(backends_[0]->Supports(collective).message());
  };
  const Device device = {DeviceType::kCuda, 0};
  int16_t numbers[1] = {};
  EXPECT_THAT(supports({.kind = CollectiveKind::kAllReduce,
                        .tensors = {Tensor(numbers, {1}, device)}}),
              HasSubstr("does not reduce int16"));
  EXPECT_EQ(supports({.kind = CollectiveKind::kBroadcast,
                      .tensors = {Tensor(numbers, {1}, device)}}),
            "");
  int32_t wide[1] = {};
  EXPECT_EQ(supports({.kind = CollectiveKind::kReduce,
                      .tensors = {Tensor(wide, {1}, device)},
                      .reduce_op = ReduceOp::kBxor}),
            "Cannot use ReduceOp.BXOR with NCCL");
  EXPECT_EQ(supports({.kind = CollectiveKind::kRecv,
                      .outputs = {Tensor(wide, {1}, device)},
                      .peer = kAnyPeer}),
            "NCCL does not receive from any rank: name the source");
  EXPECT_EQ(supports({.kind = CollectiveKind::kAllReduce,
                      .tensors = {Tensor(wide, {1})}}),
            "the nccl backend takes CUDA tensors, got int32[1]");
}

}  // namespace
}  // namespace muster::dataplane::nccl
