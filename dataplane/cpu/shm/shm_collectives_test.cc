// Tests groups on one host, beyond the conformance suites.

#include "dataplane/cpu/shm/shm_collectives.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/communicator.h"
#include "dataplane/cpu/shm/all_to_all.h"
#include "dataplane/cpu/shm/direct.h"
#include "dataplane/cpu/shm/regions.h"
#include "dataplane/cpu/shm/round_buffer.h"
#include "dataplane/cpu/shm/rounds.h"
#include "dataplane/cpu/shm/segment.h"
#include "dataplane/cpu/transport/fake_transport.h"
#include "dataplane/cpu/transport/process_memory.h"
#include "dataplane/testing/local_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/tensor.h"

namespace muster::dataplane::shm {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kRanks = 2;

// The collectives must not use it.
class UnusedTransport : public cpu::FakeTransport {
 public:
  explicit UnusedTransport(int rank, int world_size = kRanks)
      : FakeTransport(rank, world_size) {}

  // Makes the memory of `peer`, which is this process's, readable by `mark`.
  void Know(int peer, const cpu::Mark& mark) {
    memories_[peer].emplace(mark.place(), kMark);
  }
  static constexpr uint64_t kMark = 7;

  Status Write(int, const void*, size_t, const void*, size_t) override {
    return InternalError("written to");
  }
  Status Read(int, void*, size_t) override {
    return InternalError("read from");
  }
  void Abort(const Status&) override {}
  Status abort_cause() const override { return OkStatus(); }
  Status CheckPeers() override { return OkStatus(); }
  Status Gone(int peer) override {
    return UnavailableError(absl::StrCat("rank ", peer, " has left"));
  }
  void Close(const Status&) override {}
};

// Both ranks of a group, of which only one knows of symmetric memory.
class HalfKnownMemoryTest : public ::testing::Test {
 protected:
  HalfKnownMemoryTest() {
    constexpr size_t kBytes = 4096;
    regions_[1]->Add(std::make_shared<Region>(
        *Segment::Create(Region::BytesFor(kBytes, kRanks)), kBytes, /*rank=*/1,
        kRanks));
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks_.push_back(std::make_unique<ShmCollectives>(
          segment_, regions_[rank], meshes_[rank], ShmTraits()));
    }
  }

  // Runs a last collective of `count` elements. Returns each rank's status.
  std::vector<Status> Run(CollectiveKind kind, size_t count) {
    const auto run = [&](int rank) {
      std::vector<float> values(count, 1);
      Collective collective = {.kind = kind, .tensors = {Tensor(values)}};
      collective.sequence = 1;
      const Status done = ranks_[rank]->Run(collective, nullptr);
      ranks_[rank]->Leave(/*has_failed=*/!done.ok());
      return done;
    };
    auto other = std::async(std::launch::async, run, 1);
    const Status first = run(0);
    return {first, other.get()};
  }

 private:
  const std::shared_ptr<Segment> segment_ = *Segment::Create(
      RoundBuffer::BytesFor(kRanks, RoundBufferTraits().ring_bytes));
  const std::shared_ptr<Regions> regions_[kRanks] = {
      std::make_shared<Regions>(), std::make_shared<Regions>()};
  UnusedTransport meshes_[kRanks] = {UnusedTransport(0), UnusedTransport(1)};
  std::vector<std::unique_ptr<ShmCollectives>> ranks_;
};

// Otherwise the other rank would take the published location for elements.
TEST_F(HalfKnownMemoryTest, NobodyTakesAPlaceForElements) {
  for (const Status& done : Run(CollectiveKind::kAllReduce, 512)) {
    EXPECT_EQ(done.code(), StatusCode::kInvalidArgument) << done;
    EXPECT_THAT(std::string(done.message()),
                HasSubstr("had symmetric memory from another one on, before "
                          "all_reduce"));
  }
}

constexpr int64_t kMiB = (1 << 20) / sizeof(float);

// An all_to_all in which some ranks publish the addresses of their inputs.
class OriginsTest : public ::testing::Test {
 protected:
  static constexpr int kMany = 3;
  // The number of elements from rank [i] to rank [j].
  using Counts = std::array<std::array<size_t, kMany>, kMany>;
  static constexpr size_t kLong = 200'000;
  // Fits into one round, but is more than is always published as elements.
  static constexpr Counts kLittle = {
      {{4000, 4000, 4000}, {4000, 4000, 4000}, {4000, 4000, 4000}}};
  static constexpr Counts kMuch = {
      {{kLong, kLong, kLong}, {kLong, kLong, kLong}, {kLong, kLong, kLong}}};
  static constexpr unsigned kAll = (1 << kMany) - 1;

  OriginsTest() {
    for (int rank = 0; rank < kMany; ++rank) {
      meshes_.push_back(std::make_unique<UnusedTransport>(rank, kMany));
      round_buffers_.push_back(std::make_unique<RoundBuffer>(
          segment_->memory(), rank, kMany, RoundBufferTraits(), [](int) {}));
      contexts_.push_back({.round_buffer = *round_buffers_[rank],
                           .transport = *meshes_[rank],
                           .regions = RegionFinder(regions_),
                           .reads_memory = true});
      for (int peer = 0; peer < kMany; ++peer) {
        if (peer != rank) meshes_[rank]->Know(peer, marks_[peer]);
      }
    }
  }

  static float MakeValue(int from, int to, size_t index) {
    return static_cast<float>((from * kMany + to) * 1'000'000 +
                              static_cast<int>(index % 1'000'000));
  }

  // Runs an all_to_all in which the ranks in the bit mask `origins` publish
  // addresses. Checks the outputs. Returns each rank's outcome.
  std::vector<StatusOr<bool>> Run(const Counts& counts, unsigned origins) {
    std::vector<std::future<StatusOr<bool>>> running;
    ++sequence_;
    for (int rank = 0; rank < kMany; ++rank) {
      running.push_back(std::async(std::launch::async, [&, rank] {
        return RunOn(rank, counts, (origins >> rank & 1) != 0);
      }));
    }
    std::vector<StatusOr<bool>> outcomes;
    for (auto& one : running) outcomes.push_back(one.get());
    return outcomes;
  }

  // As Run, and expects success.
  void ExpectDone(const Counts& counts, unsigned origins,
                  const std::string& algorithm) {
    SCOPED_TRACE(absl::StrCat("of ", counts[0][1], ", origins ", origins));
    for (const auto& outcome : Run(counts, origins)) {
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      EXPECT_TRUE(*outcome);
    }
    for (const auto& transport : meshes_)
      EXPECT_EQ(transport->algorithm(), algorithm);
  }

  std::vector<std::unique_ptr<UnusedTransport>> meshes_;
  cpu::Mark marks_[kMany] = {cpu::Mark(UnusedTransport::kMark),
                             cpu::Mark(UnusedTransport::kMark),
                             cpu::Mark(UnusedTransport::kMark)};
  bool reads_rather_ = false;
  std::atomic<size_t> bytes_asked_ = 0;
  // The last rank's input for the first one, if not null.
  std::byte* last_gives_ = nullptr;

 private:
  StatusOr<bool> RunOn(int rank, const Counts& counts, bool shows_origins) {
    std::array<std::vector<float>, kMany> give;
    std::array<std::vector<float>, kMany> take;
    Collective collective = {.kind = CollectiveKind::kAllToAll,
                             .sequence = sequence_};
    for (int peer = 0; peer < kMany; ++peer) {
      for (size_t i = 0; i < counts[rank][peer]; ++i) {
        give[peer].push_back(MakeValue(rank, peer, i));
      }
      take[peer].assign(counts[peer][rank], -1);
      collective.inputs.emplace_back(give[peer]);
      collective.outputs.emplace_back(take[peer]);
    }
    const bool gives_other = rank == kMany - 1 && last_gives_ != nullptr;
    if (gives_other) {
      collective.inputs[0] = Tensor(last_gives_, DataType::kFloat32,
                                    {static_cast<int64_t>(counts[rank][0])});
    }
    ShmContext& context = contexts_[rank];
    context.Say(collective);
    const StatusOr<bool> outcome = RunAllToAll(
        context, collective,
        shows_origins ? std::optional(Scope::kAnywhere) : std::nullopt,
        [this](size_t bytes) {
          bytes_asked_.store(bytes);
          return reads_rather_;
        });
    if (!outcome.ok()) {
      round_buffers_[rank]->Leave(/*has_failed=*/true);
      return outcome;
    }
    context.history.Add(*context.header, context.sequence,
                        History::ComputeDigest(*context.header));
    if (!*outcome) return outcome;
    // If a rank still read this memory, it would now see wrong values.
    for (auto& tensor : give) std::fill(tensor.begin(), tensor.end(), -2);
    for (int peer = 0; peer < kMany; ++peer) {
      if (last_gives_ != nullptr && rank == 0 && peer == kMany - 1) continue;
      for (size_t i = 0; i < counts[peer][rank]; ++i) {
        if (take[peer][i] != MakeValue(peer, rank, i)) {
          ADD_FAILURE() << "rank " << rank << " has " << take[peer][i]
                        << " for element " << i << " of rank " << peer;
          break;
        }
      }
    }
    return outcome;
  }

  std::vector<std::unique_ptr<RoundBuffer>> round_buffers_;
  const std::shared_ptr<Segment> segment_ = *Segment::Create(
      RoundBuffer::BytesFor(kMany, RoundBufferTraits().ring_bytes));
  const Regions regions_;
  std::vector<ShmContext> contexts_;
  uint64_t sequence_ = 0;
};

TEST_F(OriginsTest, AnyMayShowThem) {
  // Small data is always published as elements.
  ExpectDone({{{40, 40, 40}, {40, 3'000, 40}, {40, 6'000, 40}}}, kAll,
             "staged");
  constexpr Counts kEach[] = {
      // Equal sizes, in one round and in several.
      kLittle,
      kMuch,
      // Different sizes, some of them zero.
      {{{5, kLong, 0}, {3 * kLong, 7, 1}, {0, 9'000, kLong}}},
      {{{kLong, 0, 9'000}, {0, 1, 9'000}, {1, 2 * kLong, 0}}},
  };
  for (const Counts& counts : kEach) {
    for (unsigned origins = 0; origins <= kAll; ++origins) {
      ExpectDone(counts, origins, origins == 0 ? "staged" : "single_copy");
    }
  }
}

// If some rank would have to publish several rounds.
TEST_F(OriginsTest, WhatIsReadRatherIsRunAnew) {
  reads_rather_ = true;
  ExpectDone(kLittle, 0, "staged");
  // Rank 1 has the most data for others.
  constexpr Counts kCounts = {
      {{9 * kLong, kLong, 0}, {2 * kLong, 7, kLong}, {kLong, kLong, 5}}};
  for (unsigned origins = 0; origins < kAll; ++origins) {
    for (const auto& outcome : Run(kCounts, origins)) {
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      EXPECT_FALSE(*outcome) << origins;
    }
    EXPECT_EQ(bytes_asked_.load(), 3 * kLong * sizeof(float) / 2 * 3);
  }
  ExpectDone(kCounts, kAll, "single_copy");
}

// The kernel's page of clocks: a process can read its own, but not another's.
TEST_F(OriginsTest, WhatOthersCannotReadIsShown) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line) && line.find("[vvar]") == line.npos) {
  }
  const uint64_t page = std::strtoull(line.c_str(), nullptr, 16);
  ASSERT_NE(page, 0);
  last_gives_ = reinterpret_cast<std::byte*>(page);
  constexpr unsigned kLast = 1 << (kMany - 1);
  // The next page may not exist.
  constexpr Counts kCounts = {{{1, 1, 1}, {1, 1, 1}, {40, 9000, 1}}};
  const size_t bytes = kCounts[kMany - 1][0] * sizeof(float);
  ExpectDone(kCounts, kLast,
             cpu::CanBeRead(last_gives_, bytes) ? "single_copy" : "staged");
}

// Rank 1 takes its memory back, so reads from it are invalid.
TEST_F(OriginsTest, WhoHasGoneIsNamed) {
  ExpectDone(kLittle, kAll, "single_copy");
  marks_[1].Clear();
  const auto outcomes = Run(kLittle, 0b010);
  for (const int reader : {0, 2}) {
    EXPECT_EQ(outcomes[reader].status(), UnavailableError("rank 1 has left"));
  }
}

TEST(AllReduceTest, OfManyPiecesWithAFactorForEachRank) {
  constexpr int kMany = 3;
  // Parts differ in size, and each round contains a factor.
  constexpr size_t kCount = 1'000'001;
  testing::LocalWorld world({.backend = "shm", .world_size = kMany});
  world.OnEachRank([&](Communicator& communicator) {
    const int rank = communicator.rank();
    std::vector<float> values(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      values[i] = static_cast<float>(i % 1000 + rank);
    }
    ASSERT_EQ(communicator.Run(Collective{.kind = CollectiveKind::kAllReduce,
                                          .tensors = {Tensor(values)},
                                          .reduce_op = ReduceOp::kPremulSum,
                                          .factor = rank + 1.0}),
              OkStatus());
    EXPECT_EQ(communicator.last_run(DeviceType::kCpu).algorithm, "by_parts");
    // 1 * x + 2 * (x + 1) + 3 * (x + 2).
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(values[i], static_cast<float>(6 * (i % 1000) + 8)) << i;
    }
  });
}

// A kind that does not use `reduce_op` has no factors.
TEST(AllToAllTest, TheOperationOfReductionsIsLeftAlone) {
  testing::LocalWorld world({.backend = "shm", .world_size = kRanks});
  world.OnEachRank([&](Communicator& communicator) {
    std::vector<float> input = {1, 2};
    std::vector<float> output(2);
    Collective exchange = {.kind = CollectiveKind::kAllToAllSingle,
                           .inputs = {Tensor(input)},
                           .outputs = {Tensor(output)}};
    if (communicator.rank() == 0) exchange.reduce_op = ReduceOp::kPremulSum;
    ASSERT_EQ(communicator.Run(exchange), OkStatus());
    EXPECT_THAT(output, Each(1 + communicator.rank()));
  });
}

// All ranks decide alike whether to run again with addresses, whatever each has
// chosen: a rank with little data publishes elements.
TEST(AllToAllTest, ManyRanksOfWhichOneHasLittleAgree) {
  constexpr int kMany = 9;
  // So much that all ranks read if processors are fewer.
  constexpr int64_t kCount = 3 * kMiB / 8;
  testing::LocalWorld world({.backend = "shm", .world_size = kMany});
  world.OnEachRank([&](Communicator& communicator) {
    const auto exchange = [&](const auto& count_of) {
      Collective collective = {.kind = CollectiveKind::kAllToAllSingle};
      std::vector<float> input;
      std::vector<float> expected;
      for (int peer = 0; peer < kMany; ++peer) {
        const int64_t gives = count_of(communicator.rank(), peer);
        const int64_t takes = count_of(peer, communicator.rank());
        collective.input_splits.push_back(gives);
        collective.output_splits.push_back(takes);
        input.insert(input.end(), gives, communicator.rank() * kMany + peer);
        expected.insert(expected.end(), takes,
                        peer * kMany + communicator.rank());
      }
      std::vector<float> output(expected.size());
      collective.inputs = {Tensor(input)};
      collective.outputs = {Tensor(output)};
      ASSERT_EQ(communicator.Run(collective), OkStatus());
      ASSERT_EQ(output, expected);
    };
    // The last rank needs several rounds for its data.
    constexpr int kLast = kMany - 1;
    for (int time = 0; time < 4; ++time) {
      exchange([](int from, int to) {
        return from == kLast && to == 1       ? int64_t{20'000}
               : from == kLast || to == kLast ? int64_t{1}
                                              : kCount;
      });
      exchange([](int, int) { return kCount; });
    }
  });
}

// With so many ranks on few processors, all but one look at one alone.
TEST(BarrierTest, OfManyRanksLetsNobodyGoBeforeAllHaveCome) {
  constexpr int kMany = 48;
  constexpr int kTimes = 3;
  testing::LocalWorld world({.backend = "shm", .world_size = kMany});
  std::atomic<int> have_come = 0;
  world.OnEachRank([&](Communicator& communicator) {
    for (int time = 1; time <= kTimes; ++time) {
      // Another rank each time, of them the one that all look at.
      if (communicator.rank() == (time - 1) * (kMany - 1) / (kTimes - 1)) {
        while (have_come.load() < time * kMany - 1) std::this_thread::yield();
      }
      ++have_come;
      ASSERT_EQ(communicator.Run(Collective{.kind = CollectiveKind::kBarrier}),
                OkStatus());
      ASSERT_GE(have_come.load(), time * kMany);
    }
  });
}

TEST(BarrierTest, OfManyRanksFailsOnAllIfOneRunsAnother) {
  constexpr int kMany = 48;
  constexpr int kOther = 40;
  testing::LocalWorld world({.backend = "shm", .world_size = kMany});
  world.OnEachRank([&](Communicator& communicator) {
    Collective collective = {.kind = CollectiveKind::kBarrier};
    std::vector<float> values(1);
    if (communicator.rank() == kOther) {
      collective.kind = CollectiveKind::kAllReduce;
      collective.tensors = {Tensor(values)};
    }
    EXPECT_FALSE(communicator.Run(collective).ok());
  });
}

}  // namespace
}  // namespace muster::dataplane::shm
