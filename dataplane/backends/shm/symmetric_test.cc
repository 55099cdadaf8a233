// Collectives in symmetric memory of the shm backend.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/backend.h"
#include "dataplane/backends/shm/regions.h"
#include "dataplane/backends/shm/segment.h"
#include "dataplane/communicator.h"
#include "dataplane/instant.h"
#include "dataplane/testing/local_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

using shm_internal::Region;
using shm_internal::Segment;
using ::testing::HasSubstr;
using testing::LocalWorld;

using Memory = std::shared_ptr<SymmetricMemory>;

absl::StatusOr<Memory> Allocate(Communicator& communicator, size_t bytes) {
  return communicator.AllocateSymmetric(
      {.bytes = bytes,
       .device = DeviceType::kCpu,
       .deadline = Clock::now() + std::chrono::seconds(60)});
}

// `count` of float32 from element `first` on.
Tensor Part(const Memory& memory, size_t first, size_t count) {
  return Tensor(static_cast<float*>(memory->data()) + first, DataType::kFloat32,
                {static_cast<int64_t>(count)});
}

absl::Span<float> Values(const Tensor& tensor) {
  return {static_cast<float*>(tensor.data()),
          static_cast<size_t>(tensor.element_count())};
}

void Fill(const Tensor& tensor, float value) {
  for (float& one : Values(tensor)) one = value;
}

bool AllAre(absl::Span<const float> values, float value) {
  return std::all_of(values.begin(), values.end(),
                     [value](float one) { return one == value; });
}

absl::Status Do(Communicator& communicator, const Collective& collective) {
  return communicator.Start(collective)->Wait();
}

// KiB of this process's memory that is of segments, and there.
int64_t SharedKib() {
  std::ifstream file("/proc/self/smaps");
  std::string line;
  bool is_segment = false;
  int64_t sum = 0;
  while (std::getline(file, line)) {
    if (line.find('-') != std::string::npos && line.find(' ') > 10) {
      is_segment = line.find("/memfd:muster-") != std::string::npos;
    }
    if (is_segment && line.rfind("Pss:", 0) == 0) {
      sum += std::atoll(line.c_str() + 4);
    }
  }
  return sum;
}

// Ranks, and elements of one: of all ways to go.
using Case = std::pair<int, size_t>;

class SymmetricTest : public ::testing::TestWithParam<Case> {
 protected:
  int ranks() const { return GetParam().first; }
  size_t count() const { return GetParam().second; }

  // Small ones are shown: that is one round, and not three.
  bool is_small() const { return count() < 1'000; }

  // It is done, and went from tensor to tensor.
  void DoThere(Communicator& communicator, const Collective& collective) const {
    EXPECT_TRUE(Do(communicator, collective).ok());
    EXPECT_EQ(communicator.last_run(DeviceType::kCpu).algorithm == "symmetric",
              !is_small() && ranks() > 1)
        << CollectiveKindName(collective.kind);
  }

  // This rank's part for each, or from each, of `all`.
  Collective::Tensors PartsOf(const Tensor& all) const {
    Collective::Tensors parts;
    for (int r = 0; r < ranks(); ++r) {
      parts.push_back(Tensor(&Values(all)[r * count()], DataType::kFloat32,
                             {static_cast<int64_t>(count())}));
    }
    return parts;
  }
};

INSTANTIATE_TEST_SUITE_P(Sizes, SymmetricTest,
                         ::testing::Values(Case{1, 5}, Case{2, 5},
                                           Case{3, 70'001}, Case{4, 100'001},
                                           Case{2, 1'000'003}));

TEST_P(SymmetricTest, TensorsOfAllRanksAreReachedWhereTheyAre) {
  LocalWorld world({.backend = "shm", .world_size = ranks()});
  world.OnEachRank([&](Communicator& communicator) {
    const size_t n = ranks();
    const int rank = communicator.rank();
    const auto memory = Allocate(communicator, 2 * n * count() * sizeof(float));
    ASSERT_TRUE(memory.ok()) << memory.status();
    const Tensor one = Part(*memory, 0, count());
    const Tensor all = Part(*memory, 0, n * count());
    const Tensor other = Part(*memory, n * count(), n * count());
    const float sum = static_cast<float>(n * (n + 1)) / 2;

    Fill(one, static_cast<float>(rank + 1));
    DoThere(communicator,
            {.kind = CollectiveKind::kAllReduce, .tensors = {one}});
    EXPECT_TRUE(AllAre(Values(one), sum));

    Fill(one, static_cast<float>(rank + 1));
    DoThere(communicator, {.kind = CollectiveKind::kAllReduce,
                           .tensors = {one},
                           .reduce_op = ReduceOp::kPremulSum,
                           .factor = static_cast<double>(rank + 1)});
    EXPECT_EQ(Values(one).front(),
              static_cast<float>(n * (n + 1) * (2 * n + 1)) / 6);

    const int root = static_cast<int>(n) - 1;
    Fill(one, static_cast<float>(rank + 1));
    DoThere(communicator,
            {.kind = CollectiveKind::kReduce, .tensors = {one}, .root = root});
    EXPECT_TRUE(
        AllAre(Values(one), rank == root ? sum : static_cast<float>(rank + 1)));

    Fill(one, static_cast<float>(rank + 1));
    DoThere(
        communicator,
        {.kind = CollectiveKind::kBroadcast, .tensors = {one}, .root = root});
    EXPECT_TRUE(AllAre(Values(one), static_cast<float>(n)));
  });
}

TEST_P(SymmetricTest, PartsOfAllRanksAreReachedWhereTheyAre) {
  LocalWorld world({.backend = "shm", .world_size = ranks()});
  world.OnEachRank([&](Communicator& communicator) {
    const size_t n = ranks();
    const int rank = communicator.rank();
    const auto memory = Allocate(communicator, 2 * n * count() * sizeof(float));
    ASSERT_TRUE(memory.ok()) << memory.status();
    const Tensor all = Part(*memory, 0, n * count());
    const Tensor other = Part(*memory, n * count(), n * count());
    const auto holds_ranks = [&](const Tensor& tensor) {
      for (size_t r = 0; r < n; ++r) {
        EXPECT_TRUE(AllAre(Values(tensor).subspan(r * count(), count()),
                           static_cast<float>(r)));
      }
    };
    // In place: a rank's own is where it goes to.
    const Tensor own = Part(*memory, rank * count(), count());

    Fill(own, static_cast<float>(rank));
    DoThere(communicator, {.kind = CollectiveKind::kAllGatherIntoTensor,
                           .inputs = {own},
                           .outputs = {all}});
    holds_ranks(all);
    DoThere(communicator, {.kind = CollectiveKind::kAllToAllSingle,
                           .inputs = {all},
                           .outputs = {other}});
    EXPECT_TRUE(AllAre(Values(other), static_cast<float>(rank)));
    DoThere(communicator, {.kind = CollectiveKind::kReduceScatterTensor,
                           .inputs = {all},
                           .outputs = {own}});
    EXPECT_TRUE(AllAre(Values(own), static_cast<float>(n * rank)));

    Fill(all, static_cast<float>(rank));
    DoThere(communicator, {.kind = CollectiveKind::kAllToAll,
                           .inputs = PartsOf(all),
                           .outputs = PartsOf(other)});
    holds_ranks(other);
    DoThere(communicator, {.kind = CollectiveKind::kReduceScatter,
                           .inputs = PartsOf(other),
                           .outputs = {own}});
    EXPECT_TRUE(AllAre(Values(own), static_cast<float>(n * rank)));

    // `other` is the ranks of the last one everywhere.
    const int root = static_cast<int>(n) - 1;
    const bool is_root = rank == root;
    DoThere(communicator,
            {.kind = CollectiveKind::kScatter,
             .inputs = is_root ? PartsOf(other) : Collective::Tensors(),
             .outputs = {own},
             .root = root});
    EXPECT_TRUE(AllAre(Values(own), static_cast<float>(rank)));
    DoThere(communicator,
            {.kind = CollectiveKind::kGather,
             .inputs = {own},
             .outputs = is_root ? PartsOf(all) : Collective::Tensors(),
             .root = root});
    if (is_root) holds_ranks(all);
  });
}

// What is little is shown, if it is little on all ranks.
TEST_P(SymmetricTest, RanksMayHaveMuchForOneAndLittleForOthers) {
  LocalWorld world({.backend = "shm", .world_size = ranks()});
  world.OnEachRank([&](Communicator& communicator) {
    const auto n = static_cast<int64_t>(ranks());
    const auto rank = static_cast<int64_t>(communicator.rank());
    const auto elements = static_cast<int64_t>(count());
    const auto memory =
        Allocate(communicator, (1 + n + 2 * elements) * sizeof(float));
    ASSERT_TRUE(memory.ok()) << memory.status();
    // Rank 0 has much for the last rank, who has it from all others, too: one.
    const auto given = [&](int64_t from, int64_t to) {
      return from == 0 && to == n - 1 ? elements : 1;
    };
    Collective exchange = {.kind = CollectiveKind::kAllToAllSingle};
    int64_t gives = 0;
    int64_t takes = 0;
    for (int64_t r = 0; r < n; ++r) {
      exchange.input_splits.push_back(given(rank, r));
      exchange.output_splits.push_back(given(r, rank));
      gives += given(rank, r);
      takes += given(r, rank);
    }
    const Tensor input = Part(*memory, 0, gives);
    const Tensor output = Part(*memory, gives, takes);
    Fill(input, static_cast<float>(rank));
    exchange.inputs = {input};
    exchange.outputs = {output};
    DoThere(communicator, exchange);
    int64_t first = 0;
    for (int64_t r = 0; r < n; ++r) {
      EXPECT_TRUE(AllAre(Values(output).subspan(first, given(r, rank)),
                         static_cast<float>(r)));
      first += given(r, rank);
    }
  });
}

TEST_P(SymmetricTest, RanksWhoseTensorsAreElsewhereTakePart) {
  LocalWorld world({.backend = "shm", .world_size = ranks()});
  world.OnEachRank([&](Communicator& communicator) {
    const auto memory =
        Allocate(communicator, ranks() * count() * sizeof(float));
    ASSERT_TRUE(memory.ok()) << memory.status();
    std::vector<float> ordinary(count());
    const Tensor tensor =
        communicator.rank() == 0 ? Tensor(ordinary) : Part(*memory, 0, count());
    Fill(tensor, 1);
    EXPECT_TRUE(Do(communicator,
                   {.kind = CollectiveKind::kAllReduce, .tensors = {tensor}})
                    .ok());
    EXPECT_TRUE(AllAre(Values(tensor), static_cast<float>(ranks())));
    // Nobody knows of the others how much they have.
    const Tensor parts = Part(*memory, 0, ranks() * count());
    std::vector<float> others(ranks() * count());
    Fill(parts, static_cast<float>(communicator.rank()));
    EXPECT_TRUE(
        Do(communicator,
           {.kind = CollectiveKind::kAllToAllSingle,
            .inputs = {communicator.rank() == 0 ? Tensor(others) : parts},
            .outputs = {communicator.rank() == 0 ? parts : Tensor(others)}})
            .ok());
    EXPECT_EQ(Values(communicator.rank() == 0 ? parts : Tensor(others)).back(),
              static_cast<float>(ranks() - 1));
  });
}

TEST_P(SymmetricTest, WhereNoMemoryIsSharedItIsAsAnyOther) {
  setenv("MUSTER_SHM", "0", 1);
  LocalWorld world({.backend = "shm", .world_size = ranks()});
  unsetenv("MUSTER_SHM");
  world.OnEachRank([&](Communicator& communicator) {
    const auto memory = Allocate(communicator, count() * sizeof(float));
    ASSERT_TRUE(memory.ok()) << memory.status();
    const Tensor tensor = Part(*memory, 0, count());
    Fill(tensor, 1);
    EXPECT_TRUE(Do(communicator,
                   {.kind = CollectiveKind::kAllReduce, .tensors = {tensor}})
                    .ok());
    EXPECT_TRUE(AllAre(Values(tensor), static_cast<float>(ranks())));
  });
}

// Ranks on these hosts: what those of one have is read there.
class SymmetricHostsTest : public ::testing::TestWithParam<const char*> {
 protected:
  SymmetricHostsTest() {
    setenv("MUSTER_SHM_HOSTS", "address", 1);
    setenv("MUSTER_LOCAL_WORLD_HOSTS", GetParam(), 1);
  }
  ~SymmetricHostsTest() override {
    unsetenv("MUSTER_SHM_HOSTS");
    unsetenv("MUSTER_LOCAL_WORLD_HOSTS");
  }

  static size_t ranks() { return std::string(GetParam()).size(); }
  // Whether any other rank is on the host of `rank`.
  static bool HasNeighbour(int rank) {
    const std::string hosts = GetParam();
    return std::count(hosts.begin(), hosts.end(), hosts[rank]) > 1;
  }
};

INSTANTIATE_TEST_SUITE_P(Hosts, SymmetricHostsTest,
                         ::testing::Values("0011", "0110", "00012"));

TEST_P(SymmetricHostsTest, TensorsOfAHostAreReachedWhereTheyAre) {
  LocalWorld world({.backend = "shm", .world_size = static_cast<int>(ranks())});
  world.OnEachRank([&](Communicator& communicator) {
    const size_t n = ranks();
    const int rank = communicator.rank();
    const auto run = [&](const Collective& collective) {
      EXPECT_TRUE(Do(communicator, collective).ok());
      EXPECT_EQ(communicator.last_run(DeviceType::kCpu).algorithm,
                HasNeighbour(rank) ? "two_levels_symmetric" : "two_levels")
          << CollectiveKindName(collective.kind);
    };
    // In one piece, and in several.
    for (const size_t count : {size_t{70'003}, size_t{2'500'009}}) {
      const auto memory = Allocate(communicator, n * count * sizeof(float));
      ASSERT_TRUE(memory.ok()) << memory.status();
      const Tensor one = Part(*memory, 0, count);
      const Tensor all = Part(*memory, 0, n * count);
      const Tensor own = Part(*memory, rank * count, count);
      const int root = static_cast<int>(n) - 1;
      const auto sum = static_cast<float>(n * (n - 1) / 2);
      const auto mine = static_cast<float>(rank);

      for (const double factor : {1.0, 2.0}) {
        Fill(one, mine);
        run({.kind = CollectiveKind::kAllReduce,
             .tensors = {one},
             .reduce_op = factor == 1 ? ReduceOp::kSum : ReduceOp::kPremulSum,
             .factor = factor});
        EXPECT_TRUE(AllAre(Values(one), static_cast<float>(factor) * sum));
      }
      Fill(one, mine);
      run({.kind = CollectiveKind::kReduce, .tensors = {one}, .root = root});
      EXPECT_TRUE(AllAre(Values(one), rank == root ? sum : mine));
      Fill(one, mine);
      run({.kind = CollectiveKind::kBroadcast, .tensors = {one}, .root = root});
      EXPECT_TRUE(AllAre(Values(one), static_cast<float>(root)));
      Fill(own, mine);
      run({.kind = CollectiveKind::kAllGatherIntoTensor,
           .inputs = {own},
           .outputs = {all}});
      for (size_t r = 0; r < n; ++r) {
        EXPECT_TRUE(AllAre(Values(all).subspan(r * count, count),
                           static_cast<float>(r)));
      }
      run({.kind = CollectiveKind::kReduceScatterTensor,
           .inputs = {all},
           .outputs = {own}});
      EXPECT_TRUE(AllAre(Values(own), static_cast<float>(n) * mine));
    }
  });
}

// Whoever goes on at once must not change what others still read.
TEST_P(SymmetricHostsTest, ATensorMayBeWrittenAtOnce) {
  LocalWorld world({.backend = "shm", .world_size = static_cast<int>(ranks())});
  world.OnEachRank([&](Communicator& communicator) {
    constexpr size_t kCount = 100'003;
    const auto memory = Allocate(communicator, kCount * sizeof(float));
    ASSERT_TRUE(memory.ok()) << memory.status();
    const Tensor tensor = Part(*memory, 0, kCount);
    for (int i = 0; i < 50; ++i) {
      Fill(tensor, static_cast<float>(communicator.rank() + i));
      const int root = i % communicator.world_size();
      const bool reduces = i % 2 == 0;
      EXPECT_TRUE(
          Do(communicator, {.kind = reduces ? CollectiveKind::kAllReduce
                                            : CollectiveKind::kBroadcast,
                            .tensors = {tensor},
                            .reduce_op = ReduceOp::kMax,
                            .root = reduces ? 0 : root})
              .ok());
      const size_t expected = reduces ? ranks() - 1 : root;
      EXPECT_TRUE(AllAre(Values(tensor), static_cast<float>(expected + i)));
    }
  });
}

TEST(SymmetricMemoryTest, ItGoesWithItsOwnerAndNotWithTheGroup) {
  constexpr size_t kBytes = 8 << 20;
  std::vector<Memory> memories(3);
  {
    LocalWorld world({.backend = "shm", .world_size = 3});
    const int64_t before = SharedKib();
    world.OnEachRank([&](Communicator& communicator) {
      Memory& memory = memories[communicator.rank()];
      for (int i = 0; i < 5; ++i) {
        memory = nullptr;
        auto allocated = Allocate(communicator, kBytes);
        ASSERT_TRUE(allocated.ok()) << allocated.status();
        memory = *std::move(allocated);
        Fill(Part(memory, 0, kBytes / sizeof(float)), 1);
      }
    });
    // Of three ranks; what is not needed any more is not there.
    EXPECT_LE(SharedKib() - before, 3 * (kBytes >> 10) + 100);
    memories[1] = nullptr;
    EXPECT_LE(SharedKib() - before, 2 * (kBytes >> 10) + 100);
  }
  EXPECT_TRUE(AllAre(Values(Part(memories[0], 0, kBytes / sizeof(float))), 1));
  memories.clear();
  EXPECT_EQ(SharedKib(), 0);
}

// How many lines of `file` have `word`.
int64_t LinesWith(const std::string& file, const std::string& word) {
  std::ifstream in(file);
  std::string line;
  int64_t found = 0;
  while (std::getline(in, line)) found += line.find(word) != std::string::npos;
  return found;
}

int64_t OpenDescriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return std::distance(begin(open), end(open));
}

TEST(SymmetricMemoryTest, ManyPiecesNeedNoMoreDescriptorsThanOne) {
  LocalWorld world({.backend = "shm", .world_size = 3});
  std::vector<std::vector<Memory>> memories(3);
  const auto allocate = [&](int pieces) {
    world.OnEachRank([&](Communicator& communicator) {
      for (int i = 0; i < pieces; ++i) {
        auto memory = Allocate(communicator, 4096);
        ASSERT_TRUE(memory.ok()) << memory.status();
        Fill(Part(*memory, 0, 1024), static_cast<float>(i));
        memories[communicator.rank()].push_back(*std::move(memory));
      }
    });
  };
  allocate(1);
  const int64_t of_one = OpenDescriptors();
  allocate(40);
  EXPECT_EQ(OpenDescriptors(), of_one);
  // And each is another one.
  for (const auto& of_rank : memories) {
    for (int i = 0; i < 40; ++i) {
      EXPECT_TRUE(
          AllAre(Values(Part(of_rank[i + 1], 0, 1024)), static_cast<float>(i)));
    }
  }
}

TEST(SymmetricMemoryTest, WhatAllHaveFreedIsNotMappedForEver) {
  LocalWorld world({.backend = "shm", .world_size = 2});
  const auto allocate = [&](int times) {
    world.OnEachRank([&](Communicator& communicator) {
      for (int i = 0; i < times; ++i) {
        ASSERT_TRUE(Allocate(communicator, 4096).ok());
        // Both have freed it.
        ASSERT_TRUE(Do(communicator, {.kind = CollectiveKind::kBarrier}).ok());
      }
    });
    return LinesWith("/proc/self/maps", "memfd:muster-");
  };
  EXPECT_EQ(allocate(2), allocate(20));
}

// The same region as two of three ranks have it.
class RegionTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 300'000;

  void SetUp() override {
    const size_t bytes = Region::BytesFor(kBytes, 3);
    auto made = Segment::Create(bytes);
    ASSERT_TRUE(made.ok()) << made.status();
    auto opened = Segment::Open((*made)->place(), bytes);
    ASSERT_TRUE(opened.ok()) << opened.status();
    zero_ = std::make_unique<Region>(*std::move(made), kBytes, 0, 3);
    two_ = std::make_unique<Region>(*std::move(opened), kBytes, 2, 3);
  }

  std::unique_ptr<Region> zero_;
  std::unique_ptr<Region> two_;
};

TEST_F(RegionTest, SlicesAreSharedAndNothingBetweenThemCanBeTouched) {
  zero_->slice(0)[7] = std::byte{5};
  EXPECT_EQ(two_->slice(0)[7], std::byte{5});
  two_->slice(0)[8] = std::byte{6};
  EXPECT_EQ(zero_->slice(0)[8], std::byte{6});
  // Where this process cannot write, the system says so.
  const int zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  constexpr size_t kRounded = (kBytes + 65'535) / 65'536 * 65'536;
  for (int rank = 0; rank < 3; ++rank) {
    std::byte* const slice = zero_->slice(rank);
    EXPECT_EQ(read(zeros, slice, 1), 1) << rank;
    EXPECT_EQ(read(zeros, slice + kBytes - 1, 1), 1) << rank;
    EXPECT_EQ(read(zeros, slice - 1, 1), -1) << rank;
    EXPECT_EQ(read(zeros, slice + kRounded, 1), -1) << rank;
  }
  close(zeros);
}

TEST_F(RegionTest, WhatIsWithdrawnIsItsOwnersAlone) {
  std::byte* const own = zero_->slice(0);
  std::byte* const theirs = two_->slice(0);
  for (size_t at = 0; at < kBytes; ++at) own[at] = std::byte{1};
  constexpr size_t kFirst = 70'000;
  constexpr size_t kCount = 150'000;
  ASSERT_TRUE(zero_->Withdraw(kFirst, kCount).ok());
  for (size_t at = 0; at < kBytes; ++at) EXPECT_EQ(own[at], std::byte{1});
  for (size_t at = 0; at < kBytes; ++at) theirs[at] = std::byte{2};
  for (size_t at = kFirst; at < kFirst + kCount; ++at) {
    ASSERT_EQ(own[at], std::byte{1}) << at;
    own[at] = std::byte{3};
    ASSERT_EQ(theirs[at], std::byte{2}) << at;
  }
  // The rest is shared as before.
  EXPECT_EQ(own[0], std::byte{2});
  EXPECT_EQ(own[kBytes - 1], std::byte{2});
}

TEST(SymmetricMemoryTest, DifferentSizesAreAnErrorThatShowsBoth) {
  LocalWorld world({.backend = "shm", .world_size = 3});
  world.OnEachRank([&](Communicator& communicator) {
    const auto memory =
        Allocate(communicator, communicator.rank() == 1 ? 12 : 8);
    EXPECT_EQ(memory.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(memory.status().message()),
                HasSubstr(communicator.rank() == 1
                              ? "rank 0 allocates 8 bytes of symmetric memory, "
                                "rank 1 12"
                              : absl::StrCat("rank 1 allocates 12 bytes of "
                                             "symmetric memory, rank ",
                                             communicator.rank(), " 8")));
  });
}

TEST(SymmetricMemoryTest, MoreThanThereIsIsAnErrorOnAllRanks) {
  LocalWorld world({.backend = "shm", .world_size = 2});
  world.OnEachRank([&](Communicator& communicator) {
    const absl::Status status =
        Allocate(communicator, size_t{1} << 50).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(
        std::string(status.message()),
        HasSubstr(communicator.rank() == 0 ? "bytes: there are "
                                           : "rank 0 does not get at it"));
  });
}

}  // namespace
}  // namespace muster::dataplane
