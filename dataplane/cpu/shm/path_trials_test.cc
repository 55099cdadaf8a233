#include "dataplane/cpu/shm/path_trials.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "dataplane/cpu/shm/ring_writer.h"
#include "gtest/gtest.h"

namespace muster::dataplane::shm {
namespace {

using Path = PathTrials::Path;

constexpr PathTrials::Terms kTerms = RingWriter::kTerms;
constexpr size_t kBytes = 128 << 10;

// A machine, with the time that a MiB takes on each path.
struct Machine {
  int through_ns = 30'000;
  int past_ns = 50'000;
};

// Writes `bytes` in pieces. Returns the bytes that went past the caches.
size_t WriteOn(PathTrials& trials, const Machine& machine, size_t bytes) {
  size_t past = 0;
  for (size_t done = 0; done < bytes; done += kBytes) {
    const Path way = trials.Next(kBytes);
    const bool is_past = way == RingWriter::kPastCaches;
    if (is_past) past += kBytes;
    trials.Took(way, kBytes,
                std::chrono::nanoseconds(is_past ? machine.past_ns
                                                 : machine.through_ns) *
                    kBytes / (1 << 20));
  }
  return past;
}

// Trials after 4, 8, 16, 32 MiB, and three times 64.
constexpr size_t kTrials = 7;
constexpr size_t kManyBytes = 4 * kTerms.period;

// Processors that share a cache, and processors that do not.
constexpr Machine kNear = {.through_ns = 30'000, .past_ns = 50'000};
constexpr Machine kFar = {.through_ns = 400'000, .past_ns = 45'000};

TEST(PathTrialsTest, TheFasterWayIsTaken) {
  PathTrials near(kTerms);
  EXPECT_EQ(WriteOn(near, kNear, kManyBytes), kTrials * kBytes);
  PathTrials far(kTerms);
  const size_t through = kManyBytes - WriteOn(far, kFar, kManyBytes);
  EXPECT_LE(through, kTerms.first + kTrials * kBytes);
}

TEST(PathTrialsTest, WhatStartsWithTheOtherWayTriesTheUsualOneLater) {
  for (const Machine& machine : {kNear, kFar}) {
    PathTrials trials(kTerms);
    trials.StartWithOther();
    constexpr size_t kAtFirst = PathTrials::kLater * kTerms.first - kBytes;
    EXPECT_EQ(WriteOn(trials, machine, kAtFirst), kAtFirst);
    EXPECT_FALSE(trials.has_found());
    EXPECT_EQ(WriteOn(trials, machine, kBytes), 0);
    EXPECT_TRUE(trials.has_found());
    EXPECT_EQ(trials.way(), machine.past_ns < machine.through_ns
                                ? Path::kAlternative
                                : Path::kDefault);
  }
}

// The first collective has used the default path before its trials were asked.
TEST(PathTrialsTest, WhatStartsWithTheOtherWayKnowsTheUsualOneByItsTrialAlone) {
  PathTrials trials({.first = 8, .period = 800, .length = 8, .settling = 4});
  trials.StartWithOther();
  trials.Took(Path::kDefault, 1, std::chrono::milliseconds(9));
  for (size_t i = 0; i < PathTrials::kLater * 8 - 1; ++i) {
    EXPECT_EQ(trials.Next(1), Path::kAlternative);
    trials.Took(Path::kAlternative, 1, std::chrono::milliseconds(2));
  }
  EXPECT_FALSE(trials.has_found());
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(trials.Next(1), Path::kDefault);
    trials.Took(Path::kDefault, 1, std::chrono::milliseconds(1));
  }
  EXPECT_EQ(trials.way(), Path::kDefault);
}

// Writes so many bytes in a size class.
void Write(TrialsBySize& trials, size_t size_class, const Machine& machine,
           size_t bytes) {
  WriteOn(trials.Of(size_class), machine, bytes);
}

TEST(TrialsBySizeTest, WhatBeginsGoesAsTheNextSmallerOneThatHasFoundOut) {
  TrialsBySize trials(kTerms, 5);
  EXPECT_EQ(trials.Of(3).way(), Path::kDefault);
  Write(trials, 1, kFar, 2 * kTerms.first);
  Write(trials, 0, kNear, 2 * kTerms.first);
  // This class has found no path, so it does not count.
  Write(trials, 2, kNear, kBytes);
  EXPECT_EQ(trials.Of(2).way(), Path::kAlternative);
  EXPECT_FALSE(trials.Of(2).has_found());
  EXPECT_EQ(trials.Of(4).way(), Path::kAlternative);
  // This class had already begun.
  EXPECT_EQ(trials.Of(3).way(), Path::kDefault);
}

TEST(TrialsBySizeTest, LargerOnesAreNotAsked) {
  TrialsBySize trials(kTerms, 2);
  Write(trials, 1, kFar, 2 * kTerms.first);
  EXPECT_EQ(trials.Of(1).way(), Path::kAlternative);
  EXPECT_EQ(trials.Of(0).way(), Path::kDefault);
}

TEST(PathTrialsTest, PastTheCachesMustBeMuchFaster) {
  PathTrials trials(kTerms);
  EXPECT_EQ(
      WriteOn(trials, {.through_ns = 79'000, .past_ns = 40'000}, kManyBytes),
      kTrials * kBytes);
  WriteOn(trials, {.through_ns = 81'000, .past_ns = 40'000}, kManyBytes);
  EXPECT_EQ(trials.way(), RingWriter::kPastCaches);
}

TEST(PathTrialsTest, WhatChangesIsFoundOut) {
  PathTrials trials(kTerms);
  WriteOn(trials, kNear, kManyBytes);
  // The change needs kTerms.remembered slow times: fewer may be due to lines in
  // other caches.
  WriteOn(trials, kFar, (kTerms.remembered - 1) * kBytes);
  EXPECT_EQ(trials.way(), RingWriter::kThroughCaches);
  WriteOn(trials, kFar, kBytes);
  EXPECT_EQ(trials.way(), RingWriter::kPastCaches);
  WriteOn(trials, kNear, kTerms.period + kBytes);
  EXPECT_EQ(trials.way(), RingWriter::kThroughCaches);
}

// Another program had the processor during one copy.
TEST(PathTrialsTest, OneLongTimeChangesNothing) {
  PathTrials trials(kTerms);
  WriteOn(trials, kNear, kManyBytes);
  WriteOn(trials, {.through_ns = 9'000'000, .past_ns = 9'000'000}, kBytes);
  EXPECT_EQ(trials.way(), RingWriter::kThroughCaches);
  WriteOn(trials, kNear, 8 * kBytes);
  EXPECT_EQ(trials.way(), RingWriter::kThroughCaches);
}

// The first times after a change find the caches as the other path has left
// them.
TEST(PathTrialsTest, ATrialOfSeveralGoesByThoseThatHaveSettled) {
  constexpr int kUnsettled = 3;
  constexpr PathTrials::Terms kLong = {.first = 8,
                                       .period = 100,
                                       .length = 4,
                                       .settling = kUnsettled,
                                       .remembered = 1,
                                       .slower_percent = 100};
  constexpr int kTimes = 240;
  PathTrials trials(kLong);
  std::vector<bool> others;
  int since_change = kUnsettled;
  for (int i = 0; i < kTimes; ++i) {
    const Path way = trials.Next(1);
    others.push_back(way == Path::kAlternative);
    if (i > 0 && others[i] != others[i - 1]) since_change = 0;
    trials.Took(way, 1,
                std::chrono::microseconds(since_change < kUnsettled   ? 900
                                          : way == Path::kAlternative ? 50
                                                                      : 100));
    ++since_change;
  }
  // Seven times before the first trial. Then trials of the default: 16, 32, 64
  // times later, and then every 100.
  std::vector<bool> expected(kTimes, true);
  std::fill_n(expected.begin(), 7, false);
  for (const int trial : {26, 61, 128, 231}) {
    std::fill_n(expected.begin() + trial, 4, false);
  }
  EXPECT_EQ(others, expected);
}

// Another program had the processor for long.
TEST(PathTrialsTest, AWayThatIsLeftIsTriedSoon) {
  constexpr PathTrials::Terms kSeldom = {.first = 8, .period = 1000};
  PathTrials trials(kSeldom);
  const auto run = [&](int times, int us_of_other) {
    for (int i = 0; i < times; ++i) {
      const Path way = trials.Next(1);
      trials.Took(way, 1,
                  std::chrono::microseconds(
                      way == Path::kAlternative ? us_of_other : 100));
    }
  };
  run(5000, 50);
  ASSERT_EQ(trials.way(), Path::kAlternative);
  run(kSeldom.remembered, 300);
  ASSERT_EQ(trials.way(), Path::kDefault);
  run(static_cast<int>(kSeldom.first), 50);
  EXPECT_EQ(trials.way(), Path::kAlternative);
  // Not if this happens repeatedly.
  run(kSeldom.remembered, 300);
  run(static_cast<int>(kSeldom.first), 50);
  EXPECT_EQ(trials.way(), Path::kDefault);
  run(static_cast<int>(kSeldom.period), 50);
  EXPECT_EQ(trials.way(), Path::kAlternative);
}

// Most of the times include other programs' work.
TEST(PathTrialsTest, TheLeastOfThoseRememberedCounts) {
  PathTrials trials({.first = 1, .period = 100, .remembered = 3});
  const auto took = [&](Path way, int us) {
    trials.Took(way, 1, std::chrono::microseconds(us));
  };
  took(Path::kDefault, 100);
  for (const int us : {90, 300, 300}) took(Path::kAlternative, us);
  EXPECT_EQ(trials.way(), Path::kAlternative);
  took(Path::kAlternative, 300);
  EXPECT_EQ(trials.way(), Path::kDefault);
}

// Another rank came late by a day.
TEST(PathTrialsTest, ALongWaitIsNoSmallNumber) {
  PathTrials trials({.first = 1, .period = 100, .slower_percent = 115});
  trials.Took(Path::kDefault, 1, std::chrono::milliseconds(1));
  trials.Took(Path::kAlternative, 1, std::chrono::hours(24));
  EXPECT_EQ(trials.way(), Path::kDefault);
}

}  // namespace
}  // namespace muster::dataplane::shm
