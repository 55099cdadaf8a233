// Groups of ranks with devices, on a fake CUDA and NCCL.

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/muster.hpp"

namespace muster {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::LocalGroups;

const bool g_has_devices = [] {
  for (const char* const name :
       {"MUSTER_CUDA_LIBRARY", "MUSTER_NCCL_LIBRARY"}) {
    setenv(name, "dataplane/testing/libhost_devices.so", /*overwrite=*/1);
  }
  setenv("MUSTER_HOST_DEVICES", "3", /*overwrite=*/1);
  return true;
}();

Tensor MakeView(const DeviceMemory& memory) {
  return Tensor(memory.data(), DataType::kFloat32,
                {static_cast<int64_t>(memory.bytes() / sizeof(float))},
                {DeviceType::kCuda, memory.device()});
}

TEST(DefaultBackendTest, WithDevicesItTakesTensorsOfBothKinds) {
  EXPECT_TRUE(IsNcclAvailable());
  InitProcessGroup({.init_method = "tcp://127.0.0.1:0?rank=0&world_size=1"});
  EXPECT_EQ(GetBackend(), "cpu:shm,cuda:nccl");

  const ReductionOptions tripled = {.op = ReduceOp::kPremulSum, .factor = 3};
  std::vector<float> values(8, 2);
  AllReduce(Tensor(values), tripled);
  EXPECT_THAT(values, Each(6));

  DeviceMemory memory(1, values.size() * sizeof(float));
  memory.Write(values.data(), memory.bytes());
  AllReduce(
      Tensor(memory.data(), DataType::kFloat32, {8}, {DeviceType::kCuda, 1}),
      tripled);
  memory.Read(values.data(), memory.bytes());
  EXPECT_THAT(values, Each(18));
  DestroyProcessGroup();
}

TEST(ObjectsTest, WithoutADeviceOfItsGroupTheyTravelByTheCurrentOne) {
  InitProcessGroup({.backend = "nccl",
                    .init_method = "tcp://127.0.0.1:0?rank=0&world_size=1"});
  std::vector<std::string> list;
  AllGatherObject(list, std::string("whole"));
  EXPECT_THAT(list, ElementsAre("whole"));
  DestroyProcessGroup();
}

// A barrier takes one device and needs nccl.
TEST(BarrierTest, OfADevice) {
  InitProcessGroup({.init_method = "tcp://127.0.0.1:0?rank=0&world_size=1"});
  Barrier({.device_ids = {1}});
  EXPECT_EQ(WorldGroup()->last_run(DeviceType::kCuda).backend, "nccl");
  const auto problem = [](const BarrierOptions& options) {
    try {
      Barrier(options);
    } catch (const DistError& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kInvalidArgument);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(problem({.device_ids = {0}}),
              HasSubstr("a barrier on cuda:0 in a group whose device is "
                        "cuda:1"));
  EXPECT_THAT(problem({.device_ids = {1, 2}}), HasSubstr("was {1, 2}"));
  EXPECT_THAT(problem({.device_ids = {-1}}), HasSubstr("was {-1}"));
  EXPECT_EQ(
      problem({.group = NewGroup({.backend = "gloo"}), .device_ids = {1}}),
      "Function argument device_ids not supported for the selected "
      "backend gloo");
  Barrier();
  DestroyProcessGroup();
}

TEST(NewGroupTest, ItIsBoundToADeviceOfItsOwn) {
  InitProcessGroup({.init_method = "tcp://127.0.0.1:0?rank=0&world_size=1"});
  const auto bound = NewGroup({.device_id = 2});
  DeviceMemory memory(1, sizeof(float));
  EXPECT_THROW(AllReduce(MakeView(memory), {.group = bound}), DistError);
  EXPECT_THROW(NewGroup({.device_id = -1}), DistError);
  DestroyProcessGroup();

  InitProcessGroup(
      {.device_id = 1, .init_method = "tcp://127.0.0.1:0?rank=0&world_size=1"});
  AllReduce(MakeView(memory), {.group = NewGroup({.device_id = 1})});
  try {
    NewGroup({.device_id = 2});
    ADD_FAILURE() << "no error";
  } catch (const DistError& error) {
    EXPECT_STREQ(error.what(),
                 "NewGroupOptions::device_id is 2, but the default group is "
                 "bound to cuda:1");
  }
  DestroyProcessGroup();
}

// Collectives of these groups wait only for the stream.
TEST(ReceiveTest, ItSaysFromWhomItComes) {
  for (const std::string backend : {"cuda:gloo", "nccl"}) {
    LocalGroups world(2, std::chrono::seconds(60), backend);
    const auto thrown = world.OnEachRank([&](const auto& group, int rank) {
      std::vector<float> values(8, rank == 0 ? 7 : 0);
      DeviceMemory memory(rank, values.size() * sizeof(float));
      memory.Write(values.data(), memory.bytes());
      for (int round = 0; round < 20; ++round) {
        if (rank == 0) {
          group->Send(MakeView(memory), 10);
          group->Send(MakeView(memory), 10);
          continue;
        }
        EXPECT_EQ(group->Recv(MakeView(memory), 0), 0) << backend;
        const std::optional<int> any =
            backend == "nccl" ? std::optional<int>(0) : std::nullopt;
        EXPECT_EQ(group->Recv(MakeView(memory), any), 0) << backend;
      }
      memory.Read(values.data(), memory.bytes());
      EXPECT_THAT(values, Each(7));
    });
    EXPECT_THAT(thrown, Each(IsEmpty())) << backend;
  }
}

// One after the other, the sends would deadlock: each would wait for a receive
// that the peer's own send blocks.
TEST(BatchIsendIrecvTest, RanksMayAllSendFirst) {
  for (const std::string backend : {"cuda:gloo", "nccl"}) {
    LocalGroups world(3, std::chrono::seconds(60), backend);
    const auto thrown = world.OnEachRank([](const auto& group, int rank) {
      std::vector<float> values(8, static_cast<float>(rank));
      DeviceMemory mine(rank, values.size() * sizeof(float));
      DeviceMemory theirs(rank, values.size() * sizeof(float));
      mine.Write(values.data(), mine.bytes());
      std::vector<Work> works =
          BatchIsendIrecv({{.tensor = MakeView(mine),
                            .group = group,
                            .group_peer = (rank + 1) % 3},
                           {.op = P2POp::Kind::kIrecv,
                            .tensor = MakeView(theirs),
                            .group = group,
                            .group_peer = (rank + 2) % 3}});
      EXPECT_EQ(works.size(), 2U);
      for (Work& work : works) work.Wait();
      theirs.Read(values.data(), theirs.bytes());
      EXPECT_THAT(values, Each((rank + 2) % 3));
      // In order with the collectives.
      AllReduce(MakeView(theirs), {.group = group});
      theirs.Read(values.data(), theirs.bytes());
      EXPECT_THAT(values, Each(3));
    });
    EXPECT_THAT(thrown, Each(IsEmpty())) << backend;
  }
}

TEST(AllocateSymmetricTest, CollectivesOfNcclRunInIt) {
  LocalGroups world(3, std::chrono::seconds(60), "nccl");
  const auto thrown = world.OnEachRank([](const auto& group, int rank) {
    SymmetricTensor mine = AllocateSymmetric(group, DataType::kFloat32, {2});
    const SymmetricTensor all =
        AllocateSymmetric(group, DataType::kFloat32, {6});
    const auto memory = [](const Tensor& tensor) {
      return DeviceMemory::Of(tensor.device().index, tensor.data(),
                              tensor.bytes());
    };
    std::vector<float> values(2, static_cast<float>(rank));
    memory(mine.tensor()).Write(values.data(), mine.tensor().bytes());
    group->AllGatherIntoTensor(all.tensor(), mine.tensor());
    values.resize(6);
    memory(all.tensor()).Read(values.data(), all.tensor().bytes());
    EXPECT_THAT(values, ElementsAre(0, 0, 1, 1, 2, 2));
    // In order with the collectives.
    mine = {};
    group->AllReduce(all.tensor());
    memory(all.tensor()).Read(values.data(), all.tensor().bytes());
    EXPECT_THAT(values, ElementsAre(0, 0, 3, 3, 6, 6));
  });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

TEST(AllocateSymmetricTest, WhoHasNoMemoryIsToBlameAndTheGroupGoesOn) {
  LocalGroups world(2, std::chrono::seconds(60), "shm");
  const auto thrown = world.OnEachRank([](const auto& group, int rank) {
    std::vector<int> culprits;
    try {
      AllocateSymmetric(group, DataType::kInt8, {int64_t{1} << 50});
    } catch (const DistError& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kResourceExhausted);
      culprits = error.culprit_ranks();
    }
    EXPECT_THAT(culprits, ElementsAre(LocalGroups::GlobalRank(0)));
    SymmetricTensor mine = AllocateSymmetric(group, DataType::kFloat32, {1});
    auto* const value = static_cast<float*>(mine.tensor().data());
    *value = static_cast<float>(rank + 1);
    group->AllReduce(mine.tensor());
    EXPECT_EQ(*value, 3);
  });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

}  // namespace
}  // namespace muster
