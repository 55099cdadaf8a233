// Tests groups over several hosts, beyond the conformance suites.

#include "dataplane/cpu/shm/hierarchical.h"

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/communicator.h"
#include "dataplane/cpu/collectives/exchange.h"
#include "dataplane/cpu/shm/regions.h"
#include "dataplane/cpu/shm/round_buffer.h"
#include "dataplane/cpu/shm/segment.h"
#include "dataplane/cpu/shm/staged.h"
#include "dataplane/cpu/shm/topology.h"
#include "dataplane/cpu/transport/fake_transport.h"
#include "dataplane/cpu/transport/subset_transport.h"
#include "dataplane/cpu/transport/transport.h"
#include "dataplane/testing/local_world.h"
#include "dataplane/testing/sample.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/clock.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::dataplane {
namespace {

using cpu::Buffer;
using shm::Hierarchical;
using shm::RegionFinder;
using shm::Regions;
using shm::RoundBuffer;
using shm::RoundBufferTraits;
using shm::Segment;
using shm::ShmContext;
using shm::ShmTraits;
using shm::Topology;
using ::testing::HasSubstr;
using testing::LocalWorld;
using testing::Sample;

constexpr int kRanks = 4;
constexpr std::chrono::seconds kSoon{10};

constexpr CollectiveKind kTaken[] = {CollectiveKind::kAllReduce,
                                     CollectiveKind::kBroadcast,
                                     CollectiveKind::kReduce,
                                     CollectiveKind::kAllGather,
                                     CollectiveKind::kAllGatherIntoTensor,
                                     CollectiveKind::kReduceScatter,
                                     CollectiveKind::kReduceScatterTensor};

// Puts ranks on these hosts while it lives: "0011" is two ranks on each of two
// hosts.
class OnHosts {
 public:
  explicit OnHosts(const char* hosts) {
    setenv("MUSTER_SHM_HOSTS", "address", 1);
    setenv("MUSTER_LOCAL_WORLD_HOSTS", hosts, 1);
  }
  ~OnHosts() {
    unsetenv("MUSTER_SHM_HOSTS");
    unsetenv("MUSTER_LOCAL_WORLD_HOSTS");
  }
};

class HierarchicalTest : public ::testing::TestWithParam<const char*> {
 private:
  const OnHosts on_hosts_{GetParam()};
};

TEST_P(HierarchicalTest, WhatWentHierarchicallyIsKnown) {
  LocalWorld world({.backend = "shm", .world_size = kRanks});
  world.OnEachRank([](Communicator& communicator) {
    const auto ran = [&](CollectiveKind kind) {
      Sample sample(kind, {.rank = communicator.rank(), .world_size = kRanks});
      EXPECT_TRUE(communicator.Start(sample.collective)->Wait().ok());
      const LastRun last = communicator.last_run(DeviceType::kCpu);
      EXPECT_EQ(last.backend, "shm");
      return last.algorithm;
    };
    EXPECT_EQ(ran(CollectiveKind::kAllReduce), "two_levels");
    EXPECT_EQ(ran(CollectiveKind::kAllToAll), "direct");
    EXPECT_EQ(ran(CollectiveKind::kBarrier), "two_levels");
  });
}

// Small tensors use one inter-host group, large ones all of them. Ranks that
// differ in this must still notice.
void ExpectAllAreToldOfALargeTensor(CollectiveKind kind, ReduceOp op) {
  for (const int odd_one : {0, 1, kRanks - 1}) {
    for (const bool odd_is_large : {false, true}) {
      SCOPED_TRACE(absl::StrCat(CollectiveKindName(kind), " ", ReduceOpName(op),
                                ", rank ", odd_one,
                                odd_is_large ? " large" : " small"));
      LocalWorld world({.backend = "shm", .world_size = kRanks});
      world.OnEachRank([&](Communicator& communicator) {
        const int rank = communicator.rank();
        const bool is_large = (rank == odd_one) == odd_is_large;
        Sample sample(kind, {.rank = rank,
                             .world_size = kRanks,
                             .count = is_large ? 50'000u : 8u});
        sample.collective.reduce_op = op;
        if (op == ReduceOp::kUser) {
          sample.collective.function =
              ReduceFunction([](const void*, void*, size_t) {});
        }
        Status status =
            communicator.Start(sample.collective)->Wait(Clock::now() + kSoon);
        // In some kinds a rank is done after it has given its data.
        for (int i = 0; i < 2 && status.ok(); ++i) {
          Sample meeting(CollectiveKind::kAllToAll,
                         {.rank = rank, .world_size = kRanks});
          status = communicator.Start(meeting.collective)
                       ->Wait(Clock::now() + kSoon);
        }
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr(CollectiveKindName(kind)));
      });
    }
  }
}

TEST_P(HierarchicalTest, RanksOfWhichOneHasALargeTensorAreAllToldSo) {
  for (const CollectiveKind kind : kTaken) {
    ExpectAllAreToldOfALargeTensor(kind, ReduceOp::kSum);
    if (IsReduction(kind)) {
      ExpectAllAreToldOfALargeTensor(kind, ReduceOp::kUser);
    }
  }
}

// When all other ranks are done, only its host can tell it.
TEST(TwoHostsTest, ARankThatExpectsALargeBroadcastIsToldByItsHost) {
  const OnHosts on_hosts("0011");
  LocalWorld world({.backend = "shm", .world_size = kRanks});
  world.OnEachRank([&](Communicator& communicator) {
    const int rank = communicator.rank();
    Sample sample(CollectiveKind::kBroadcast,
                  {.rank = rank,
                   .world_size = kRanks,
                   .count = rank == kRanks - 1 ? 50'000u : 8u});
    const Status status =
        communicator.Start(sample.collective)->Wait(Clock::now() + kSoon);
    if (communicator.rank() < 2) return;
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  });
}

INSTANTIATE_TEST_SUITE_P(Topology, HierarchicalTest,
                         ::testing::Values("0011", "0110", "0012"));

// A transport of three ranks. The last one, on another host, sends nothing.
class SilentMesh : public cpu::FakeTransport {
 public:
  explicit SilentMesh(int rank) : FakeTransport(rank, /*world_size=*/3) {}

  // Waits for the silent rank fail with this error.
  void Break(const Status& failure) {
    MutexLock lock(mutex_);
    broken_ = failure;
    changed_.NotifyAll();
  }

  Status Write(int, const void*, size_t, const void*, size_t) override {
    return OkStatus();
  }
  Status Read(int, void*, size_t) override {
    const Instant until = Clock::now() + kSoon;
    MutexLock lock(mutex_);
    while (aborted_.ok() && broken_.ok()) {
      if (!changed_.WaitUntil(mutex_, until)) break;
    }
    if (!aborted_.ok()) return aborted_;
    return broken_.ok() ? DeadlineExceededError("late") : broken_;
  }
  void Abort(const Status& cause) override {
    MutexLock lock(mutex_);
    aborted_.Update(cause);
    changed_.NotifyAll();
  }
  Status abort_cause() const override {
    MutexLock lock(mutex_);
    return aborted_;
  }
  Status CheckPeers() override { return OkStatus(); }
  Status Gone(int peer) override {
    return UnavailableError(absl::StrCat("rank ", peer, " has left"));
  }
  void Close(const Status&) override {}

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  Status broken_ MUSTER_GUARDED_BY(mutex_);
  Status aborted_ MUSTER_GUARDED_BY(mutex_);
};

// Rank 0 runs an all_reduce of three pieces. Rank 1, on the same host, takes
// part in the first piece only: rank 0 waits for it in the second while its
// inter-host group reduces the first.
class PiecesTest : public ::testing::Test {
 protected:
  PiecesTest() {
    run_ = std::async(std::launch::async, [this] {
      return two_levels_.Run(MakeAllReduce(tensors_[0]), /*prepared=*/nullptr);
    });
    ShmContext context = {.round_buffer = round_buffer_,
                          .transport = near_,
                          .regions = RegionFinder(*regions_),
                          .runs_steps = true};
    context.Say(MakeAllReduce(tensors_[1]));
    const Tensor nothing(nullptr, DataType::kFloat32, {0});
    const Collective step = {
        .kind = CollectiveKind::kReduceScatter,
        .inputs = {Tensor(tensors_[1].data(), DataType::kFloat32,
                          {int64_t{kPieceCount}}),
                   nothing},
        .outputs = {nothing}};
    EXPECT_EQ(shm::FindStaged(step.kind)(context, step), OkStatus());
  }

  // Expects the collective to fail with `failure` at once: all its waits must
  // end.
  void ExpectFailure(const Status& failure) {
    if (run_.wait_for(kSoon) != std::future_status::ready) {
      round_buffer_.Leave(/*has_failed=*/false);
    }
    EXPECT_EQ(run_.get(), failure);
    EXPECT_EQ(transport_.abort_cause(), failure);
  }

  static constexpr size_t kPieceCount = (4 << 20) / sizeof(float);

  SilentMesh transport_{0};
  const std::shared_ptr<Segment> segment_ = *Segment::Create(
      RoundBuffer::BytesFor(2, RoundBufferTraits().ring_bytes));
  const std::shared_ptr<Regions> regions_ = std::make_shared<Regions>();
  Hierarchical two_levels_{segment_,
                           regions_,
                           Topology({7, 7, 8}, /*rank=*/0),
                           transport_,
                           ShmTraits(),
                           [this](const Collective&, const Status& failure) {
                             transport_.Abort(failure);
                             two_levels_.Wake();
                           }};
  SilentMesh mesh_of_1_{1};
  cpu::SubsetTransport near_{mesh_of_1_, {0, 1}};
  RoundBuffer round_buffer_{segment_->memory(), 1, 2, RoundBufferTraits(),
                            [](int) {}};

 private:
  static Collective MakeAllReduce(std::vector<float>& tensor) {
    tensor.resize(3 * kPieceCount);
    return {.kind = CollectiveKind::kAllReduce, .tensors = {Tensor(tensor)}};
  }

  std::vector<float> tensors_[2];
  std::future<Status> run_;
};

TEST_F(PiecesTest, ANeighbourThatLeavesEndsTheWaitForAnotherHost) {
  round_buffer_.Leave(/*has_failed=*/false);
  ExpectFailure(UnavailableError("rank 1 has left"));
}

TEST_F(PiecesTest, AnInterHostGroupThatFailsEndsTheWaitForANeighbour) {
  transport_.Break(UnavailableError("rank 2 has left"));
  ExpectFailure(UnavailableError("rank 2 has left"));
}

}  // namespace
}  // namespace muster::dataplane
