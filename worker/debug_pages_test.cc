#include "worker/debug_pages.h"

#include <glog/logging.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::worker {
namespace {

using ::testing::HasSubstr;

TEST(DebugPagesTest, TheEnvironmentHidesSecrets) {
  setenv("MUSTER_TEST_PLAIN", "a=b \"c\" \xff", 1);
  setenv("MUSTER_TOKEN", "grain", 1);
  setenv("AWS_SECRET_ACCESS_KEY", "grain", 1);
  setenv("db_password", "grain", 1);
  const std::string text = EnvironmentJson();
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["MUSTER_TEST_PLAIN"], "a=b \"c\" \xEF\xBF\xBD");
  EXPECT_EQ(json["MUSTER_TOKEN"], "(hidden)");
  EXPECT_EQ(text.find("grain"), std::string::npos);
}

TEST(DebugPagesTest, LogLevelsAreReadAndSet) {
  FLAGS_minloglevel = 0;
  FLAGS_v = 0;
  EXPECT_TRUE(SetLog("{\"v\": 2, \"minloglevel\": 1}").ok());
  EXPECT_EQ(FLAGS_v, 2);
  EXPECT_EQ(nlohmann::json::parse(LogJson()),
            nlohmann::json::parse("{\"minloglevel\": 1, \"v\": 2}"));
  EXPECT_TRUE(SetLog("{\"minloglevel\": 0}").ok());
  EXPECT_EQ(FLAGS_v, 2);
  FLAGS_v = 0;
}

TEST(DebugPagesTest, WrongLevelsChangeNothing) {
  for (const char* text : {"", "3", "{", "[1]"}) {
    EXPECT_THAT(std::string(SetLog(text).message()),
                HasSubstr("must be a JSON object"))
        << text;
  }
  EXPECT_EQ(SetLog("{\"v\": 1, \"level\": 1}").message(),
            "there is no \"level\", only \"minloglevel\" and \"v\"");
  EXPECT_EQ(SetLog("{\"v\": 10}").message(), "v must be 0 to 9, got 10");
  EXPECT_EQ(SetLog("{\"minloglevel\": -1}").message(),
            "minloglevel must be 0 to 3, got -1");
  EXPECT_EQ(SetLog("{\"v\": \"1\"}").message(), "v must be 0 to 9, got \"1\"");
  EXPECT_EQ(FLAGS_v, 0);
}

}  // namespace
}  // namespace muster::worker
