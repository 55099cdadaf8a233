#include "client/control/relay_route.h"

#include <chrono>
#include <string>

#include "client/control/channel.h"
#include "client/control/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/session.h"

namespace muster::internal {
namespace {

using ::testing::HasSubstr;

StatusOr<RelayRoute> Take(const std::string& coordinator, const char* value) {
  return RelayRoute::Take(coordinator, [&](const char* name) {
    return std::string(name) == kRelayVariable ? value : nullptr;
  });
}

// The headers of the next connection, one per line.
std::string NextHeaders(auto&& route) {
  const Endpoint endpoint = *ParseEndpoint("127.0.0.1:7070");
  SessionOptions options;
  options.token = "t0k3n";
  const ChannelSecurity security = *ChannelSecurity::Take(
      options, [](const char*) -> const char* { return nullptr; });
  const Connection::Route next = route.Next(endpoint, *security.Load(endpoint),
                                            std::chrono::milliseconds(0), 0);
  EXPECT_NE(next.channel, nullptr);
  std::string text;
  for (const auto& [name, value] : next.headers) {
    text += name + ": " + value + "\n";
  }
  return text;
}

constexpr char kDirect[] = "authorization: Bearer t0k3n\n";
constexpr char kRelayed[] =
    "authorization: Bearer t0k3n\nmuster-coordinator: 127.0.0.1:7070\n";

TEST(RelayRouteTest, TheRelayIsUsedForItsCoordinatorOnly) {
  EXPECT_EQ(NextHeaders(*Take("127.0.0.1:7070", "127.0.0.1:7070@/tmp/r")),
            kRelayed);
  for (const char* const value : {static_cast<const char*>(nullptr), "",
                                  "127.0.0.1:7071@/tmp/r", "a:7070@/tmp/r"}) {
    EXPECT_EQ(NextHeaders(*Take("127.0.0.1:7070", value)), kDirect);
  }
  // One of several is enough.
  EXPECT_EQ(NextHeaders(*Take("10.0.0.1:7070,127.0.0.1:7070",
                              "127.0.0.1:7070,10.0.0.3:7070@/tmp/r")),
            kRelayed);
  EXPECT_EQ(NextHeaders(*Take("10.0.0.1:7070,10.0.0.2:7070",
                              "127.0.0.1:7070,10.0.0.3:7070@/tmp/r")),
            kDirect);
  // A folder may have the separator in its name.
  EXPECT_EQ(NextHeaders(*Take("127.0.0.1:7070", "127.0.0.1:7070@/t@p/r")),
            kRelayed);
}

TEST(RelayRouteTest, AnotherTextIsAnErrorThatNamesTheVariable) {
  for (const char* const value :
       {"/tmp/r", "127.0.0.1:7070", "127.0.0.1:7070@", "@/tmp/r", "host@/r"}) {
    const Status status = Take("127.0.0.1:7070", value).status();
    EXPECT_EQ(
        status,
        InvalidArgumentError(
            "environment variable MUSTER_HOST_RELAY must be HOST:PORT@PATH, "
            "as muster-run sets it, got \"" +
            std::string(value) + "\""));
  }
}

TEST(RelayRouteTest, AfterAFailureOfTheRelayOneConnectionIsDirect) {
  RelayRoute route = *Take("127.0.0.1:7070", "127.0.0.1:7070@/tmp/r");
  EXPECT_EQ(NextHeaders(route), kRelayed);
  Connection relayed(Connection::Route{
      NewUnixChannel("unix:/nowhere/relay", std::chrono::seconds(5)), {}});
  relayed.Start({});
  while (relayed.Poll(Instant::max()) != Connection::Event::kBroken) {
  }
  const Status why = route.Ended(relayed, relayed.Finish());
  EXPECT_EQ(why.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(why.message()),
              HasSubstr("the relay of muster-run failed: "));
  EXPECT_TRUE(route.failed());
  EXPECT_EQ(NextHeaders(route), kDirect);
  // The end of a direct connection is not the relay's.
  EXPECT_EQ(route.Ended(relayed, UnavailableError("gone")),
            UnavailableError("gone"));
  EXPECT_FALSE(route.failed());
  EXPECT_EQ(NextHeaders(route), kRelayed);
  // The session ends itself with this one.
  EXPECT_EQ(route.Ended(relayed, AbortedError("restarted")),
            AbortedError("restarted"));
  EXPECT_FALSE(route.failed());
}

TEST(RelayRouteTest, ThePathOfASocketIsEscapedForGrpc) {
  EXPECT_EQ(UnixTarget("/tmp/muster-run.a_b/relay"),
            "unix:/tmp/muster-run.a_b/relay");
  EXPECT_EQ(UnixTarget("/a b/%?"), "unix:/a%20b/%25%3F");
}

}  // namespace
}  // namespace muster::internal
