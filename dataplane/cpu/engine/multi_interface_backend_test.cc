#include "dataplane/cpu/engine/multi_interface_backend.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/communicator.h"
#include "dataplane/culprit.h"
#include "dataplane/testing/fake_backend.h"
#include "dataplane/testing/in_memory_store.h"
#include "dataplane/testing/local_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/factory.h"
#include "muster/dataplane/tensor.h"
#include "muster/dataplane/work.h"

namespace muster::dataplane::cpu {
namespace {

using ::testing::ElementsAre;
using testing::FakeBackend;
using ::testing::HasSubstr;
using testing::InMemoryStore;
using testing::LocalWorld;

std::vector<uint64_t> GetNumbers(const FakeBackend& backend) {
  std::vector<uint64_t> numbers;
  for (const Collective& collective : backend.started) {
    numbers.push_back(collective.sequence);
  }
  return numbers;
}

// A backend over two fake interfaces.
class MultiInterfaceBackendTest : public ::testing::Test {
 protected:
  MultiInterfaceBackendTest() {
    auto made = CreateMultiInterfaceBackend(
        {.world_size = 2, .store = store_, .network_interfaces = "eth0,eth1"},
        [this](
            const BackendOptions& options) -> StatusOr<SingleInterfaceBackend> {
          options_.push_back(options);
          auto fake = std::make_unique<FakeBackend>();
          fakes_.push_back(fake.get());
          return SingleInterfaceBackend{std::move(fake)};
        });
    EXPECT_TRUE(made.ok()) << made.status();
    backend_ = *std::move(made);
  }

  std::shared_ptr<Work> Start(CollectiveKind kind, uint64_t sequence,
                              int tag = 0) {
    return backend_->Start({.kind = kind, .tag = tag, .sequence = sequence});
  }

  const std::shared_ptr<InMemoryStore> store_ =
      std::make_shared<InMemoryStore>();
  std::vector<BackendOptions> options_;
  std::vector<FakeBackend*> fakes_;
  std::unique_ptr<Backend> backend_;
};

TEST_F(MultiInterfaceBackendTest, EachHasAnInterfaceAndKeysOfItsOwn) {
  ASSERT_EQ(options_.size(), 2u);
  EXPECT_EQ(options_[0].network_interfaces, "eth0,eth1");
  EXPECT_EQ(options_[1].network_interfaces, "eth1,eth0");
  ASSERT_TRUE(options_[0].store->Set("key", "0").ok());
  ASSERT_TRUE(options_[1].store->Set("key", "1").ok());
  EXPECT_EQ(store_->size(), 2u);
}

TEST_F(MultiInterfaceBackendTest, CollectivesTakeTurnsHoweverTheyStart) {
  for (uint64_t sequence = 1; sequence <= 4; ++sequence) {
    if (sequence < 3) {
      (void)Start(CollectiveKind::kAllReduce, sequence);
      continue;
    }
    const Collective collective = {.kind = CollectiveKind::kAllReduce,
                                   .sequence = sequence};
    const Ticket ticket = backend_->Enter(collective);
    EXPECT_TRUE(
        backend_->Run(collective, /*prepared=*/nullptr, ticket).status.ok());
  }
  EXPECT_THAT(GetNumbers(*fakes_[0]), ElementsAre(1, 3));
  EXPECT_THAT(GetNumbers(*fakes_[1]), ElementsAre(2, 4));
  // Each runs its own.
  for (testing::FakeBackend* const fake : fakes_) {
    EXPECT_THAT(fake->tickets, ElementsAre(2));
  }
}

TEST_F(MultiInterfaceBackendTest, SendsAndReceivesGoByTheirTags) {
  (void)Start(CollectiveKind::kSend, 1, /*tag=*/7);
  (void)Start(CollectiveKind::kRecv, 2, /*tag=*/7);
  (void)Start(CollectiveKind::kSend, 3, /*tag=*/4);
  // Sends and receives do not change the turns of the collectives.
  (void)Start(CollectiveKind::kAllReduce, 9);
  EXPECT_THAT(GetNumbers(*fakes_[0]), ElementsAre(3, 9));
  EXPECT_THAT(GetNumbers(*fakes_[1]), ElementsAre(1, 2));
}

TEST_F(MultiInterfaceBackendTest, BarrierIsOverWhenItIsOnAllInterfaces) {
  const auto barrier = Start(CollectiveKind::kBarrier, 1);
  ASSERT_EQ(fakes_[0]->works.size(), 1u);
  ASSERT_EQ(fakes_[1]->works.size(), 1u);
  fakes_[1]->works[0]->Complete(OkStatus());
  EXPECT_FALSE(barrier->IsCompleted());
  fakes_[0]->works[0]->Complete(OkStatus());
  EXPECT_TRUE(barrier->IsCompleted());
  EXPECT_TRUE(barrier->status().ok());
  (void)Start(CollectiveKind::kAllReduce, 2);
  EXPECT_THAT(GetNumbers(*fakes_[0]), ElementsAre(1, 2));
}

TEST_F(MultiInterfaceBackendTest, BarrierFailsWithTheFirstFailure) {
  const auto barrier = Start(CollectiveKind::kBarrier, 1);
  ASSERT_EQ(fakes_[1]->works.size(), 1u);
  fakes_[1]->works[0]->Complete(UnavailableError("gone"));
  EXPECT_EQ(barrier->status(), UnavailableError("gone"));
  fakes_[0]->works[0]->Complete(OkStatus());
  EXPECT_EQ(barrier->status(), UnavailableError("gone"));
}

TEST_F(MultiInterfaceBackendTest, AbortReachesAllInterfaces) {
  const auto first = Start(CollectiveKind::kAllReduce, 1);
  const auto second = Start(CollectiveKind::kAllReduce, 2);
  backend_->Abort(AbortedError("enough"));
  EXPECT_EQ(first->status(), AbortedError("enough"));
  EXPECT_EQ(second->status(), AbortedError("enough"));
}

TEST(MultiInterfaceTest, GroupOnOneHostUsesTheFirstInterfaceAlone) {
  int made = 0;
  const auto backend = CreateMultiInterfaceBackend(
      {.network_interfaces = "eth0,eth1"},
      [&](const BackendOptions&) -> StatusOr<SingleInterfaceBackend> {
        ++made;
        return SingleInterfaceBackend{
            .backend = std::make_unique<FakeBackend>(), .is_on_one_host = true};
      });
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ(made, 1);
}

TEST(MultiInterfaceTest, InterfaceOverWhichRanksDoNotConnectIsNamed) {
  int made = 0;
  const auto backend = CreateMultiInterfaceBackend(
      {.network_interfaces = "eth0,eth1"},
      [&](const BackendOptions&) -> StatusOr<SingleInterfaceBackend> {
        if (++made == 1) {
          return SingleInterfaceBackend{std::make_unique<FakeBackend>()};
        }
        Status status = UnavailableError("cannot connect to rank 3");
        SetCulpritRank(status, 3);
        return status;
      });
  EXPECT_EQ(backend.status().message(),
            "network interface \"eth1\" (2 of 2): cannot connect to rank 3");
  EXPECT_EQ(CulpritRank(backend.status()), 3);
}

TEST(MultiInterfaceTest, RanksThatNameDifferentNumbersAreRefused) {
  for (const std::string backend : {"gloo", "shm"}) {
    const auto store = std::make_shared<InMemoryStore>();
    std::vector<Status> joined(3);
    std::vector<std::thread> ranks;
    ranks.reserve(joined.size());
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        joined[rank] =
            CreateBackend(backend,
                          {.rank = rank,
                           .world_size = 3,
                           .store = store,
                           .deadline = Clock::now() + std::chrono::seconds(60),
                           .network_interfaces = rank == 1 ? "lo" : "lo,lo"})
                .status();
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(IsInvalidArgument(joined[rank])) << joined[rank];
      EXPECT_EQ(CulpritRank(joined[rank]), rank == 1 ? 0 : 1);
    }
    EXPECT_EQ(joined[2].message(),
              "rank 1 uses 1 network interface, rank 2 2 network interfaces: "
              "GLOO_SOCKET_IFNAME must name as many on every rank");
  }
}

// Ranks in this process, with two interfaces.
class TwoInterfacesTest : public ::testing::Test {
 protected:
  TwoInterfacesTest() { setenv("GLOO_SOCKET_IFNAME", "lo,lo", 1); }
  ~TwoInterfacesTest() override { unsetenv("GLOO_SOCKET_IFNAME"); }
};

TEST_F(TwoInterfacesTest, ReceiveFromAnybodyGetsTheMessageOfItsTag) {
  LocalWorld world({.world_size = 3});
  world.OnEachRank([](Communicator& rank) {
    const auto message = [](int from, int tag) { return 10 * from + tag; };
    std::vector<std::shared_ptr<Work>> works;
    std::vector<int32_t> values(8, -1);
    for (int tag = 0; tag < 4; ++tag) {
      if (rank.rank() == 0) {
        for (int twice = 0; twice < 2; ++twice) {
          works.push_back(
              rank.Start({.kind = CollectiveKind::kRecv,
                          .outputs = {Tensor(&values[2 * tag + twice],
                                             DataType::kInt32, {1})},
                          .peer = kAnyPeer,
                          .tag = tag}));
        }
      } else {
        // Send the last tag first.
        values[tag] = message(rank.rank(), 3 - tag);
        works.push_back(
            rank.Start({.kind = CollectiveKind::kSend,
                        .inputs = {Tensor(&values[tag], DataType::kInt32, {1})},
                        .peer = 0,
                        .tag = 3 - tag}));
      }
    }
    for (size_t i = 0; i < works.size(); ++i) {
      EXPECT_EQ(works[i]->Wait(), OkStatus());
      if (rank.rank() == 0) {
        EXPECT_EQ(values[i],
                  message(works[i]->source_rank(), static_cast<int>(i) / 2));
      }
    }
  });
}

TEST_F(TwoInterfacesTest, FailureOverOneEndsTheGroupOverTheOther) {
  LocalWorld world({.world_size = 2});
  std::vector<float> values(1 << 10);
  std::vector<float> received(4);
  // A receive on the second interface that no rank sends.
  const auto waits = world.at(0).Start({.kind = CollectiveKind::kRecv,
                                        .outputs = {Tensor(received)},
                                        .peer = 1,
                                        .tag = 1});
  const auto reduces = world.at(0).Start(
      {.kind = CollectiveKind::kAllReduce, .tensors = {Tensor(values)}});
  EXPECT_TRUE(IsInvalidArgument(world.at(1).Run(
      {.kind = CollectiveKind::kBroadcast, .tensors = {Tensor(received)}})));
  EXPECT_TRUE(IsInvalidArgument(reduces->Wait()));
  EXPECT_EQ(waits->Wait(), reduces->status());
  EXPECT_EQ(world.at(0).status(), reduces->status());
  EXPECT_FALSE(world.at(1).Run({.kind = CollectiveKind::kBarrier}).ok());
}

}  // namespace
}  // namespace muster::dataplane::cpu
