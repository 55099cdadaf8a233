#include "worker/launcher/log_runs.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace muster::worker {
namespace {

class LogRunsTest : public ::testing::Test {
 protected:
  LogRunsTest() : root_(::testing::TempDir() + "/logs.XXXXXX") {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
  }
  ~LogRunsTest() override { std::filesystem::remove_all(root_); }

  void Make(const std::string& folder) {
    std::filesystem::create_directories(root_ + "/" + folder);
  }
  int Free(int run, int attempt) {
    return FreeLogRun(root_, "job", run, attempt);
  }

  std::string root_;
};

TEST_F(LogRunsTest, TheFirstRunHasNoNumber) {
  EXPECT_EQ(LogRunFolder("logs", "job", 1), "logs/job");
  EXPECT_EQ(LogRunFolder("logs", "job", 2), "logs/job.2");
}

TEST_F(LogRunsTest, WhereNothingIsTheFirstIsFree) {
  EXPECT_EQ(Free(1, 0), 1);
  EXPECT_EQ(FreeLogRun("/not/there", "job", 1, 0), 1);
}

TEST_F(LogRunsTest, AnotherRunGetsTheNumberAfterTheLast) {
  Make("job/attempt_0");
  EXPECT_EQ(Free(1, 0), 2);
  // There may be a gap, because other hosts may have had the number.
  Make("job.4/attempt_0");
  EXPECT_EQ(Free(1, 0), 5);
  EXPECT_EQ(Free(7, 0), 7);
}

TEST_F(LogRunsTest, ARestartStaysWithItsRun) {
  Make("job/" + AttemptFolder(0));
  Make("job/" + AttemptFolder(9));
  Make("job.2/" + AttemptFolder(0));
  EXPECT_EQ(Free(2, 1), 2);
  // The earlier run used its number.
  EXPECT_EQ(Free(2, 0), 3);
}

TEST_F(LogRunsTest, WhatIsOfOtherJobsIsNone) {
  for (const char* const name :
       {"job7/attempt_0", "other/attempt_0", "job.x/attempt_0",
        "job.-3/attempt_0", "job/notes", "job/attempt_x"}) {
    Make(name);
  }
  EXPECT_EQ(Free(1, 0), 1);
}

}  // namespace
}  // namespace muster::worker
