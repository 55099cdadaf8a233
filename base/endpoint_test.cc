#include "base/endpoint.h"

#include <string>

#include "base/status.h"
#include "gtest/gtest.h"

namespace muster::base {
namespace {

std::string ErrorOf(absl::string_view text) {
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
  EXPECT_EQ(ErrorOf(""), "listen \"\": port number missing");
  EXPECT_EQ(ErrorOf("7070"), "listen \"7070\": port number missing");
  EXPECT_EQ(ErrorOf("host:"), "listen \"host:\": port number missing");
  EXPECT_EQ(ErrorOf("[::1]"), "listen \"[::1]\": port number missing");
  EXPECT_EQ(ErrorOf(":7070"), "listen \":7070\": host missing");
  EXPECT_EQ(ErrorOf("[]:7070"), "listen \"[]:7070\": host missing");
  EXPECT_EQ(ErrorOf("::1:7070"),
            "listen \"::1:7070\": an IPv6 host must stand in brackets");
  EXPECT_EQ(ErrorOf("[::1:7070"), "listen \"[::1:7070\": no closing ]");
  EXPECT_EQ(ErrorOf("http://h:1"),
            "listen \"http://h:1\": must be HOST:PORT, without a scheme");
  EXPECT_EQ(ErrorOf("h:7070 x"),
            "listen \"h:7070 x\": port must be a number but was \"7070 x\"");
  for (const char* const port : {"-1", "65536"}) {
    EXPECT_EQ(ErrorOf(std::string("h:") + port),
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
