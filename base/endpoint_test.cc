#include "base/endpoint.h"

#include <string>

#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::base {
namespace {

std::string GetError(absl::string_view text) {
  const StatusOr<Endpoint> endpoint = ParseEndpoint("listen", text);
  if (endpoint.ok()) return "";
  EXPECT_EQ(endpoint.status().code(), StatusCode::kInvalidArgument);
  return std::string(endpoint.status().message());
}

TEST(EndpointTest, ParsesAndPrintsTheSame) {
  for (const char* const text :
       {"127.0.0.1:7070", "[::1]:0", "localhost:65535", "node-1:1", "0.0.0.0:1",
        "[fe80::1%eth0]:7070"}) {
    const StatusOr<Endpoint> endpoint = ParseEndpoint("listen", text);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    EXPECT_EQ(endpoint->ToString(), text);
  }
  EXPECT_EQ(ParseEndpoint("listen", "[::1]:7070")->host, "::1");
}

TEST(EndpointTest, AnErrorNamesTheOptionAndTheCause) {
  EXPECT_EQ(GetError(""), "listen \"\": port number missing");
  EXPECT_EQ(GetError("7070"), "listen \"7070\": port number missing");
  EXPECT_EQ(GetError("host:"), "listen \"host:\": port number missing");
  EXPECT_EQ(GetError("[::1]"), "listen \"[::1]\": port number missing");
  EXPECT_EQ(GetError(":7070"), "listen \":7070\": host missing");
  EXPECT_EQ(GetError("[]:7070"), "listen \"[]:7070\": host missing");
  EXPECT_EQ(GetError("::1:7070"),
            "listen \"::1:7070\": an IPv6 host must stand in brackets");
  EXPECT_EQ(GetError("[::1:7070"), "listen \"[::1:7070\": no closing ]");
  EXPECT_EQ(GetError("http://h:1"),
            "listen \"http://h:1\": must be HOST:PORT, without a scheme");
  EXPECT_EQ(GetError("a:1,b:2"),
            "listen \"a:1,b:2\": must be one HOST:PORT, not a list");
  EXPECT_EQ(GetError("h:7070 x"),
            "listen \"h:7070 x\": port must be a number but was \"7070 x\"");
  for (const char* const port : {"-1", "65536"}) {
    EXPECT_EQ(GetError(std::string("h:") + port),
              std::string("listen \"h:") + port +
                  "\": port must have value from 0 to 65535 but was " + port +
                  ".");
  }
}

TEST(EndpointTest, KnowsLoopback) {
  for (const char* const address :
       {"127.0.0.1", "127.0.1.1", "127.8.9.1", "::1", "::1%lo"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* const address :
       {"0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "localhost"}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

}  // namespace
}  // namespace muster::base
