#include "worker/bench/tune.h"

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::worker::bench {
namespace {

const TuneSetting kGloo = {.backend = "gloo", .ranks = 4, .processors = 2};
const TuneSetting kCrowded = {.backend = "shm", .ranks = 4, .processors = 2};

TEST(TuneTest, RowsSayTheFastestOfEachSize) {
  EXPECT_EQ(TableRows(*FindOperation("all_reduce"), kGloo,
                      {{.bytes = 4, .algorithm = "ring", .time_us = 9},
                       {.bytes = 4, .algorithm = "doubling", .time_us = 3},
                       {.bytes = 1024, .algorithm = "doubling", .time_us = 3},
                       {.bytes = 1024, .algorithm = "pairwise", .time_us = 4},
                       {.bytes = 65536, .algorithm = "pairwise", .time_us = 5},
                       {.bytes = 1 << 20, .algorithm = "ring", .time_us = 5}}),
            "all_reduce connections 4 any 4 1024 doubling\n"
            "all_reduce connections 4 any 32769 65536 pairwise\n"
            "all_reduce connections 4 any 65537 1048576 ring\n");
}

// The library refuses other rows.
TEST(TuneTest, SmallAllReducesOnConnectionsAreDoubling) {
  EXPECT_EQ(
      TableRows(*FindOperation("all_reduce"), kGloo,
                {{.bytes = 4, .algorithm = "ring", .time_us = 1},
                 {.bytes = 4, .algorithm = "doubling", .time_us = 3},
                 {.bytes = 32768, .algorithm = "pairwise", .time_us = 3},
                 {.bytes = 32768, .algorithm = "doubling", .time_us = 9},
                 {.bytes = 32769, .algorithm = "pairwise", .time_us = 3},
                 {.bytes = 32769, .algorithm = "doubling", .time_us = 9}}),
      "all_reduce connections 4 any 4 32768 doubling\n"
      "all_reduce connections 4 any 32769 32769 pairwise\n");
}

TEST(TuneTest, WhatIsHardlyFasterHasNoRow) {
  EXPECT_EQ(TableRows(*FindOperation("scatter"), kCrowded,
                      {{.bytes = 4, .algorithm = "staged", .time_us = 2},
                       {.bytes = 4, .algorithm = "single_copy", .time_us = 3},
                       {.bytes = 8, .algorithm = "staged", .time_us = 5.4},
                       {.bytes = 8, .algorithm = "single_copy", .time_us = 6},
                       {.bytes = 8, .algorithm = "single_copy", .time_us = 5},
                       {.bytes = 9, .algorithm = "staged", .time_us = 5.6},
                       {.bytes = 9, .algorithm = "single_copy", .time_us = 5}}),
            "scatter shared_memory 4 yes 4 8 staged\n"
            "scatter shared_memory 4 yes 9 9 single_copy\n");
}

TEST(TuneTest, RowsSayWhereTheTensorsAre) {
  EXPECT_EQ(
      TableRows(
          *FindOperation("all_to_all_single"),
          {.backend = "shm", .ranks = 4, .processors = 4, .is_symmetric = true},
          {{.bytes = 4, .algorithm = "symmetric", .time_us = 9}}),
      "all_to_all_single symmetric_memory 4 no 4 4 symmetric\n");
}

TEST(TuneTest, OnlySomeOperationsHaveSeveralAlgorithms) {
  const auto algorithms_of = [](const char* backend, const char* operation,
                                bool is_symmetric = false) {
    return FindTunable(backend)->algorithms_of(*FindOperation(operation),
                                               is_symmetric);
  };
  EXPECT_THAT(algorithms_of("gloo", "broadcast"),
              ::testing::ElementsAre("tree", "chain"));
  EXPECT_THAT(algorithms_of("gloo", "barrier"), ::testing::IsEmpty());
  EXPECT_THAT(algorithms_of("shm", "all_reduce"),
              ::testing::ElementsAre("one_round", "by_parts", "single_copy"));
  EXPECT_THAT(algorithms_of("shm", "gather", /*is_symmetric=*/true),
              ::testing::ElementsAre("staged", "symmetric"));
  EXPECT_THAT(algorithms_of("shm", "barrier"), ::testing::IsEmpty());
  EXPECT_EQ(FindTunable("nccl"), nullptr);
}

TEST(TuneTest, SamplesAreOfWhatRan) {
  const std::string file = absl::StrCat(::testing::TempDir(), "/samples.json");
  std::ofstream(file) << R"([
      {"bytes": 8, "backend": "gloo", "algorithm": "ring",
       "time_us": {"median": 2.5}},
      {"bytes": 8, "algorithm": "", "time_us": {"median": 1}}])";
  const auto samples = ReadSamples(file, "gloo");
  ASSERT_TRUE(samples.ok()) << samples.status();
  // The other row is a peer's.
  ASSERT_EQ(samples->size(), 1U);
  EXPECT_EQ((*samples)[0].bytes, 8);
  EXPECT_EQ((*samples)[0].algorithm, "ring");
  EXPECT_EQ((*samples)[0].time_us, 2.5);
  // As if ranks could not share memory.
  EXPECT_EQ(ReadSamples(file, "shm").status(),
            FailedPreconditionError("the group ran by gloo and not by "
                                    "shm: there is nothing to tune"));
}

TEST(TuneTest, FileWithoutFiguresIsAnError) {
  const std::string file = absl::StrCat(::testing::TempDir(), "/figures.json");
  std::ofstream(file) << "[{";
  EXPECT_EQ(ReadSamples(file, "gloo").status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster::worker::bench
