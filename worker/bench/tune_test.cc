#include "worker/bench/tune.h"

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::worker::bench {
namespace {

TEST(TuneTest, RowsSayTheFastestOfEachSize) {
  EXPECT_EQ(TableRows(*FindOperation("all_reduce"), 4,
                      {{.bytes = 4, .algorithm = "ring", .time_us = 9},
                       {.bytes = 4, .algorithm = "doubling", .time_us = 3},
                       {.bytes = 1024, .algorithm = "doubling", .time_us = 3},
                       {.bytes = 1024, .algorithm = "pairwise", .time_us = 4},
                       {.bytes = 65536, .algorithm = "pairwise", .time_us = 5},
                       {.bytes = 1 << 20, .algorithm = "ring", .time_us = 5}}),
            "    {CollectiveKind::kAllReduce, 4, 1024, "
            "Algorithm::kDoubling},\n"
            "    {CollectiveKind::kAllReduce, 4, 65536, "
            "Algorithm::kPairwise},\n"
            "    {CollectiveKind::kAllReduce, 4, kAnyBytes, "
            "Algorithm::kRing},\n");
}

TEST(TuneTest, OnlySomeOperationsHaveSeveralAlgorithms) {
  EXPECT_THAT(AlgorithmsOf(*FindOperation("broadcast")),
              ::testing::ElementsAre("tree", "chain"));
  EXPECT_THAT(AlgorithmsOf(*FindOperation("barrier")), ::testing::IsEmpty());
}

TEST(TuneTest, FileWithoutFiguresIsAnError) {
  const std::string file = absl::StrCat(::testing::TempDir(), "/figures.json");
  std::ofstream(file) << "[{";
  EXPECT_EQ(ReadSamples(file).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster::worker::bench
