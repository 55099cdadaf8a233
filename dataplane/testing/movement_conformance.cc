// Collectives that only move data.

#include <complex>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/communicator.h"
#include "dataplane/testing/backend_conformance.h"
#include "dataplane/testing/local_world.h"
#include "dataplane/testing/reference.h"
#include "gtest/gtest.h"

namespace muster::dataplane::testing {
namespace {

using Complex = std::complex<double>;

// All 8-bit patterns, including NaNs.
std::vector<uint8_t> AllPatterns() {
  std::vector<uint8_t> patterns(256);
  std::iota(patterns.begin(), patterns.end(), uint8_t{0});
  return patterns;
}

void MustSucceed(Communicator& communicator, Collective collective) {
  const auto work = communicator.Start(std::move(collective));
  const Status status = work->Wait();
  EXPECT_TRUE(status.ok()) << work->description() << ": " << status;
}

// The data that rank `from` has for rank `to`: no two elements are equal, if T
// has enough values.
template <typename T>
std::vector<T> Parcel(int world_size, int from, int to, size_t count) {
  return Inputs<T>(ReduceOp::kSum, world_size * world_size,
                   from * world_size + to, count);
}

template <typename T>
Collective::Tensors MakeTensors(std::vector<std::vector<T>>& lists) {
  Collective::Tensors tensors;
  for (std::vector<T>& list : lists) tensors.push_back(Tensor(list));
  return tensors;
}

// Lists filled with a value that no parcel begins with.
template <typename T>
std::vector<std::vector<T>> Blank(const std::vector<size_t>& counts) {
  std::vector<std::vector<T>> lists;
  lists.reserve(counts.size());
  for (const size_t count : counts) {
    lists.emplace_back(count, T(111));
  }
  return lists;
}

template <typename T>
std::vector<T> Joined(const std::vector<std::vector<T>>& lists) {
  std::vector<T> all;
  for (const auto& list : lists)
    all.insert(all.end(), list.begin(), list.end());
  return all;
}

TEST_P(BackendConformance, Float8TensorsMoveAsTheyAre) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  world.OnEachRank([&](Communicator& communicator) {
    const auto size = static_cast<size_t>(world_size());
    for (const DataType type : kFloat8Types) {
      std::vector<uint8_t> mine = AllPatterns();
      std::vector<uint8_t> all(256 * size, 7);
      MustSucceed(
          communicator,
          {.kind = CollectiveKind::kAllGatherIntoTensor,
           .inputs = {Tensor(mine.data(), type, {256})},
           .outputs = {Tensor(all.data(), type, {256 * world_size()})}});
      for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], i % 256);
      if (communicator.rank() != 0) mine.assign(256, 0);
      MustSucceed(communicator, {.kind = CollectiveKind::kBroadcast,
                                 .tensors = {Tensor(mine.data(), type, {256})},
                                 .root = 0});
      EXPECT_EQ(mine, AllPatterns());
    }
  });
}

TEST_P(BackendConformance, BroadcastCopiesEveryRootToEveryRank) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  std::vector<size_t> counts = kCounts;
  for (int root = 0; root < world_size(); ++root) {
    // The large count, which takes long, only for the second half of the roots.
    if (root == world_size() / 2) counts.push_back(kLargeCount);
    for (const size_t count : counts) {
      world.OnEachRank([&](Communicator& communicator) {
        std::vector<int32_t> values = Inputs<int32_t>(
            ReduceOp::kSum, world_size(), communicator.rank(), count);
        const auto work =
            communicator.Start({.kind = CollectiveKind::kBroadcast,
                                .tensors = {Tensor(values)},
                                .root = root});
        EXPECT_TRUE(work->Wait().ok()) << work->status();
        for (size_t i = 0; i < count; ++i) {
          const auto expected =
              InputElement<int32_t>(ReduceOp::kSum, world_size(), root, i);
          if (values[i] != expected) {
            ADD_FAILURE() << "root " << root << " count " << count << " rank "
                          << communicator.rank() << " element " << i << " is "
                          << values[i] << ", expected " << expected;
            break;
          }
        }
      });
    }
  }
}

TEST_P(BackendConformance, BroadcastTakesTypesThatCannotBeReduced) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  world.OnEachRank([&](Communicator& communicator) {
    std::vector<uint16_t> values(10, 0x3c00 + communicator.rank());
    const auto work = communicator.Start(
        {.kind = CollectiveKind::kBroadcast,
         .tensors = {Tensor(values.data(), DataType::kFloat16, {2, 5})}});
    EXPECT_TRUE(work->Wait().ok()) << work->status();
    EXPECT_EQ(values, std::vector<uint16_t>(10, 0x3c00));
  });
}

// Sizes of the ranks' tensors: none, equal, some empty, all different. Their
// sums are below and above the limits of round buffers and streams.
std::vector<std::vector<size_t>> SizesOfRanks(int world_size) {
  std::vector<std::vector<size_t>> cases;
  for (const size_t count : {0, 1, 13, 8193, 100'003}) {
    cases.emplace_back(world_size, count);
  }
  for (const size_t unit : {1, 100, 1200, 9001}) {
    std::vector<size_t> different;
    std::vector<size_t> some_empty;
    for (int rank = 0; rank < world_size; ++rank) {
      different.push_back(unit * (rank + 1) + rank % 2);
      some_empty.push_back(rank % 3 == 1 ? unit * 3 : 0);
    }
    cases.push_back(different);
    cases.push_back(some_empty);
  }
  if (world_size <= kLargePartRanksMax) {
    cases.emplace_back(world_size, kLargePart);
    // So that not all parts use the same path.
    cases.push_back(cases.back());
    cases.back()[world_size / 2] = 9001;
  }
  return cases;
}

template <typename T>
void CheckAllGather(LocalWorld& world, const std::vector<size_t>& counts) {
  const int world_size = world.world_size();
  SCOPED_TRACE(absl::StrCat("all_gather of ", counts[0], ",... ",
                            DataTypeName(kDataTypeOf<T>)));
  std::vector<std::vector<T>> expected;
  expected.reserve(counts.size());
  for (int rank = 0; rank < world_size; ++rank) {
    expected.push_back(Parcel<T>(world_size, rank, 0, counts[rank]));
  }
  world.OnEachRank([&](Communicator& communicator) {
    const int rank = communicator.rank();
    std::vector<T> input = expected[rank];
    std::vector<std::vector<T>> outputs = Blank<T>(counts);
    MustSucceed(communicator, {.kind = CollectiveKind::kAllGather,
                               .inputs = {Tensor(input)},
                               .outputs = MakeTensors(outputs)});
    EXPECT_TRUE(outputs == expected) << "rank " << rank;
    EXPECT_TRUE(input == expected[rank]);
    // The input is this rank's own part of the output.
    outputs = Blank<T>(counts);
    outputs[rank] = input;
    MustSucceed(communicator, {.kind = CollectiveKind::kAllGather,
                               .inputs = {Tensor(outputs[rank])},
                               .outputs = MakeTensors(outputs)});
    EXPECT_TRUE(outputs == expected) << "rank " << rank << " in place";
  });
}

TEST_P(BackendConformance, AllGatherGivesEveryRanksTensorOfAnySizeToAll) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  for (const auto& counts : SizesOfRanks(world_size())) {
    CheckAllGather<int32_t>(world, counts);
    CheckAllGather<uint8_t>(world, counts);
  }
  CheckAllGather<Complex>(world, std::vector<size_t>(world_size(), 9001));
}

TEST_P(BackendConformance, AllGatherIntoTensorPutsThemOneAfterTheOther) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  const int64_t ranks = world_size();
  std::vector<int64_t> counts = {0, 1, 13, 8193, 100'003};
  if (ranks <= kLargePartRanksMax) counts.push_back(kLargePart);
  for (const int64_t count : counts) {
    world.OnEachRank([&](Communicator& communicator) {
      std::vector<float> expected;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto part = Parcel<float>(world_size(), rank, 0, count * 2);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      auto input =
          Parcel<float>(world_size(), communicator.rank(), 0, count * 2);
      // Concatenated along dimension 0, stacked, flat.
      for (const std::vector<int64_t>& shape :
           {std::vector<int64_t>{ranks * count, 2},
            std::vector<int64_t>{ranks, count, 2},
            std::vector<int64_t>{ranks * count * 2}}) {
        std::vector<float> output(ranks * count * 2, 111);
        MustSucceed(communicator, {.kind = CollectiveKind::kAllGatherIntoTensor,
                                   .inputs = {Tensor(input.data(), {count, 2})},
                                   .outputs = {Tensor(output.data(), shape)}});
        EXPECT_TRUE(output == expected) << count;
      }
    });
  }
}

TEST_P(BackendConformance, GatherBringsAllToTheRootAlone) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  for (int root = 0; root < world_size(); ++root) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{13}, size_t{8192},
                               size_t{8193}, size_t{100'003}, kLargePart}) {
      if (count == kLargePart && world_size() > kLargePartRanksMax) continue;
      world.OnEachRank([&](Communicator& communicator) {
        const int rank = communicator.rank();
        auto input = Parcel<int32_t>(world_size(), rank, root, count);
        auto outputs = Blank<int32_t>(std::vector<size_t>(world_size(), count));
        Collective gather = {.kind = CollectiveKind::kGather,
                             .inputs = {Tensor(input)},
                             .root = root};
        if (rank == root) gather.outputs = MakeTensors(outputs);
        MustSucceed(communicator, gather);
        for (int from = 0; from < world_size() && rank == root; ++from) {
          EXPECT_TRUE(outputs[from] ==
                      Parcel<int32_t>(world_size(), from, root, count))
              << "root " << root << " from " << from << " count " << count;
        }
      });
    }
  }
}

TEST_P(BackendConformance, ScatterGivesEachRankItsPartOfTheRoots) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  for (int root = 0; root < world_size(); ++root) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{13}, size_t{8192},
                               size_t{8193}, size_t{100'003}, kLargePart}) {
      if (count == kLargePart && world_size() > kLargePartRanksMax) continue;
      world.OnEachRank([&](Communicator& communicator) {
        const int rank = communicator.rank();
        std::vector<std::vector<int32_t>> inputs;
        for (int to = 0; to < world_size() && rank == root; ++to) {
          inputs.push_back(Parcel<int32_t>(world_size(), root, to, count));
        }
        std::vector<int32_t> output(count, 111);
        MustSucceed(communicator, {.kind = CollectiveKind::kScatter,
                                   .inputs = MakeTensors(inputs),
                                   .outputs = {Tensor(output)},
                                   .root = root});
        EXPECT_TRUE(output == Parcel<int32_t>(world_size(), root, rank, count))
            << "root " << root << " to " << rank << " count " << count;
      });
    }
  }
}

// Elements from rank `from` for rank `to`: none, small and large; all
// different.
size_t ParcelCount(size_t unit, int from, int to) {
  return (from + 2 * to) % 4 == 3 ? 0 : unit * (from + 1) + to;
}

// The same count for each other rank; more for itself than fits into as many
// rounds.
size_t EvenParcelCount(size_t unit, int from, int to) {
  return from == to ? 3 * unit + 3 : unit;
}

// The same counts from rank 1; all different from the others.
size_t MixedParcelCount(size_t unit, int from, int to) {
  return from == 1 ? unit : unit * (from + 1) + to;
}

template <typename T>
void CheckAllToAll(LocalWorld& world, size_t unit,
                   size_t (*parcel_count)(size_t, int, int) = ParcelCount) {
  const int world_size = world.world_size();
  world.OnEachRank([&](Communicator& communicator) {
    const int rank = communicator.rank();
    std::vector<std::vector<T>> inputs;
    std::vector<std::vector<T>> expected;
    std::vector<size_t> counts;
    Collective single = {.kind = CollectiveKind::kAllToAllSingle};
    for (int peer = 0; peer < world_size; ++peer) {
      const size_t given = parcel_count(unit, rank, peer);
      counts.push_back(parcel_count(unit, peer, rank));
      inputs.push_back(Parcel<T>(world_size, rank, peer, given));
      expected.push_back(Parcel<T>(world_size, peer, rank, counts.back()));
      single.input_splits.push_back(static_cast<int64_t>(given));
      single.output_splits.push_back(static_cast<int64_t>(counts.back()));
    }
    std::vector<std::vector<T>> outputs = Blank<T>(counts);
    MustSucceed(communicator, {.kind = CollectiveKind::kAllToAll,
                               .inputs = MakeTensors(inputs),
                               .outputs = MakeTensors(outputs)});
    EXPECT_TRUE(outputs == expected) << "unit " << unit << " rank " << rank;

    std::vector<T> input = Joined(inputs);
    std::vector<T> output(Joined(expected).size(), T(111));
    single.inputs = {Tensor(input)};
    single.outputs = {Tensor(output)};
    MustSucceed(communicator, single);
    EXPECT_TRUE(output == Joined(expected)) << "unit " << unit;
  });
}

// As in c10d: the smaller tensor is this rank's own part of the larger one.
TEST_P(BackendConformance, TheOwnPartMayBeInItsPlace) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  const int root = world_size() - 1;
  for (const size_t count : {size_t{1}, size_t{8193}, size_t{100'003}}) {
    const std::vector<size_t> counts(world_size(), count);
    world.OnEachRank([&](Communicator& communicator) {
      const int rank = communicator.rank();
      std::vector<std::vector<int32_t>> expected;
      for (int from = 0; from < world_size(); ++from) {
        expected.push_back(Parcel<int32_t>(world_size(), from, 0, count));
      }
      auto blank = Blank<int32_t>(counts);
      blank[rank] = expected[rank];

      auto gathered = blank;
      Collective gather = {.kind = CollectiveKind::kGather,
                           .inputs = {Tensor(gathered[rank])},
                           .root = root};
      if (rank == root) gather.outputs = MakeTensors(gathered);
      MustSucceed(communicator, gather);
      EXPECT_TRUE(rank != root || gathered == expected) << count;

      auto scattered = rank == root ? expected : Blank<int32_t>(counts);
      Collective scatter = {.kind = CollectiveKind::kScatter,
                            .outputs = {Tensor(scattered[rank])},
                            .root = root};
      if (rank == root) scatter.inputs = MakeTensors(scattered);
      MustSucceed(communicator, scatter);
      EXPECT_TRUE(scattered[rank] == expected[rank]) << count;

      std::vector<int32_t> flat;
      std::vector<int32_t> all;
      for (int from = 0; from < world_size(); ++from) {
        flat.insert(flat.end(), blank[from].begin(), blank[from].end());
        all.insert(all.end(), expected[from].begin(), expected[from].end());
      }
      MustSucceed(communicator,
                  {.kind = CollectiveKind::kAllGatherIntoTensor,
                   .inputs = {Tensor(flat.data() + rank * count,
                                     {static_cast<int64_t>(count)})},
                   .outputs = {Tensor(flat)}});
      EXPECT_TRUE(flat == all) << count;

      std::vector<std::vector<int32_t>> give;
      std::vector<std::vector<int32_t>> received;
      for (int peer = 0; peer < world_size(); ++peer) {
        give.push_back(Parcel<int32_t>(world_size(), rank, peer, count));
        received.push_back(Parcel<int32_t>(world_size(), peer, rank, count));
      }
      auto taken = Blank<int32_t>(counts);
      taken[rank] = give[rank];
      Collective all_to_all = {.kind = CollectiveKind::kAllToAll,
                               .inputs = MakeTensors(give),
                               .outputs = MakeTensors(taken)};
      all_to_all.inputs[rank] = all_to_all.outputs[rank];
      MustSucceed(communicator, all_to_all);
      EXPECT_TRUE(taken == received) << count;
    });
  }
}

TEST_P(BackendConformance, AllToAllGivesEachPairItsOwnSize) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  for (const size_t unit : {0, 1, 500, 4000, 20'000}) {
    CheckAllToAll<int32_t>(world, unit);
    CheckAllToAll<uint8_t>(world, unit);
  }
  // Large enough for another path.
  if (world_size() <= kLargePartRanksMax) {
    CheckAllToAll<int32_t>(world, kLargePart / 2);
  }
  CheckAllToAll<Complex>(world, 600);
}

TEST_P(BackendConformance, AllToAllOfOneSizeFromOneOrEachRank) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  for (const size_t unit : {0, 1, 500, 40'000}) {
    CheckAllToAll<int32_t>(world, unit, EvenParcelCount);
    CheckAllToAll<int32_t>(world, unit, MixedParcelCount);
  }
  CheckAllToAll<Complex>(world, 1, EvenParcelCount);
  CheckAllToAll<uint8_t>(world, 1, MixedParcelCount);
}

TEST_P(BackendConformance, AllToAllSingleWithoutSplitsCutsEqualParts) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  const int64_t ranks = world_size();
  std::vector<int64_t> all_rows = {0, 1, 8192, 8193};
  if (ranks <= kLargePartRanksMax) all_rows.push_back(kLargePart / 3 + 1);
  for (const int64_t rows : all_rows) {
    world.OnEachRank([&](Communicator& communicator) {
      const int rank = communicator.rank();
      std::vector<int32_t> input;
      std::vector<int32_t> expected;
      for (int peer = 0; peer < ranks; ++peer) {
        const auto given = Parcel<int32_t>(world_size(), rank, peer, rows * 3);
        const auto taken = Parcel<int32_t>(world_size(), peer, rank, rows * 3);
        input.insert(input.end(), given.begin(), given.end());
        expected.insert(expected.end(), taken.begin(), taken.end());
      }
      std::vector<int32_t> output(input.size(), 111);
      // One rank passes splits that the others omit.
      Collective exchange = {
          .kind = CollectiveKind::kAllToAllSingle,
          .inputs = {Tensor(input.data(), {ranks * rows, 3})},
          .outputs = {Tensor(output.data(), {ranks * rows, 3})}};
      if (rank == 0) exchange.input_splits.assign(ranks, rows);
      MustSucceed(communicator, exchange);
      EXPECT_TRUE(output == expected) << rows;
    });
  }
}

}  // namespace
}  // namespace muster::dataplane::testing
