#include "coordinator/core/total_memory.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::coordinator::core {
namespace {

// Adds as much as is allowed, in small pieces.
int64_t Push(MemoryShare& job, int64_t piece = 1) {
  while (job.Check(piece).ok()) job.Add(piece);
  return job.held();
}

TEST(TotalMemoryTest, OneJobMayHaveHalf) {
  TotalMemory total(3200);
  MemoryShare job(&total);
  EXPECT_EQ(Push(job), 1600);
  job.Add(-10);
  EXPECT_TRUE(job.Check(10).ok());
  EXPECT_FALSE(job.Check(11).ok());
}

TEST(TotalMemoryTest, WhoKeepsWithinItsShareIsNotRefusedForAnother) {
  TotalMemory total(3200);
  MemoryShare hog(&total);
  Push(hog);
  std::vector<std::unique_ptr<MemoryShare>> others;
  for (int i = 0; i < 15; ++i) {
    others.push_back(std::make_unique<MemoryShare>(&total));
    EXPECT_EQ(Push(*others.back()), 100);
  }
  EXPECT_FALSE(hog.Check(1).ok());
  EXPECT_LE(total.held(), 3200);
}

TEST(TotalMemoryTest, HowManyJobsEverPushTheLimitHolds) {
  TotalMemory total(3200);
  std::vector<std::unique_ptr<MemoryShare>> jobs;
  for (int i = 0; i < 200; ++i) {
    jobs.push_back(std::make_unique<MemoryShare>(&total));
    Push(*jobs.back());
  }
  EXPECT_LT(total.share(), 100);
  EXPECT_LE(total.held(), 3200);
}

TEST(TotalMemoryTest, JobsThatHoldLittleTakeNoShareFromOthers) {
  TotalMemory total(3'200'000);
  MemoryShare hog(&total);
  Push(hog, 1000);
  MemoryShare job(&total);
  job.Add(60'000);
  std::vector<std::unique_ptr<MemoryShare>> many;
  for (int i = 0; i < 500; ++i) {
    many.push_back(std::make_unique<MemoryShare>(&total));
    many.back()->Add(300);
  }
  EXPECT_EQ(total.share(), 100'000);
  EXPECT_TRUE(job.Check(40'000).ok());
  // Each job takes a share when it holds more, and gives it back.
  for (auto& each : many) each->Add(1301);
  EXPECT_EQ(total.share(), 1'600'000 / 502);
  for (auto& each : many) each->Add(-1);
  EXPECT_EQ(total.share(), 100'000);
}

TEST(TotalMemoryTest, TheErrorSaysWhoseShareItIs) {
  TotalMemory total(3200);
  MemoryShare job(&total);
  job.Add(1500);
  EXPECT_EQ(job.Check(200, {"key", "k"}),
            ResourceExhaustedError(
                "limit total_bytes is 3200, offered 1700 (key \"k\") by a job "
                "that holds 1500, and whose share is 100" +
                LimitAdvice("total_bytes")));
}

TEST(TotalMemoryTest, AJobThatEndsGivesBackWhatItHeld) {
  TotalMemory total(3200);
  auto hog = std::make_unique<MemoryShare>(&total);
  Push(*hog);
  hog = nullptr;
  EXPECT_EQ(total.held(), 0);
  MemoryShare next(&total);
  EXPECT_EQ(Push(next), 1600);
}

TEST(TotalMemoryTest, WithoutATotalEverythingIsAllowed) {
  MemoryShare job(nullptr);
  EXPECT_TRUE(job.Check(int64_t{1} << 60).ok());
}

}  // namespace
}  // namespace muster::coordinator::core
