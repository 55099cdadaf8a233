#include "client/telemetry/telemetry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "muster/base/status.h"

namespace muster::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::unique_ptr<Telemetry> StartOrDie(const TelemetryOptions& options = {}) {
  auto telemetry = Telemetry::Start(options);
  EXPECT_TRUE(telemetry.ok()) << telemetry.status();
  return *std::move(telemetry);
}

int GetPort(const Telemetry& telemetry) {
  const std::string& address = telemetry.address();
  return std::stoi(address.substr(address.rfind(':') + 1));
}

TEST(TelemetryTest, ServesMetricsHealthAndLinksOnLoopback) {
  const auto telemetry = StartOrDie();
  EXPECT_THAT(telemetry->address(), StartsWith("127.0.0.1:"));
  httplib::Client client("127.0.0.1", GetPort(*telemetry));

  telemetry->collectives()
      .GetSeries("broadcast", "gloo")
      .Finished(8, std::chrono::milliseconds(1), StatusCode::kOk);
  const auto metrics = client.Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->status, 200);
  EXPECT_THAT(metrics->get_header_value("Content-Type"),
              StartsWith("text/plain; version=0.0.4"));
  EXPECT_THAT(metrics->body, HasSubstr("op=\"broadcast\""));

  const auto health = client.Get("/healthz");
  ASSERT_TRUE(health);
  EXPECT_EQ(health->status, 200);
  EXPECT_EQ(health->body, "ok\n");

  EXPECT_EQ(client.Get("/identity")->body,
            absl::StrCat("{\"rank\": -1, \"pid\": ", getpid(), "}\n"));
  telemetry->SetRank(3, 4);
  EXPECT_EQ(client.Get("/identity")->body,
            absl::StrCat("{\"rank\": 3, \"pid\": ", getpid(), "}\n"));

  const auto index = client.Get("/");
  ASSERT_TRUE(index);
  EXPECT_THAT(index->body, HasSubstr("href=\"/metrics\""));

  const auto unknown = client.Get("/debug/nothing");
  ASSERT_TRUE(unknown);
  EXPECT_EQ(unknown->status, 404);
}

TEST(TelemetryTest, DebugPagesAreReadAndSet) {
  int level = 0;
  TelemetryOptions options;
  options.debug_pages = {
      {"/debug/extra",
       base::RenderAs("text/plain", [&] { return absl::StrCat(level, "\n"); }),
       [&](const std::string& body) {
         level = static_cast<int>(body.size());
         return body == "bad" ? InvalidArgumentError("is bad") : OkStatus();
       }}};
  const auto telemetry = Telemetry::Start(options);
  ASSERT_TRUE(telemetry.ok()) << telemetry.status();
  httplib::Client client("127.0.0.1", GetPort(**telemetry));
  EXPECT_THAT(client.Get("/debug/stacks")->body, HasSubstr("thread "));
  EXPECT_THAT(client.Get("/debug/environment")->body, HasSubstr("\"PATH\""));
  EXPECT_THAT(client.Get("/debug/log")->body, HasSubstr("\"v\": 0"));
  EXPECT_THAT(client.Get("/")->body, HasSubstr("href=\"/debug/extra\""));
  EXPECT_EQ(client.Get("/debug/extra")->body, "0\n");
  EXPECT_EQ(client.Post("/debug/extra", "four", "text/plain")->body, "4\n");
  const auto refused = client.Post("/debug/extra", "bad", "text/plain");
  EXPECT_EQ(refused->status, 400);
  EXPECT_EQ(refused->body, "is bad\n");
  const auto wrong = client.Post("/metrics", "x", "text/plain");
  EXPECT_EQ(wrong->status, 405);
  EXPECT_EQ(wrong->get_header_value("Allow"), "GET, HEAD");
  EXPECT_EQ(wrong->body, "/metrics takes GET, HEAD, not POST\n");
  EXPECT_EQ(client.Put("/debug/log", "{}", "text/plain")->status, 405);
  EXPECT_EQ(client.Delete("/debug/extra")->get_header_value("Allow"),
            "GET, HEAD, POST");
  EXPECT_EQ(client.Post("/debug/nothing", "x", "text/plain")->status, 404);
  EXPECT_EQ(
      client.Post("/debug/log", std::string(5000, 'x'), "text/plain")->status,
      413);
  // A body without a length is not read.
  const auto endless =
      client.Post("/debug/log", {{"Transfer-Encoding", "chunked"}},
                  "2\r\n{}\r\n0\r\n\r\n", "text/plain");
  ASSERT_TRUE(endless);
  EXPECT_EQ(endless->status, 411);
}

TEST(TelemetryTest, WhoMayNotDebugStillSeesMetrics) {
  TelemetryOptions options;
  options.may_debug = [](const std::string& header) {
    if (header == "Bearer grain") return OkStatus();
    return header.empty() ? PermissionDeniedError("nobody may")
                          : UnauthenticatedError("not with that");
  };
  const auto telemetry = Telemetry::Start(options);
  ASSERT_TRUE(telemetry.ok()) << telemetry.status();
  httplib::Client client("127.0.0.1", GetPort(**telemetry));
  for (const char* page : {"/debug/stacks", "/debug/environment"}) {
    const auto denied = client.Get(page);
    EXPECT_EQ(denied->status, 403);
    EXPECT_EQ(denied->body, "nobody may\n");
    const auto wrong = client.Get(page, {{"Authorization", "Bearer chaff"}});
    EXPECT_EQ(wrong->status, 401);
    EXPECT_EQ(wrong->get_header_value("WWW-Authenticate"), "Bearer");
    EXPECT_EQ(client.Get(page, {{"Authorization", "Bearer grain"}})->status,
              200);
  }
  EXPECT_EQ(client.Post("/debug/log", "{}", "text/plain")->status, 403);
  EXPECT_EQ(client.Get("/metrics")->status, 200);
  EXPECT_EQ(client.Get("/healthz")->status, 200);
}

TEST(TelemetryTest, PortInUseIsAnErrorThatNamesIt) {
  const auto first = StartOrDie();
  const int port = GetPort(*first);
  const auto second = Telemetry::Start({.port = port});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(std::string(second.status().message()),
            absl::StrCat("cannot listen on 127.0.0.1:", port,
                         " for HTTP: Address already in use; pid ", getpid(),
                         ", in no group, has it (MUSTER_HTTP_ADDRESS, "
                         "MUSTER_HTTP_PORT; port 0 "
                         "takes any free one)"));
}

TEST(TelemetryTest, PortInUseIsAnErrorThatNamesTheRankWhichHasIt) {
  const auto first = StartOrDie();
  first->SetRank(3, 8);
  const auto second = Telemetry::Start({.port = GetPort(*first)});
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat("already in use; rank 3 (pid ", getpid(),
                                     ") has it (")));
}

// Requests that a page in a browser can make.
TEST(TelemetryTest, PagesOfStrangersReadAndChangeNothing) {
  const auto telemetry = StartOrDie();
  const int port = GetPort(*telemetry);
  httplib::Client client("127.0.0.1", port);
  const auto post = [&](const std::string& host, const std::string& origin) {
    httplib::Headers headers = {{"Host", host}};
    if (!origin.empty()) headers.emplace("Origin", origin);
    const auto answer = client.Post("/debug/log", headers, "{}", "text/plain");
    return answer ? answer->status : 0;
  };
  const std::string own = absl::StrCat("127.0.0.1:", port);
  EXPECT_EQ(post(own, ""), 200);
  EXPECT_EQ(post(own, "http://" + own), 200);
  EXPECT_EQ(post(own, "http://evil.example"), 403);
  EXPECT_EQ(post(own, "null"), 403);
  // A foreign name that points to this host.
  EXPECT_EQ(post("evil.example", "http://evil.example"), 403);
  EXPECT_EQ(post("evil.example", ""), 403);
  for (const char* host :
       {"localhost:80", "LOCALHOST", "[::1]:80", "127.1.2.3", ""}) {
    EXPECT_EQ(post(host, ""), 200) << host;
  }
  const httplib::Headers stranger = {{"Host", "127.0.0.1.evil.example"}};
  EXPECT_EQ(client.Get("/debug/environment", stranger)->status, 403);
  EXPECT_EQ(client.Get("/metrics", stranger)->status, 200);
}

TEST(TelemetryTest, PortIsFreeAgainAfterwards) {
  auto first = StartOrDie();
  const int port = GetPort(*first);
  first.reset();
  EXPECT_EQ(GetPort(*StartOrDie({.port = port})), port);
}

TEST(TelemetryTest, AddressThatIsNotOursIsAnError) {
  // From the range reserved for documentation (RFC 5737).
  const auto telemetry = Telemetry::Start({.address = "192.0.2.1"});
  ASSERT_FALSE(telemetry.ok());
  EXPECT_THAT(std::string(telemetry.status().message()),
              HasSubstr("192.0.2.1:0"));
}

TEST(TelemetryTest, PortOutOfRangeIsAnError) {
  const auto telemetry = Telemetry::Start({.port = 65536});
  EXPECT_EQ(telemetry.status().code(), StatusCode::kInvalidArgument);
}

class TelemetryEnvTest : public ::testing::Test {
 protected:
  void TearDown() override {
    unsetenv("MUSTER_HTTP_PORT");
    unsetenv("MUSTER_HTTP_ADDRESS");
  }
};

TEST_F(TelemetryEnvTest, NothingIsServedWithoutThePort) {
  setenv("MUSTER_HTTP_ADDRESS", "0.0.0.0", 1);
  const auto options = TelemetryOptionsFromEnv();
  ASSERT_TRUE(options.ok());
  EXPECT_FALSE(options->has_value());
}

TEST_F(TelemetryEnvTest, PortAndAddressAreRead) {
  setenv("MUSTER_HTTP_PORT", "7072", 1);
  setenv("MUSTER_HTTP_ADDRESS", "0.0.0.0", 1);
  const auto options = TelemetryOptionsFromEnv();
  ASSERT_TRUE(options.ok());
  EXPECT_EQ((*options)->port, 7072);
  EXPECT_EQ((*options)->address, "0.0.0.0");
}

TEST_F(TelemetryEnvTest, BadPortIsAnErrorThatNamesItsValue) {
  for (const char* value : {"http", "-1", "65536", "80x"}) {
    setenv("MUSTER_HTTP_PORT", value, 1);
    const auto options = TelemetryOptionsFromEnv();
    ASSERT_FALSE(options.ok()) << value;
    EXPECT_THAT(std::string(options.status().message()),
                HasSubstr(absl::StrCat("got \"", value, "\"")));
  }
}

}  // namespace
}  // namespace muster::worker
