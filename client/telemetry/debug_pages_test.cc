#include "client/telemetry/debug_pages.h"

#include <glog/logging.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::worker {
namespace {

using ::testing::HasSubstr;

TEST(DebugPagesTest, TheEnvironmentHidesWhatIsNotKnownToBeNoSecret) {
  setenv("MUSTER_TEST_PLAIN", "a=b \"c\" \xff", 1);
  setenv("MUSTER_TOKEN", "grain", 1);
  setenv("AWS_SECRET_ACCESS_KEY", "grain", 1);
  setenv("db_password", "grain", 1);
  setenv("DATABASE_URL", "postgres://me:grain@host", 1);
  setenv("http_proxy", "http://me:grain@host", 1);
  setenv("NCCL_SOME_TOKEN", "grain", 1);
  setenv("PATHS", "grain", 1);
  setenv("SLURM_JWT", "grain", 1);
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("WORLD_SIZE", "3", 1);
  const std::string text = EnvironmentJson();
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["MUSTER_TEST_PLAIN"], "a=b \"c\" \xEF\xBF\xBD");
  EXPECT_EQ(json["NCCL_DEBUG"], "INFO");
  EXPECT_EQ(json["WORLD_SIZE"], "3");
  for (const char* const name :
       {"MUSTER_TOKEN", "AWS_SECRET_ACCESS_KEY", "db_password", "DATABASE_URL",
        "http_proxy", "NCCL_SOME_TOKEN", "PATHS", "SLURM_JWT"}) {
    EXPECT_EQ(json[name], "(hidden)") << name;
  }
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
