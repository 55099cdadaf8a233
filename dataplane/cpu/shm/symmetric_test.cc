// Collectives in symmetric memory of the shm backend.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dataplane/communicator.h"
#include "dataplane/cpu/shm/symmetric_testing.h"
#include "dataplane/testing/local_world.h"
#include "gtest/gtest.h"
#include "muster/base/clock.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane {
namespace {

using testing::LocalWorld;

// The ranks, and the elements per rank: values for all paths.
using Case = std::pair<int, size_t>;

class SymmetricTest : public ::testing::TestWithParam<Case> {
 protected:
  int ranks() const { return GetParam().first; }
  size_t count() const { return GetParam().second; }

  // Small data is published as elements: one round instead of three.
  bool is_small() const { return count() < 1'000; }

  // Expects success, from tensor to tensor.
  void DoThere(Communicator& communicator, const Collective& collective) const {
    EXPECT_TRUE(Do(communicator, collective).ok());
    EXPECT_EQ(communicator.last_run(DeviceType::kCpu).algorithm == "symmetric",
              !is_small() && ranks() > 1)
        << CollectiveKindName(collective.kind);
  }

  // The parts of `all` for each rank, or from each rank.
  Collective::Tensors MakeParts(const Tensor& all) const {
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
    // In place: a rank's own part is already at its target.
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
                           .inputs = MakeParts(all),
                           .outputs = MakeParts(other)});
    holds_ranks(other);
    DoThere(communicator, {.kind = CollectiveKind::kReduceScatter,
                           .inputs = MakeParts(other),
                           .outputs = {own}});
    EXPECT_TRUE(AllAre(Values(own), static_cast<float>(n * rank)));

    // `other` now holds the rank numbers on all ranks.
    const int root = static_cast<int>(n) - 1;
    const bool is_root = rank == root;
    DoThere(communicator,
            {.kind = CollectiveKind::kScatter,
             .inputs = is_root ? MakeParts(other) : Collective::Tensors(),
             .outputs = {own},
             .root = root});
    EXPECT_TRUE(AllAre(Values(own), static_cast<float>(rank)));
    DoThere(communicator,
            {.kind = CollectiveKind::kGather,
             .inputs = {own},
             .outputs = is_root ? MakeParts(all) : Collective::Tensors(),
             .root = root});
    if (is_root) holds_ranks(all);
  });
}

// Ranks with little data publish it as elements.
TEST_P(SymmetricTest, RanksMayHaveMuchForOneAndLittleForOthers) {
  LocalWorld world({.backend = "shm", .world_size = ranks()});
  world.OnEachRank([&](Communicator& communicator) {
    const auto n = static_cast<int64_t>(ranks());
    const auto rank = static_cast<int64_t>(communicator.rank());
    const auto elements = static_cast<int64_t>(count());
    const auto memory =
        Allocate(communicator, (1 + n + 2 * elements) * sizeof(float));
    ASSERT_TRUE(memory.ok()) << memory.status();
    // Rank 0 has much for the last rank; all other parts have one element.
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
    // Ranks do not know the others' sizes here.
    const Tensor parts = Part(*memory, 0, ranks() * count());
    std::vector<float> others(ranks() * count());
    Fill(communicator.rank() == 0 ? Tensor(others) : parts,
         static_cast<float>(communicator.rank()));
    EXPECT_TRUE(
        Do(communicator,
           {.kind = CollectiveKind::kAllToAllSingle,
            .inputs = {communicator.rank() == 0 ? Tensor(others) : parts},
            .outputs = {communicator.rank() == 0 ? parts : Tensor(others)}})
            .ok());
    const auto got = Values(communicator.rank() == 0 ? parts : Tensor(others));
    for (int from = 0; from < ranks(); ++from) {
      EXPECT_TRUE(AllAre(got.subspan(from * count(), count()),
                         static_cast<float>(from)));
    }
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

// Ranks on the hosts of the parameter. Data of ranks on one host is read in
// place.
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
    // One piece, and several.
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

// A rank that continues at once must not change data that others still read.
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

}  // namespace
}  // namespace muster::dataplane
