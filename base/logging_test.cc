#include "base/logging.h"

#include <cstdlib>

#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::base {
namespace {

using ::testing::ExitedWithCode;
using ::testing::MatchesRegex;

TEST(LogPrefixTest, TheTimeIsOfUtcAndSaysSo) {
  EXPECT_EQ(LogPrefix("WARNING", 1795792045, 1234, 4711, "server.cc", 288),
            "W 2026-11-27T15:07:25.001234Z 4711 server.cc:288]");
}

TEST(InitLoggingDeathTest, EveryLineBeginsWithIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        // 9.5 hours from UTC.
        setenv("TZ", "ZZZ-9:30", 1);
        FLAGS_logtostderr = true;
        InitLogging("test");
        LOG(ERROR) << "said";
        std::exit(0);
      },
      ExitedWithCode(0),
      MatchesRegex("E [0-9]+-[0-9]+-[0-9]+T[0-9:]+\\.[0-9]+Z [0-9]+ "
                   "logging_test.cc:[0-9]+\\] said\n"));
}

}  // namespace
}  // namespace muster::base
