#include "client/control/logging.h"

#include <cstdlib>

#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::internal {
namespace {

using ::testing::ExitedWithCode;
using ::testing::MatchesRegex;

// Each test has its own process: a log is set up only once.
class LoggingDeathTest : public ::testing::Test {
 protected:
  LoggingDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(LoggingDeathTest, TheFirstLineOnStandardErrorIsTheProgramsOwn) {
  EXPECT_EXIT(
      {
        EnsureLogging();
        EnsureLogging();
        LOG(WARNING) << "first line";
        std::exit(0);
      },
      ExitedWithCode(0), MatchesRegex("W [^ ]*Z [^\n]*\\] first line\n"));
}

TEST_F(LoggingDeathTest, AProgramsOwnSettingsStay) {
  EXPECT_EXIT(
      {
        FLAGS_logtostderr = false;
        google::InitGoogleLogging("own");
        EnsureLogging();
        std::exit(FLAGS_logtostderr ? 1 : 0);
      },
      ExitedWithCode(0), "");
}

struct Level {
  const char* cpp;    // TORCH_CPP_LOG_LEVEL
  const char* debug;  // TORCH_DISTRIBUTED_DEBUG
  int minloglevel;
  int v;
};

class LoggingLevelDeathTest : public LoggingDeathTest,
                              public ::testing::WithParamInterface<Level> {};

// As c10d documents the two variables.
TEST_P(LoggingLevelDeathTest, TheVariablesSayWhatIsLogged) {
  const Level& level = GetParam();
  EXPECT_EXIT(
      {
        unsetenv("GLOG_minloglevel");
        setenv("TORCH_CPP_LOG_LEVEL", level.cpp, 1);
        setenv("TORCH_DISTRIBUTED_DEBUG", level.debug, 1);
        EnsureLogging();
        std::exit(FLAGS_minloglevel == level.minloglevel && FLAGS_v == level.v
                      ? 0
                      : 1);
      },
      ExitedWithCode(0), "");
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, LoggingLevelDeathTest,
    ::testing::Values(Level{"", "DETAIL", 1, 0}, Level{"ERROR", "DETAIL", 2, 0},
                      Level{"warning", "INFO", 1, 0}, Level{"INFO", "", 0, 0},
                      Level{"INFO", "OFF", 0, 0}, Level{"info", "info", 0, 1},
                      Level{"0", "DETAIL", 0, 2}, Level{"3", "", 3, 0}));

TEST_F(LoggingDeathTest, GlogsOwnVariableGoesBefore) {
  EXPECT_EXIT(
      {
        setenv("GLOG_minloglevel", "2", 1);
        FLAGS_minloglevel = 2;
        setenv("TORCH_CPP_LOG_LEVEL", "INFO", 1);
        EnsureLogging();
        std::exit(FLAGS_minloglevel == 2 ? 0 : 1);
      },
      ExitedWithCode(0), "");
}

TEST_F(LoggingDeathTest, ALevelThatThereIsNotIsTold) {
  EXPECT_EXIT(
      {
        unsetenv("GLOG_minloglevel");
        setenv("TORCH_CPP_LOG_LEVEL", "loud", 1);
        EnsureLogging();
        std::exit(FLAGS_minloglevel == 1 ? 0 : 1);
      },
      ExitedWithCode(0),
      "TORCH_CPP_LOG_LEVEL must be INFO, WARNING, ERROR or FATAL, or 0 to 3, "
      "but was \"LOUD\"; it is WARNING");
}

}  // namespace
}  // namespace muster::internal
