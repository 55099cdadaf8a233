#include "dataplane/backends/shm/way_trials.h"

#include <chrono>
#include <cstddef>
#include <vector>

#include "dataplane/backends/shm/ring_writer.h"
#include "gtest/gtest.h"

namespace muster::dataplane::shm_internal {
namespace {

using Way = WayTrials::Way;

constexpr WayTrials::Terms kTerms = RingWriter::kTerms;
constexpr size_t kBytes = 128 << 10;

// A machine in which a MiB takes so long, the one way and the other.
struct Machine {
  int through_ns = 30'000;
  int past_ns = 50'000;
};

// Writes `bytes` in pieces, and returns how many went past the caches.
size_t WriteOn(WayTrials& trials, const Machine& machine, size_t bytes) {
  size_t past = 0;
  for (size_t done = 0; done < bytes; done += kBytes) {
    const Way way = trials.Next(kBytes);
    const bool is_past = way == RingWriter::kPastCaches;
    if (is_past) past += kBytes;
    trials.Took(way, kBytes,
                std::chrono::nanoseconds(is_past ? machine.past_ns
                                                 : machine.through_ns) *
                    kBytes / (1 << 20));
  }
  return past;
}

constexpr size_t kPeriods = 4;
constexpr size_t kManyBytes = kPeriods * kTerms.period;

// Where processors share a cache, and where they do not.
constexpr Machine kNear = {.through_ns = 30'000, .past_ns = 50'000};
constexpr Machine kFar = {.through_ns = 400'000, .past_ns = 45'000};

TEST(WayTrialsTest, TheFasterWayIsTaken) {
  WayTrials near(kTerms);
  EXPECT_EQ(WriteOn(near, kNear, kManyBytes), kPeriods * kBytes);
  WayTrials far(kTerms);
  const size_t through = kManyBytes - WriteOn(far, kFar, kManyBytes);
  EXPECT_LE(through, kTerms.first + kPeriods * kBytes);
}

TEST(WayTrialsTest, PastTheCachesMustBeMuchFaster) {
  WayTrials trials(kTerms);
  EXPECT_EQ(
      WriteOn(trials, {.through_ns = 79'000, .past_ns = 40'000}, kManyBytes),
      kPeriods * kBytes);
  WriteOn(trials, {.through_ns = 81'000, .past_ns = 40'000}, kManyBytes);
  EXPECT_EQ(trials.way(), RingWriter::kPastCaches);
}

TEST(WayTrialsTest, WhatChangesIsFoundOut) {
  WayTrials trials(kTerms);
  WriteOn(trials, kNear, kManyBytes);
  // At once, when the past has been tried.
  WriteOn(trials, kFar, 2 * kBytes);
  EXPECT_EQ(trials.way(), RingWriter::kPastCaches);
  WriteOn(trials, kNear, kTerms.period + kBytes);
  EXPECT_EQ(trials.way(), RingWriter::kThroughCaches);
}

// Another program had the processor meanwhile.
TEST(WayTrialsTest, OneLongTimeChangesNothing) {
  WayTrials trials(kTerms);
  WriteOn(trials, kNear, kManyBytes);
  WriteOn(trials, {.through_ns = 9'000'000, .past_ns = 9'000'000}, kBytes);
  EXPECT_EQ(trials.way(), RingWriter::kThroughCaches);
  WriteOn(trials, kNear, 8 * kBytes);
  EXPECT_EQ(trials.way(), RingWriter::kThroughCaches);
}

// As if the first time that either way is gone again took long.
TEST(WayTrialsTest, ATrialOfSeveralGoesByTheLastOnes) {
  constexpr WayTrials::Terms kLong = {
      .first = 8, .period = 100, .length = 4, .slower_percent = 100};
  WayTrials trials(kLong);
  std::vector<bool> others;
  for (int i = 0; i < 120; ++i) {
    const Way way = trials.Next(1);
    others.push_back(way == Way::kOther);
    const bool is_first = i == 0 || others[i] != others[i - 1];
    trials.Took(way, 1,
                std::chrono::microseconds(is_first             ? 900
                                          : way == Way::kOther ? 50
                                                               : 100));
  }
  std::vector<bool> expected(120, true);
  // Seven before the trial; and a hundred later one of the usual way.
  for (int i = 0; i < 7; ++i) expected[i] = false;
  for (int i = 110; i < 114; ++i) expected[i] = false;
  EXPECT_EQ(others, expected);
}

// Another rank came so late.
TEST(WayTrialsTest, ALongWaitIsNoSmallNumber) {
  WayTrials trials({.first = 1, .period = 100, .slower_percent = 115});
  trials.Took(Way::kUsual, 1, std::chrono::milliseconds(1));
  trials.Took(Way::kOther, 1, std::chrono::hours(24));
  EXPECT_EQ(trials.way(), Way::kUsual);
}

}  // namespace
}  // namespace muster::dataplane::shm_internal
