// What the conformance suites do not look at, in groups on one host.

#include "dataplane/backends/shm/host_collectives.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "dataplane/backends/gloo/bare_mesh.h"
#include "dataplane/backends/gloo/peer_memory.h"
#include "dataplane/backends/shm/all_to_all.h"
#include "dataplane/backends/shm/board.h"
#include "dataplane/backends/shm/regions.h"
#include "dataplane/backends/shm/rounds.h"
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
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kRanks = 2;

// Nobody goes that way. All ranks are in this process.
class UnusedMesh : public gloo_internal::BareMesh {
 public:
  explicit UnusedMesh(int rank, int world_size = kRanks)
      : BareMesh(rank, world_size) {
    for (int peer = 0; peer < world_size; ++peer) {
      if (peer != rank) memories_[peer].emplace(mark_.place(), kMark);
    }
  }
  // As a rank that takes its memory back.
  void ClearMark() { mark_.Clear(); }

  absl::Status Write(int, const void*, size_t, const void*, size_t) override {
    return absl::InternalError("written to");
  }
  absl::Status Read(int, void*, size_t) override {
    return absl::InternalError("read from");
  }
  void Abort(const absl::Status&) override {}
  absl::Status abort_cause() const override { return absl::OkStatus(); }
  absl::Status CheckPeers() override { return absl::OkStatus(); }
  absl::Status Gone(int peer) override {
    return absl::UnavailableError(absl::StrCat("rank ", peer, " has left"));
  }
  void Close(const absl::Status&) override {}

 private:
  static constexpr uint64_t kMark = 7;
  gloo_internal::Mark mark_{kMark};
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

// An all_to_all in which some ranks show where what they give is.
class OriginsTest : public ::testing::Test {
 protected:
  static constexpr int kMany = 3;
  // How many elements a rank gives another one.
  using Counts = std::array<std::array<size_t, kMany>, kMany>;

  OriginsTest() {
    for (int rank = 0; rank < kMany; ++rank) {
      meshes_.push_back(std::make_unique<UnusedMesh>(rank, kMany));
      boards_.push_back(std::make_unique<Board>(segment_->memory(), rank, kMany,
                                                BoardTraits(), [](int) {}));
      shops_.push_back({.board = *boards_[rank],
                        .mesh = *meshes_[rank],
                        .regions = RegionFinder(regions_)});
    }
  }

  static float ValueOf(int from, int to, size_t index) {
    return static_cast<float>((from * kMany + to) * 1'000'000 +
                              static_cast<int>(index % 1'000'000));
  }

  // Runs one, in which the ranks show origins as the bits of `origins` say, and
  // looks at what has come. What it came to on each rank.
  std::vector<absl::Status> Run(const Counts& counts, unsigned origins) {
    std::vector<std::future<absl::Status>> done;
    ++sequence_;
    for (int rank = 0; rank < kMany; ++rank) {
      done.push_back(std::async(std::launch::async, [&, rank] {
        return RunOn(rank, counts, (origins >> rank & 1) != 0);
      }));
    }
    std::vector<absl::Status> statuses;
    for (auto& one : done) statuses.push_back(one.get());
    return statuses;
  }

  absl::Status RunOn(int rank, const Counts& counts, bool shows_origins) {
    std::array<std::vector<float>, kMany> give;
    std::array<std::vector<float>, kMany> take;
    Collective collective = {.kind = CollectiveKind::kAllToAll,
                             .sequence = sequence_};
    for (int peer = 0; peer < kMany; ++peer) {
      for (size_t i = 0; i < counts[rank][peer]; ++i) {
        give[peer].push_back(ValueOf(rank, peer, i));
      }
      take[peer].assign(counts[peer][rank], -1);
      collective.inputs.emplace_back(give[peer]);
      collective.outputs.emplace_back(take[peer]);
    }
    Workshop& shop = shops_[rank];
    shop.Say(collective);
    const absl::StatusOr<bool> done = RunAllToAll(
        shop, collective, shows_origins, [](size_t) { return false; });
    if (!done.ok()) {
      boards_[rank]->Leave(/*has_failed=*/true);
      return done.status();
    }
    EXPECT_TRUE(*done);
    shop.history.Add(*shop.header, shop.sequence,
                     History::DigestOf(*shop.header));
    // Whoever has not parted may still read it.
    for (auto& tensor : give) std::fill(tensor.begin(), tensor.end(), -2);
    for (int peer = 0; peer < kMany; ++peer) {
      for (size_t i = 0; i < counts[peer][rank]; ++i) {
        if (take[peer][i] != ValueOf(peer, rank, i)) {
          ADD_FAILURE() << "rank " << rank << " has " << take[peer][i]
                        << " for element " << i << " of rank " << peer;
          break;
        }
      }
    }
    return absl::OkStatus();
  }

  std::vector<std::unique_ptr<UnusedMesh>> meshes_;
  std::vector<std::unique_ptr<Board>> boards_;

 private:
  const std::shared_ptr<Segment> segment_ =
      *Segment::Create(Board::BytesFor(kMany, BoardTraits().ring_bytes));
  const Regions regions_;
  std::vector<Workshop> shops_;
  uint64_t sequence_ = 0;
};

constexpr size_t kLong = 200'000;

TEST_F(OriginsTest, AnyMayShowThem) {
  constexpr Counts kAll[] = {
      // As many for each; and so many that it takes several rounds.
      {{{40, 40, 40}, {40, 40, 40}, {40, 40, 40}}},
      {{{kLong, kLong, kLong}, {kLong, kLong, kLong}, {kLong, kLong, kLong}}},
      // Some have more, and some nothing for others.
      {{{5, kLong, 0}, {3 * kLong, 7, 1}, {0, 0, kLong}}},
      {{{kLong, 0, 0}, {0, 0, 0}, {1, 2 * kLong, 0}}},
  };
  for (const Counts& counts : kAll) {
    for (unsigned origins = 0; origins < 1 << kMany; ++origins) {
      SCOPED_TRACE(absl::StrCat("of ", counts[0][1], ", origins ", origins));
      EXPECT_THAT(Run(counts, origins), Each(absl::OkStatus()));
      for (const auto& mesh : meshes_) {
        EXPECT_EQ(std::string(mesh->algorithm()),
                  origins == (1 << kMany) - 1 ? "single_copy" : "staged");
      }
    }
  }
}

// Rank 1 takes its memory back: what was read there is not believed.
TEST_F(OriginsTest, WhoHasGoneIsNamed) {
  constexpr Counts kEven = {{{40, 40, 40}, {40, 40, 40}, {40, 40, 40}}};
  EXPECT_THAT(Run(kEven, 0b111), Each(absl::OkStatus()));
  for (const auto& mesh : meshes_) mesh->ClearMark();
  for (const absl::Status& done : Run(kEven, 0b010)) {
    EXPECT_EQ(done.code(), absl::StatusCode::kUnavailable) << done;
  }
}

// Which way a large one goes is found out, by all ranks alike.
class ChoiceTest : public ::testing::TestWithParam<CollectiveKind> {};

TEST_P(ChoiceTest, IsTriedBothWays) {
  const CollectiveKind kind = GetParam();
  const bool gathers = kind == CollectiveKind::kAllGatherIntoTensor;
  constexpr size_t kCount = 64 << 10;
  constexpr int kTimes = 40;
  testing::LocalWorld world({.backend = "shm", .world_size = kRanks});
  std::vector<std::string> ran[kRanks];
  world.OnEachRank([&](Communicator& communicator) {
    const int rank = communicator.rank();
    std::vector<float> input(gathers ? kCount : kRanks * kCount);
    std::vector<float> output(kRanks * kCount);
    for (int time = 0; time < kTimes; ++time) {
      const auto value = [time](int of) {
        return static_cast<float>(2 * time + of);
      };
      std::fill(input.begin(), input.end(), value(rank));
      ASSERT_TRUE(communicator
                      .Run(Collective{.kind = kind,
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
  // Where there are not enough the table knows which way an all_gather goes.
  cpu_set_t processors;
  ASSERT_EQ(sched_getaffinity(0, sizeof(processors), &processors), 0);
  const auto read = std::count(ran[0].begin(), ran[0].end(), "single_copy");
  EXPECT_EQ(read >= 8, !gathers || CPU_COUNT(&processors) >= kRanks);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ChoiceTest,
                         ::testing::Values(CollectiveKind::kAllGatherIntoTensor,
                                           CollectiveKind::kAllToAllSingle),
                         [](const auto& info) {
                           return std::string(CollectiveKindName(info.param));
                         });

}  // namespace
}  // namespace muster::dataplane::shm_internal
