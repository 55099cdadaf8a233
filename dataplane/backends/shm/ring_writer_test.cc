#include "dataplane/backends/shm/ring_writer.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <vector>

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

TEST(RingWriterTest, CopiesAsMemcpy) {
  RingWriter writer;
  int past = 0;
  std::vector<unsigned char> from(kBytes + 64);
  std::iota(from.begin(), from.end(), 0);
  // Often enough that the other way is tried.
  for (size_t all = 0, turn = 0; all < 2 * kTerms.first; ++turn) {
    const size_t sizes[] = {0, 1, 4, 8, 4095, 4096, 4097, 50'001, kBytes};
    const size_t bytes = sizes[turn % std::size(sizes)];
    const size_t offset = turn % 61;
    std::vector<unsigned char> to(bytes + 128);
    writer.Copy(to.data() + offset, from.data() + turn % 7, bytes);
    ASSERT_TRUE(std::equal(to.begin() + offset, to.begin() + offset + bytes,
                           from.begin() + turn % 7));
    ASSERT_EQ(std::count(to.begin(), to.begin() + offset, 0), offset);
    ASSERT_EQ(std::count(to.begin() + offset + bytes, to.end(), 0),
              128 - offset);
    if (writer.timed_way() == RingWriter::kPastCaches) ++past;
    all += bytes;
  }
  EXPECT_EQ(past > 0, kWritesPastCaches);
}

}  // namespace
}  // namespace muster::dataplane::shm_internal
