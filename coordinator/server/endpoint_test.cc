#include "coordinator/server/endpoint.h"

#include <string>

#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

TEST(EndpointTest, KnowsLoopback) {
  for (const char* const host :
       {"127.0.0.1", "127.8.9.1", "::1", "localhost"}) {
    EXPECT_TRUE(IsLoopback(Endpoint{host, 1})) << host;
  }
  for (const char* const host :
       {"0.0.0.0", "::", "10.0.0.1", "example.org", "128.0.0.1"}) {
    EXPECT_FALSE(IsLoopback(Endpoint{host, 1})) << host;
  }
}

TEST(EndpointTest, AddressThatIsNotOursIsDiagnosed) {
  // No host has an address of TEST-NET-1.
  EXPECT_EQ(CheckCanListen(Endpoint{"192.0.2.1", 7070}).message(),
            "cannot listen on 192.0.2.1:7070: cannot assign requested address");
}

}  // namespace
}  // namespace muster::coordinator
