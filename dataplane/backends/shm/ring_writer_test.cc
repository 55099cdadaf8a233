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

using Way = WriteTrials::Way;

constexpr size_t kBytes = 128 << 10;

// A machine in which a MiB takes so long, the one way and the other.
struct Machine {
  int through_ns = 30'000;
  int past_ns = 50'000;
};

// Writes `bytes` in pieces, and returns how many went past the caches.
size_t WriteOn(WriteTrials& trials, const Machine& machine, size_t bytes) {
  size_t past = 0;
  for (size_t done = 0; done < bytes; done += kBytes) {
    const Way way = trials.Next(kBytes);
    const bool is_past = way == Way::kPastCaches;
    if (is_past) past += kBytes;
    trials.Took(way, kBytes,
                std::chrono::nanoseconds(is_past ? machine.past_ns
                                                 : machine.through_ns) *
                    kBytes / (1 << 20));
  }
  return past;
}

constexpr size_t kPeriods = 4;
constexpr size_t kManyBytes = kPeriods * WriteTrials::kPeriodBytes;

// Where processors share a cache, and where they do not.
constexpr Machine kNear = {.through_ns = 30'000, .past_ns = 50'000};
constexpr Machine kFar = {.through_ns = 400'000, .past_ns = 45'000};

TEST(WriteTrialsTest, TheFasterWayIsTaken) {
  WriteTrials near;
  EXPECT_EQ(WriteOn(near, kNear, kManyBytes), kPeriods * kBytes);
  WriteTrials far;
  const size_t through = kManyBytes - WriteOn(far, kFar, kManyBytes);
  EXPECT_LE(through, WriteTrials::kFirstBytes + kPeriods * kBytes);
}

TEST(WriteTrialsTest, PastTheCachesMustBeMuchFaster) {
  WriteTrials trials;
  EXPECT_EQ(
      WriteOn(trials, {.through_ns = 79'000, .past_ns = 40'000}, kManyBytes),
      kPeriods * kBytes);
  WriteOn(trials, {.through_ns = 81'000, .past_ns = 40'000}, kManyBytes);
  EXPECT_EQ(trials.way(), Way::kPastCaches);
}

TEST(WriteTrialsTest, WhatChangesIsFoundOut) {
  WriteTrials trials;
  WriteOn(trials, kNear, kManyBytes);
  // At once, when the past has been tried.
  WriteOn(trials, kFar, 2 * kBytes);
  EXPECT_EQ(trials.way(), Way::kPastCaches);
  WriteOn(trials, kNear, WriteTrials::kPeriodBytes + kBytes);
  EXPECT_EQ(trials.way(), Way::kThroughCaches);
}

// Another program had the processor meanwhile.
TEST(WriteTrialsTest, OneLongTimeChangesNothing) {
  WriteTrials trials;
  WriteOn(trials, kNear, kManyBytes);
  WriteOn(trials, {.through_ns = 9'000'000, .past_ns = 9'000'000}, kBytes);
  EXPECT_EQ(trials.way(), Way::kThroughCaches);
  WriteOn(trials, kNear, 8 * kBytes);
  EXPECT_EQ(trials.way(), Way::kThroughCaches);
}

TEST(RingWriterTest, CopiesAsMemcpy) {
  RingWriter writer;
  int past = 0;
  std::vector<unsigned char> from(kBytes + 64);
  std::iota(from.begin(), from.end(), 0);
  // Often enough that the other way is tried.
  for (size_t all = 0, turn = 0; all < 2 * WriteTrials::kFirstBytes; ++turn) {
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
    if (writer.timed_way() == Way::kPastCaches) ++past;
    all += bytes;
  }
  EXPECT_EQ(past > 0, kWritesPastCaches);
}

}  // namespace
}  // namespace muster::dataplane::shm_internal
