// Which pages a rank serves over HTTP, and to whom.

#include <httplib.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/muster.hpp"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// A group of one rank.
class DebugPagesTest : public ::testing::Test {
 protected:
  ~DebugPagesTest() override {
    if (IsInitialized()) DestroyProcessGroup();
    for (const char* name : {"MUSTER_HTTP_PORT", "MUSTER_HTTP_ADDRESS",
                             "MUSTER_TOKEN", "MUSTER_JOB_TOKEN"}) {
      unsetenv(name);
    }
  }

  // Serves on `address`.
  void Start(const std::string& address) {
    setenv("MUSTER_HTTP_PORT", "0", 1);
    setenv("MUSTER_HTTP_ADDRESS", address.c_str(), 1);
    InitProcessGroup(
        {.init_method =
             "file://" + ::testing::TempDir() + "/" +
             ::testing::UnitTest::GetInstance()->current_test_info()->name(),
         .world_size = 1,
         .rank = 0});
    const std::string found = GetDebugAddress();
    const size_t colon = found.rfind(':');
    host_ = found.substr(0, colon);
    client_ = std::make_unique<httplib::Client>(
        host_, std::stoi(found.substr(colon + 1)));
  }

  std::string host_;
  std::unique_ptr<httplib::Client> client_;
};

TEST_F(DebugPagesTest, TheNextGroupIsServedAtTheSameAddress) {
  Start("127.0.0.1");
  const std::string address = GetDebugAddress();
  DestroyProcessGroup();
  Start("127.0.0.1");
  EXPECT_EQ(GetDebugAddress(), address);
  EXPECT_EQ(client_->Get("/healthz")->body, "ok\n");
}

TEST_F(DebugPagesTest, GroupsRecorderAndLevel) {
  Start("127.0.0.1");
  std::vector<float> values(8, 1.0F);
  AllReduce(Tensor(values));
  const json groups = json::parse(client_->Get("/debug/groups")->body);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0]["last_completed"], groups[0]["last_enqueued"]);
  EXPECT_EQ(groups[0]["current"], "");
  const json recorder =
      json::parse(client_->Get("/debug/flight_recorder")->body);
  EXPECT_EQ(recorder["version"], "2.10");
  EXPECT_FALSE(recorder["entries"].empty());
  EXPECT_THAT(client_->Get("/debug/stacks")->body, HasSubstr("thread "));

  const DebugLevel before = GetDebugLevel();
  const auto set =
      client_->Post("/debug/level", "{\"debug_level\": \"DETAIL\"}", "");
  EXPECT_EQ(set->body, "{\"debug_level\": \"DETAIL\"}\n");
  EXPECT_EQ(GetDebugLevel(), DebugLevel::kDetail);
  for (const char* body : {"", "DETAIL", "{\"debug_level\": 3}", "[]"}) {
    EXPECT_EQ(client_->Post("/debug/level", body, "")->status, 400) << body;
  }
  SetDebugLevel(before);
}

TEST_F(DebugPagesTest, BeyondLoopbackTheyWantTheToken) {
  Start("0.0.0.0");
  // Not the "any" address, to which no client can connect.
  EXPECT_EQ(host_.find("0.0.0.0"), std::string::npos);
  const auto none = client_->Get("/debug/groups");
  ASSERT_TRUE(none);
  EXPECT_EQ(none->status, 403);
  EXPECT_THAT(none->body, HasSubstr("MUSTER_TOKEN"));
  setenv("MUSTER_TOKEN", "grain", 1);
  EXPECT_EQ(client_->Get("/debug/groups")->status, 401);
  for (const char* wrong :
       {"grain", "Bearer grai", "Bearer grainy", "Bearer ", "Basic grain"}) {
    EXPECT_EQ(client_->Get("/debug/groups", {{"Authorization", wrong}})->status,
              401)
        << wrong;
  }
  for (const char* right : {"Bearer grain", "bearer grain", "BEARER  grain"}) {
    EXPECT_EQ(client_->Get("/debug/groups", {{"Authorization", right}})->status,
              200)
        << right;
  }
  EXPECT_EQ(client_->Get("/metrics")->status, 200);
}

TEST_F(DebugPagesTest, BeyondLoopbackTheyWantTheJobsOwnTokenWhereThereIsOne) {
  Start("0.0.0.0");
  setenv("MUSTER_TOKEN", "grain", 1);
  setenv("MUSTER_JOB_TOKEN", "straw", 1);
  const auto status = [&](const char* header) {
    return client_->Get("/debug/groups", {{"Authorization", header}})->status;
  };
  EXPECT_EQ(status("Bearer grain"), 401);
  EXPECT_EQ(status("Bearer straw"), 200);
  unsetenv("MUSTER_TOKEN");
  EXPECT_EQ(status("Bearer straw"), 200);
}

}  // namespace
}  // namespace muster
