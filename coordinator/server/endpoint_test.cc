#include "coordinator/server/endpoint.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

std::string ErrorOf(const std::string& text) {
  const absl::StatusOr<Endpoint> endpoint = ParseEndpoint("listen", text);
  if (endpoint.ok()) return "";
  EXPECT_EQ(endpoint.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(endpoint.status().message());
}

TEST(EndpointTest, ParsesAndPrintsTheSame) {
  for (const char* const text : {"127.0.0.1:7070", "[::1]:0", "localhost:65535",
                                 "0.0.0.0:1", "[fe80::1%eth0]:7070"}) {
    const absl::StatusOr<Endpoint> endpoint = ParseEndpoint("listen", text);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    EXPECT_EQ(endpoint->ToString(), text);
  }
}

TEST(EndpointTest, MalformedTextsNameTheOptionAndTheCause) {
  EXPECT_EQ(ErrorOf("7070"), "listen \"7070\" is not host:port: no port");
  EXPECT_EQ(ErrorOf(""), "listen \"\" is not host:port: no port");
  EXPECT_EQ(ErrorOf(":7070"), "listen \":7070\" is not host:port: no host");
  EXPECT_EQ(ErrorOf("::1:7070"),
            "listen \"::1:7070\" is not host:port: an IPv6 host needs "
            "brackets");
  EXPECT_EQ(ErrorOf("[::1]"), "listen \"[::1]\" is not host:port: no port");
  EXPECT_EQ(ErrorOf("[::1:7070"),
            "listen \"[::1:7070\" is not host:port: no closing ]");
  for (const char* const port : {"", "x", "-1", "65536", "7070 x"}) {
    EXPECT_EQ(ErrorOf(std::string("host:") + port),
              std::string("listen \"host:") + port +
                  "\" is not host:port: the port must be 0 to 65535");
  }
}

TEST(EndpointTest, KnowsLoopback) {
  for (const char* const host :
       {"127.0.0.1", "127.8.9.1", "::1", "localhost"}) {
    EXPECT_TRUE((Endpoint{host, 1}).IsLoopback()) << host;
  }
  for (const char* const host :
       {"0.0.0.0", "::", "10.0.0.1", "example.org", "128.0.0.1"}) {
    EXPECT_FALSE((Endpoint{host, 1}).IsLoopback()) << host;
  }
}

TEST(EndpointTest, AddressThatIsNotOursIsDiagnosed) {
  // TEST-NET-1 is nobody's.
  EXPECT_EQ(CheckCanListen(Endpoint{"192.0.2.1", 7070}).message(),
            "cannot listen on 192.0.2.1:7070: cannot assign requested address");
}

}  // namespace
}  // namespace muster::coordinator
