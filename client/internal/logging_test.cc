#include "client/internal/logging.h"

#include <cstdlib>

#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::internal {
namespace {

using ::testing::ExitedWithCode;
using ::testing::MatchesRegex;

// Each in a process of its own: a log is set up once.
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
      ExitedWithCode(0), MatchesRegex("W[^\n]*\\] first line\n"));
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

}  // namespace
}  // namespace muster::internal
