// What the conformance suites do not look at, in groups on one host.

#include "dataplane/backends/shm/host_collectives.h"

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dataplane/backends/gloo/bare_mesh.h"
#include "dataplane/backends/shm/board.h"
#include "dataplane/backends/shm/regions.h"
#include "dataplane/backends/shm/segment.h"
#include "dataplane/collective.h"
#include "dataplane/communicator.h"
#include "dataplane/tensor.h"
#include "dataplane/testing/local_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::shm_internal {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr int kRanks = 2;

// Nobody goes that way.
class UnusedMesh : public gloo_internal::BareMesh {
 public:
  explicit UnusedMesh(int rank) : BareMesh(rank, kRanks) {}

  absl::Status Write(int, const void*, size_t, const void*, size_t) override {
    return absl::InternalError("written to");
  }
  absl::Status Read(int, void*, size_t) override {
    return absl::InternalError("read from");
  }
  void Abort(const absl::Status&) override {}
  absl::Status abort_cause() const override {
    return absl::CancelledError("woken");
  }
  absl::Status CheckPeers() override { return absl::OkStatus(); }
  absl::Status Gone(int peer) override {
    return absl::UnavailableError(absl::StrCat("rank ", peer, " has left"));
  }
  void Close(const absl::Status&) override {}
};

// Both ranks' ends of a group, which has symmetric memory as far as one knows.
class HalfKnownMemoryTest : public ::testing::Test {
 protected:
  HalfKnownMemoryTest() {
    constexpr size_t kBytes = 4096;
    regions_[1]->Add(std::make_shared<Region>(
        *Segment::Create(Region::BytesFor(kBytes, kRanks)), kBytes, /*rank=*/1,
        kRanks));
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks_.push_back(std::make_unique<HostCollectives>(
          segment_, regions_[rank], meshes_[rank], HostTraits()));
    }
  }

  // What a collective of so many elements, the last one, comes to on each rank.
  std::vector<absl::Status> Run(CollectiveKind kind, size_t count) {
    const auto run = [&](int rank) {
      std::vector<float> values(count, 1);
      Collective collective = {.kind = kind, .tensors = {Tensor(values)}};
      collective.sequence = 1;
      const absl::Status done = ranks_[rank]->Run(collective, nullptr);
      ranks_[rank]->Leave(/*has_failed=*/!done.ok());
      return done;
    };
    auto other = std::async(std::launch::async, run, 1);
    const absl::Status first = run(0);
    return {first, other.get()};
  }

 private:
  const std::shared_ptr<Segment> segment_ =
      *Segment::Create(Board::BytesFor(kRanks, BoardTraits().ring_bytes));
  const std::shared_ptr<Regions> regions_[kRanks] = {
      std::make_shared<Regions>(), std::make_shared<Regions>()};
  UnusedMesh meshes_[kRanks] = {UnusedMesh(0), UnusedMesh(1)};
  std::vector<std::unique_ptr<HostCollectives>> ranks_;
};

// It would show where its tensor is, and the other one take that for elements.
TEST_F(HalfKnownMemoryTest, NobodyTakesAPlaceForElements) {
  for (const absl::Status& done : Run(CollectiveKind::kAllReduce, 512)) {
    EXPECT_EQ(done.code(), absl::StatusCode::kInvalidArgument) << done;
    EXPECT_THAT(std::string(done.message()),
                HasSubstr("had symmetric memory from another one on, before "
                          "all_reduce"));
  }
}

// Which way a large one goes is found out, by all ranks alike.
TEST(ChoiceTest, AnAllGatherIsTriedBothWays) {
  constexpr size_t kCount = 64 << 10;
  constexpr int kTimes = 40;
  testing::LocalWorld world({.backend = "shm", .world_size = kRanks});
  std::vector<std::string> ran[kRanks];
  world.OnEachRank([&](Communicator& communicator) {
    const int rank = communicator.rank();
    std::vector<float> input(kCount);
    std::vector<float> output(kRanks * kCount);
    for (int time = 0; time < kTimes; ++time) {
      const auto value = [time](int of) {
        return static_cast<float>(2 * time + of);
      };
      std::fill(input.begin(), input.end(), value(rank));
      ASSERT_TRUE(
          communicator
              .Run(Collective{.kind = CollectiveKind::kAllGatherIntoTensor,
                              .inputs = {Tensor(input)},
                              .outputs = {Tensor(output)}})
              .ok());
      ran[rank].push_back(communicator.last_run(DeviceType::kCpu).algorithm);
      for (int of = 0; of < kRanks; ++of) {
        const auto part = output.begin() + of * kCount;
        ASSERT_EQ(std::count(part, part + kCount, value(of)), kCount);
      }
    }
  });
  EXPECT_EQ(ran[0], ran[1]);
  EXPECT_THAT(ran[0], Contains("staged"));
  // Where there are not enough the table knows.
  cpu_set_t processors;
  ASSERT_EQ(sched_getaffinity(0, sizeof(processors), &processors), 0);
  const auto read = std::count(ran[0].begin(), ran[0].end(), "single_copy");
  EXPECT_EQ(read >= 4, CPU_COUNT(&processors) >= kRanks);
}

}  // namespace
}  // namespace muster::dataplane::shm_internal
