#include "dataplane/cpu/collectives/selection.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace muster::dataplane::cpu {
namespace {

Algorithm SelectOn(CollectiveKind kind, int ranks, size_t bytes,
                   Algorithm forced = Algorithm::kFastest) {
  return SelectAlgorithm(kind, {.world_size = ranks, .bytes = bytes}, forced);
}

Algorithm SelectAllReduce(size_t bytes,
                          Algorithm forced = Algorithm::kFastest) {
  return SelectOn(CollectiveKind::kAllReduce, 4, bytes, forced);
}

TEST(ConnectionsSelectionTest, LargerTensorsTakeMoreSteps) {
  EXPECT_EQ(SelectAllReduce(0), Algorithm::kDoubling);
  EXPECT_EQ(SelectAllReduce(32 << 10), Algorithm::kDoubling);
  EXPECT_EQ(SelectAllReduce((32 << 10) + 1), Algorithm::kPairwise);
  EXPECT_EQ(SelectAllReduce(64 << 20), Algorithm::kRing);
  EXPECT_EQ(SelectOn(CollectiveKind::kBroadcast, 2, 4), Algorithm::kTree);
  EXPECT_EQ(SelectOn(CollectiveKind::kBroadcast, 64, 64 << 20),
            Algorithm::kChain);
}

TEST(ConnectionsSelectionTest, TheVariableGoesBeforeTheTableWhereItApplies) {
  EXPECT_EQ(SelectAllReduce(4, Algorithm::kRing), Algorithm::kRing);
  EXPECT_EQ(SelectAllReduce(64 << 20, Algorithm::kDoubling),
            Algorithm::kDoubling);
  // Another collective's algorithm.
  EXPECT_EQ(SelectAllReduce(4, Algorithm::kChain), Algorithm::kDoubling);
}

TEST(AlgorithmTest, NamesAreFound) {
  for (const Algorithm algorithm :
       {Algorithm::kDoubling, Algorithm::kPairwise, Algorithm::kRing,
        Algorithm::kTree, Algorithm::kChain}) {
    EXPECT_EQ(*FindAlgorithm(Medium::kConnections, AlgorithmName(algorithm)),
              algorithm);
  }
  for (const Algorithm algorithm :
       {Algorithm::kStaged, Algorithm::kOneRound, Algorithm::kByParts,
        Algorithm::kSingleCopy, Algorithm::kSymmetric}) {
    EXPECT_EQ(*FindAlgorithm(Medium::kSharedMemory, AlgorithmName(algorithm)),
              algorithm);
  }
  EXPECT_EQ(*FindAlgorithm(Medium::kSharedMemory, ""), Algorithm::kFastest);
  EXPECT_STREQ(AlgorithmName(Algorithm::kRing), "ring");
}

TEST(AlgorithmTest, AVariableThatNamesNoneIsRefused) {
  EXPECT_EQ(FindAlgorithm(Medium::kConnections, "staged").status(),
            InvalidArgumentError(
                "environment variable MUSTER_GLOO_ALGORITHM: no algorithm "
                "\"staged\"; there are: doubling, pairwise, ring, tree, "
                "chain"));
  EXPECT_EQ(FindAlgorithm(Medium::kSharedMemory, "ring").status(),
            InvalidArgumentError(
                "environment variable MUSTER_SHM_ALGORITHM: no algorithm "
                "\"ring\"; there are: staged, one_round, by_parts, "
                "single_copy, symmetric"));
}

Algorithm Select(CollectiveKind kind, Medium medium, size_t bytes,
                 Algorithm forced = Algorithm::kFastest) {
  return SelectAlgorithm(
      kind, {.medium = medium, .world_size = 4, .bytes = bytes}, forced);
}

TEST(SharedMemorySelectionTest, EveryCollectiveHasAnAlgorithmForEverySize) {
  for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
    for (const Medium medium :
         {Medium::kSharedMemory, Medium::kSymmetricMemory}) {
      for (const size_t bytes : {size_t{0}, size_t{4}, size_t{1} << 40}) {
        EXPECT_NE(Select(static_cast<CollectiveKind>(kind), medium, bytes),
                  Algorithm::kFastest);
      }
    }
  }
}

TEST(SharedMemorySelectionTest, SmallTensorsDoNotUseSymmetricMemory) {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kBroadcast}) {
    EXPECT_NE(Select(kind, Medium::kSymmetricMemory, 64),
              Algorithm::kSymmetric);
    EXPECT_EQ(Select(kind, Medium::kSymmetricMemory, 1 << 20),
              Algorithm::kSymmetric);
    EXPECT_NE(Select(kind, Medium::kSharedMemory, 1 << 20),
              Algorithm::kSymmetric);
  }
  EXPECT_EQ(
      Select(CollectiveKind::kAllReduce, Medium::kSymmetricMemory, 8 << 10),
      Algorithm::kSymmetric);
}

Algorithm Select(CollectiveKind kind, int ranks, bool is_crowded,
                 size_t bytes) {
  return SelectAlgorithm(kind, {.medium = Medium::kSharedMemory,
                                .world_size = ranks,
                                .is_crowded = is_crowded,
                                .bytes = bytes});
}

TEST(SharedMemorySelectionTest, TheMoreRanksTheSoonerTheyShareTheWork) {
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

TEST(SharedMemorySelectionTest, WhereOneRankWouldWriteMuchForManyTheyReadIt) {
  const auto select = [](int ranks, size_t bytes) {
    return Select(CollectiveKind::kScatter, ranks, false, bytes);
  };
  EXPECT_EQ(select(3, 1 << 20), Algorithm::kStaged);
  EXPECT_EQ(select(3, 2 << 20), Algorithm::kSingleCopy);
  EXPECT_EQ(select(16, 2 << 20), Algorithm::kSingleCopy);
  EXPECT_EQ(select(2, 64 << 20), Algorithm::kStaged);
}

TEST(SharedMemorySelectionTest, ManyRanksReadMuch) {
  constexpr size_t kMuch = 4 << 20;
  for (const CollectiveKind kind :
       {CollectiveKind::kReduceScatter, CollectiveKind::kReduceScatterTensor}) {
    EXPECT_EQ(Select(kind, 2, false, kMuch), Algorithm::kStaged);
    EXPECT_EQ(Select(kind, 3, false, kMuch), Algorithm::kSingleCopy);
    EXPECT_EQ(Select(kind, 3, true, kMuch), Algorithm::kStaged);
  }
  for (const CollectiveKind kind :
       {CollectiveKind::kAllGather, CollectiveKind::kAllGatherIntoTensor}) {
    EXPECT_EQ(Select(kind, 2, false, kMuch), Algorithm::kStaged);
    EXPECT_EQ(Select(kind, 4, false, kMuch), Algorithm::kSingleCopy);
    EXPECT_EQ(Select(kind, 8, false, kMuch), Algorithm::kStaged);
  }
  for (const CollectiveKind kind :
       {CollectiveKind::kAllToAll, CollectiveKind::kAllToAllSingle}) {
    EXPECT_EQ(Select(kind, 4, false, kMuch), Algorithm::kStaged);
    EXPECT_EQ(Select(kind, 8, false, kMuch), Algorithm::kSingleCopy);
  }
}

TEST(SharedMemorySelectionTest, FewRanksReadWhereReadsAreFast) {
  const auto select = [](CollectiveKind kind, int ranks, size_t bytes) {
    return SelectAlgorithm(kind, {.medium = Medium::kSharedMemory,
                                  .world_size = ranks,
                                  .reads_are_fast = true,
                                  .bytes = bytes});
  };
  EXPECT_EQ(select(CollectiveKind::kAllGather, 2, 128 << 10),
            Algorithm::kStaged);
  EXPECT_EQ(select(CollectiveKind::kAllGather, 2, 256 << 10),
            Algorithm::kSingleCopy);
  EXPECT_EQ(select(CollectiveKind::kAllToAllSingle, 4, 128 << 10),
            Algorithm::kStaged);
  EXPECT_EQ(select(CollectiveKind::kAllToAllSingle, 4, 256 << 10),
            Algorithm::kSingleCopy);
  EXPECT_EQ(select(CollectiveKind::kBroadcast, 2, 1 << 20), Algorithm::kStaged);
}

TEST(SharedMemorySelectionTest, ACrowdTakesFewerRounds) {
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

TEST(SharedMemorySelectionTest,
     AForcedAlgorithmGoesBeforeTheTableIfTheCollectiveHasIt) {
  const auto forced = [](CollectiveKind kind, Algorithm algorithm) {
    return Select(kind, Medium::kSymmetricMemory, 1 << 20, algorithm);
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
  EXPECT_EQ(Select(CollectiveKind::kBroadcast, Medium::kSharedMemory, 4,
                   Algorithm::kSymmetric),
            Algorithm::kStaged);
  EXPECT_EQ(Select(CollectiveKind::kBroadcast, Medium::kSymmetricMemory, 4,
                   Algorithm::kSymmetric),
            Algorithm::kSymmetric);
}

TEST(TuningTest, MeasuredRowsGoBeforeTheTableForTheirSizes) {
  const auto tuning = Tuning::Parse(
      "muster-tune 1\n"
      "# a remark\n"
      "all_reduce shared_memory 2 no 64 1024 by_parts\n"
      "broadcast connections 4 any 1048577 2097152 tree\n",
      "file");
  ASSERT_TRUE(tuning.ok()) << tuning.status();
  const auto select = [&](int ranks, size_t bytes,
                          Algorithm forced = Algorithm::kFastest) {
    return SelectAlgorithm(
        CollectiveKind::kAllReduce,
        {.medium = Medium::kSharedMemory, .world_size = ranks, .bytes = bytes},
        forced, &*tuning);
  };
  EXPECT_EQ(select(2, 63), Algorithm::kOneRound);
  EXPECT_EQ(select(2, 64), Algorithm::kByParts);
  EXPECT_EQ(select(2, 1024), Algorithm::kByParts);
  EXPECT_EQ(select(2, 1025), Algorithm::kOneRound);
  EXPECT_EQ(select(3, 64), Algorithm::kOneRound);
  EXPECT_EQ(select(2, 64, Algorithm::kOneRound), Algorithm::kOneRound);
  EXPECT_EQ(SelectAlgorithm(CollectiveKind::kBroadcast,
                            {.world_size = 4, .bytes = 2 << 20},
                            Algorithm::kFastest, &*tuning),
            Algorithm::kTree);
}

TEST(TuningTest, ADigestStandsForTheRows) {
  const auto digest = [](const char* rows) {
    return Tuning::Parse(rows, "file")->digest();
  };
  EXPECT_EQ(digest("muster-tune 1"), 0u);
  const char kRow[] = "muster-tune 1\nscatter shared_memory 2 no 1 2 staged";
  EXPECT_NE(digest(kRow), 0u);
  EXPECT_EQ(
      digest(kRow),
      digest("muster-tune 1\n#\nscatter shared_memory 2 no 1 2 staged\n"));
  EXPECT_NE(digest(kRow),
            digest("muster-tune 1\nscatter shared_memory 2 no 1 3 staged"));
}

TEST(TuningTest, AnErrorNamesTheFileAndTheLine) {
  const auto error = [](const std::string& text) {
    const Status status = Tuning::Parse(text, "my file").status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const std::string begin =
      "environment variable MUSTER_TUNE_FILE: \"my file\", line ";
  EXPECT_EQ(error("muster-tune 2\n"),
            begin +
                "1: must be \"muster-tune 1\" but is \"muster-tune 2\": "
                "muster-bench --tune writes the file");
  const auto row = [&](const std::string& line) {
    return error("muster-tune 1\n\n" + line);
  };
  EXPECT_EQ(row("all_reduce connections 4"),
            begin +
                "3: must have 7 fields (operation medium ranks crowded "
                "bytes_min bytes_max algorithm) but has 3");
  EXPECT_EQ(row("sum connections 4 any 1 2 ring"),
            begin + "3: no operation \"sum\"");
  EXPECT_EQ(row("all_reduce air 4 any 1 2 ring"),
            begin + "3: no medium \"air\"");
  EXPECT_EQ(row("all_reduce connections 0 any 1 2 ring"),
            begin + "3: no number of ranks \"0\"");
  EXPECT_EQ(row("all_reduce connections 4 some 1 2 ring"),
            begin + "3: no answer yes, no or any \"some\"");
  EXPECT_EQ(row("all_reduce connections 4 any x 2 ring"),
            begin + "3: no number of bytes \"x\"");
  EXPECT_EQ(row("all_reduce connections 4 any 3 2 ring"),
            begin + "3: no number of bytes from 3 on \"2\"");
  EXPECT_EQ(row("all_reduce connections 4 any 1 2 staged"),
            begin + "3: no algorithm of all_reduce in connections \"staged\"");
  EXPECT_EQ(
      row("broadcast shared_memory 4 any 1 2 symmetric"),
      begin + "3: no algorithm of broadcast in shared_memory \"symmetric\"");
}

TEST(TuningTest, SmallAllReducesKeepTheirBitsWhenCoalesced) {
  const auto parse = [](const char* row) {
    return Tuning::Parse(absl::StrCat("muster-tune 1\n", row), "file").status();
  };
  for (const char* const row : {"all_reduce connections 4 any 32768 65536 ring",
                                "all_reduce connections 4 any 0 4 pairwise"}) {
    EXPECT_EQ(parse(row),
              InvalidArgumentError(
                  "environment variable MUSTER_TUNE_FILE: \"file\", line 2: "
                  "all_reduce in connections of up to 32768 bytes must be "
                  "doubling: results must not depend on coalescing"));
  }
  for (const char* const row : {"all_reduce connections 4 any 32769 65536 ring",
                                "all_reduce connections 4 any 0 99 doubling",
                                "all_reduce shared_memory 4 any 0 99 by_parts",
                                "broadcast connections 4 any 0 99 chain"}) {
    EXPECT_EQ(parse(row), OkStatus()) << row;
  }
}

}  // namespace
}  // namespace muster::dataplane::cpu
