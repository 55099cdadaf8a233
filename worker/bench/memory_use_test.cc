#include "worker/bench/memory_use.h"

#include "gtest/gtest.h"

namespace muster::worker::bench {
namespace {

TEST(MemoryUseTest, TheMostThatWasResidentAndWhatIsSharedAreRead) {
  const MemoryUse use = ParseMemoryUse(
      "Name:\tmuster-bench\n"
      "VmPeak:\t 1002468 kB\n"
      "VmHWM:\t   42224 kB\n"
      "VmRSS:\t   41000 kB\n"
      "RssFile:\t   20096 kB\n"
      "RssShmem:\t       8 kB\n");
  EXPECT_EQ(use.resident_max_bytes, 42224 * 1024);
  EXPECT_EQ(use.shared_bytes, 8 * 1024);
}

TEST(MemoryUseTest, WhatTheSystemDoesNotSayIsNotKnown) {
  // As in Linux before 4.5.
  const MemoryUse use = ParseMemoryUse("VmHWM:\t   42224 kB\nVmRSS:\t 4 kB\n");
  EXPECT_EQ(use.resident_max_bytes, 42224 * 1024);
  EXPECT_EQ(use.shared_bytes, -1);
  EXPECT_EQ(ParseMemoryUse("").resident_max_bytes, -1);
  EXPECT_EQ(ParseMemoryUse("VmHWM:\t many kB\n").resident_max_bytes, -1);
  EXPECT_EQ(ParseMemoryUse("VmHWM:\t 42 pages\n").resident_max_bytes, -1);
}

}  // namespace
}  // namespace muster::worker::bench
