#include "dataplane/cpu/shm/selection.h"

#include "gtest/gtest.h"

namespace muster::dataplane::shm {
namespace {

Algorithm Select(CollectiveKind kind, Memory memory, size_t bytes,
                 Algorithm forced = Algorithm::kFastest) {
  return SelectAlgorithm(
      kind, {.memory = memory, .world_size = 4, .bytes = bytes}, forced);
}

TEST(SelectionTest, EveryCollectiveHasAnAlgorithmForEverySize) {
  for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
    for (const Memory memory : {Memory::kOrdinary, Memory::kSymmetric}) {
      for (const size_t bytes : {size_t{0}, size_t{4}, size_t{1} << 40}) {
        EXPECT_NE(Select(static_cast<CollectiveKind>(kind), memory, bytes),
                  Algorithm::kFastest);
      }
    }
  }
}

TEST(SelectionTest, SmallTensorsAreNotLookedForInSymmetricMemory) {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kBroadcast}) {
    EXPECT_NE(Select(kind, Memory::kSymmetric, 64), Algorithm::kSymmetric);
    EXPECT_EQ(Select(kind, Memory::kSymmetric, 1 << 20), Algorithm::kSymmetric);
    EXPECT_NE(Select(kind, Memory::kOrdinary, 1 << 20), Algorithm::kSymmetric);
  }
  EXPECT_EQ(Select(CollectiveKind::kAllReduce, Memory::kSymmetric, 8 << 10),
            Algorithm::kSymmetric);
}

Algorithm Select(CollectiveKind kind, int ranks, bool is_crowded,
                 size_t bytes) {
  return SelectAlgorithm(
      kind, {.world_size = ranks, .is_crowded = is_crowded, .bytes = bytes},
      Algorithm::kFastest);
}

TEST(SelectionTest, TheMoreRanksTheSoonerTheyShareTheWork) {
  const auto select = [](int ranks, size_t bytes) {
    return Select(CollectiveKind::kAllReduce, ranks, false, bytes);
  };
  EXPECT_EQ(select(4, 4 << 10), Algorithm::kOneRound);
  EXPECT_EQ(select(4, (4 << 10) + 1), Algorithm::kByParts);
  EXPECT_EQ(select(8, 1 << 10), Algorithm::kOneRound);
  EXPECT_EQ(select(8, (1 << 10) + 1), Algorithm::kByParts);
  EXPECT_EQ(select(16, 512), Algorithm::kOneRound);
  EXPECT_EQ(select(16, 513), Algorithm::kByParts);
}

TEST(SelectionTest, WhereOneRankWouldWriteMuchForManyTheyReadIt) {
  const auto select = [](int ranks, size_t bytes) {
    return Select(CollectiveKind::kScatter, ranks, false, bytes);
  };
  EXPECT_EQ(select(3, 1 << 20), Algorithm::kStaged);
  EXPECT_EQ(select(3, 2 << 20), Algorithm::kSingleCopy);
  EXPECT_EQ(select(16, 2 << 20), Algorithm::kSingleCopy);
  EXPECT_EQ(select(2, 64 << 20), Algorithm::kStaged);
}

TEST(SelectionTest, ACrowdTakesFewerRounds) {
  EXPECT_EQ(Select(CollectiveKind::kAllReduce, 4, false, 16 << 10),
            Algorithm::kByParts);
  EXPECT_EQ(Select(CollectiveKind::kAllReduce, 4, true, 16 << 10),
            Algorithm::kOneRound);
  EXPECT_EQ(Select(CollectiveKind::kAllReduce, 16, true, 16 << 10),
            Algorithm::kByParts);
  EXPECT_EQ(Select(CollectiveKind::kScatter, 16, false, 1 << 20),
            Algorithm::kStaged);
  EXPECT_EQ(Select(CollectiveKind::kScatter, 16, true, 1 << 20),
            Algorithm::kSingleCopy);
  EXPECT_EQ(Select(CollectiveKind::kScatter, 4, true, 1 << 20),
            Algorithm::kStaged);
  EXPECT_EQ(Select(CollectiveKind::kAllToAll, 16, true, 4 << 20),
            Algorithm::kSingleCopy);
  EXPECT_EQ(Select(CollectiveKind::kAllToAll, 8, true, 4 << 20),
            Algorithm::kStaged);
}

TEST(SelectionTest, WhatIsForcedGoesBeforeTheTableWhereThereIsSuchAWay) {
  const auto forced = [](CollectiveKind kind, Algorithm algorithm) {
    return Select(kind, Memory::kSymmetric, 1 << 20, algorithm);
  };
  EXPECT_EQ(forced(CollectiveKind::kAllReduce, Algorithm::kOneRound),
            Algorithm::kOneRound);
  EXPECT_EQ(forced(CollectiveKind::kBroadcast, Algorithm::kOneRound),
            Algorithm::kSymmetric);
  EXPECT_EQ(forced(CollectiveKind::kGather, Algorithm::kSingleCopy),
            Algorithm::kSingleCopy);
  EXPECT_EQ(forced(CollectiveKind::kBroadcast, Algorithm::kStaged),
            Algorithm::kStaged);
  EXPECT_EQ(forced(CollectiveKind::kAllReduce, Algorithm::kStaged),
            Algorithm::kByParts);
  // A forced algorithm applies only if it is possible.
  EXPECT_EQ(Select(CollectiveKind::kBroadcast, Memory::kOrdinary, 4,
                   Algorithm::kSymmetric),
            Algorithm::kStaged);
  EXPECT_EQ(Select(CollectiveKind::kBroadcast, Memory::kSymmetric, 4,
                   Algorithm::kSymmetric),
            Algorithm::kSymmetric);
}

TEST(SelectionTest, NamesAreFound) {
  for (const Algorithm algorithm :
       {Algorithm::kStaged, Algorithm::kOneRound, Algorithm::kByParts,
        Algorithm::kSingleCopy, Algorithm::kSymmetric}) {
    EXPECT_EQ(*FindAlgorithm(AlgorithmName(algorithm)), algorithm);
  }
  EXPECT_EQ(FindAlgorithm("ring").status(),
            InvalidArgumentError("no algorithm \"ring\"; there are: "
                                 "staged, one_round, by_parts, "
                                 "single_copy, symmetric"));
}

}  // namespace
}  // namespace muster::dataplane::shm
