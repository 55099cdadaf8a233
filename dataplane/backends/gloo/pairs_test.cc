#include "dataplane/backends/gloo/pairs.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "dataplane/backends/gloo/greeter.h"
#include "dataplane/culprit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::gloo_internal {
namespace {

using ::testing::StartsWith;

// Greater than any that a pair listens at.
AddressBytes GreatestAddress() {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = 0xffffffff;
  address.sin_port = 0xffff;
  AddressBytes bytes(sizeof(sockaddr_storage));
  std::memcpy(bytes.data(), &address, sizeof(address));
  return bytes;
}

// The same, at a port at which nobody listens; and that is the least one.
AddressBytes WithoutPort(AddressBytes bytes) {
  sockaddr_in address = {};
  std::memcpy(&address, bytes.data(), sizeof(address));
  address.sin_port = 0;
  std::memcpy(bytes.data(), &address, sizeof(address));
  return bytes;
}

// A peer that asks for a pair and is gone when it shall be connected to. That
// is no fault of this process, and who wants the pair next has to be told so:
// he asks then why the peer has gone.
TEST(PairsTest, APeerThatWasGoneWhenItAskedIsUnavailable) {
  const Greeter greeter(0, 3);
  Pairs pairs(0, 3, greeter);
  ASSERT_TRUE(pairs.Start({.local_address = "127.0.0.1"}).ok());
  // Of a greater address this side waits for the other one.
  const AddressBytes own = pairs.Answer(1, GreatestAddress());
  ASSERT_FALSE(own.empty());
  EXPECT_TRUE(pairs.Answer(2, WithoutPort(own)).empty());
  const absl::Status opened = pairs.Open(2);
  EXPECT_EQ(opened.code(), absl::StatusCode::kUnavailable) << opened;
  EXPECT_THAT(std::string(opened.message()),
              StartsWith("cannot connect to rank 2: "));
  EXPECT_EQ(CulpritRank(opened), 2);
  pairs.Close();
}

}  // namespace
}  // namespace muster::dataplane::gloo_internal
