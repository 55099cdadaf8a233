#include "worker/launcher/own_coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>

#include "client/control/endpoint.h"
#include "client/testing/processes.h"
#include "coordinator/server/auth/test_certificates.h"
#include "muster/base/status.h"
#include "muster/errors.h"
#include "muster/session.h"

namespace muster::worker {
namespace {

LaunchOptions At(const std::string& host, int port) {
  LaunchOptions options;
  options.rendezvous_host = host;
  options.rendezvous_port = port;
  options.rendezvous_id = "job";
  options.rendezvous_on_its_host = true;
  return options;
}

TEST(OwnCoordinatorTest, AHostIsKnownByItsNamesAndAddresses) {
  for (const char* const host : {"127.0.0.1", "localhost"}) {
    EXPECT_TRUE(IsThisHost(host)) << host;
  }
  EXPECT_TRUE(IsThisHost(internal::HostName()));
  // From the range reserved for documentation (RFC 5737).
  EXPECT_FALSE(IsThisHost("192.0.2.1"));
  EXPECT_FALSE(IsThisHost("no-such-host.invalid"));
}

TEST(OwnCoordinatorTest, TheFirstAtAnAddressOfItsHostServesThere) {
  Environment environment;
  CoordinatorAddress address;
  const auto any = ServeOwnCoordinator({}, address, environment);
  ASSERT_TRUE(any.ok()) << any.status();
  ASSERT_NE(*any, nullptr);
  const int taken = address.port;
  auto second =
      ServeOwnCoordinator(At("127.0.0.1", taken), address, environment);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*second, nullptr);
  EXPECT_EQ(address.HostPort(), "127.0.0.1:" + std::to_string(taken));

  second = ServeOwnCoordinator(At("192.0.2.1", 7070), address, environment);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*second, nullptr);
}

TEST(OwnCoordinatorTest, ATokenIsForAnotherCoordinator) {
  Environment environment = {{"MUSTER_TOKEN", "grain"}};
  CoordinatorAddress address;
  const auto served =
      ServeOwnCoordinator(At("127.0.0.1", 0), address, environment);
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(*served, nullptr);
  EXPECT_EQ(environment.count("MUSTER_TOKEN"), 1u);
}

// Whether a session with the coordinator at `address` can be made.
bool Answers(const CoordinatorAddress& address, SessionOptions options,
             std::chrono::seconds within) {
  options.address = address.HostPort();
  options.connect_timeout = within;
  try {
    Session::Connect(std::move(options));
    return true;
  } catch (const DistError&) {
    return false;
  }
}

TEST(OwnCoordinatorTest, WithACertificateOfItsOwnItSpeaksTls) {
  coordinator::TestAuthority authority("own");
  const coordinator::TestIdentity identity = authority.Issue("host");
  const Environment given = {{"MUSTER_TLS_CA", authority.ca()},
                             {"MUSTER_TLS_CERT", identity.cert},
                             {"MUSTER_TLS_KEY", identity.key}};
  const SessionOptions secure = {.tls_ca = authority.ca(),
                                 .tls_cert = identity.cert,
                                 .tls_key = identity.key};
  const muster::testing::ReservedPort first;
  const muster::testing::ReservedPort second;
  LaunchOptions on_node_0 = At("127.0.0.1", second.port());
  on_node_0.rendezvous_on_its_host = false;
  on_node_0.rendezvous_on_node_0 = true;
  on_node_0.node_rank = 0;
  for (const LaunchOptions& options :
       {At("127.0.0.1", first.port()), on_node_0}) {
    Environment environment = given;
    CoordinatorAddress address;
    const auto served = ServeOwnCoordinator(options, address, environment);
    ASSERT_TRUE(served.ok()) << served.status();
    ASSERT_NE(*served, nullptr);
    EXPECT_EQ(environment, given);
    EXPECT_TRUE(Answers(address, secure, std::chrono::seconds(60)));
    EXPECT_FALSE(
        Answers(address, {.tls_ca = authority.ca()}, std::chrono::seconds(1)));
  }
}

TEST(OwnCoordinatorTest, AnAuthorityAloneIsThatOfAnotherCoordinator) {
  Environment environment = {{"MUSTER_TLS_CA", "ca.pem"}};
  CoordinatorAddress address;
  const auto served =
      ServeOwnCoordinator(At("127.0.0.1", 0), address, environment);
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(*served, nullptr);
  EXPECT_EQ(environment.count("MUSTER_TLS_CA"), 1u);
}

TEST(OwnCoordinatorTest, AFileThatIsNotThereIsAnError) {
  Environment environment = {{"MUSTER_TLS_CA", "ca.pem"},
                             {"MUSTER_TLS_CERT", "/not/there.pem"},
                             {"MUSTER_TLS_KEY", "/not/there.key"}};
  CoordinatorAddress address;
  const auto served =
      ServeOwnCoordinator(At("127.0.0.1", 0), address, environment);
  EXPECT_TRUE(IsInvalidArgument(served.status())) << served.status();
  EXPECT_THAT(std::string(served.status().message()),
              ::testing::HasSubstr("/not/there"));
}

TEST(OwnCoordinatorTest, NodeRankZeroMustServe) {
  Environment environment = {{"MUSTER_TOKEN", "grain"}};
  CoordinatorAddress address;
  LaunchOptions options = At("127.0.0.1", 0);
  options.rendezvous_on_its_host = false;
  options.rendezvous_on_node_0 = true;
  options.node_rank = 1;
  const auto other = ServeOwnCoordinator(options, address, environment);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(*other, nullptr);
  EXPECT_EQ(environment.count("MUSTER_TOKEN"), 0u);
  options.node_rank = 0;
  const auto first = ServeOwnCoordinator({}, address, environment);
  ASSERT_TRUE(first.ok()) << first.status();
  options.rendezvous_port = address.port;
  options.nnodes = {2, 2};
  EXPECT_THAT(
      std::string(ServeOwnCoordinator(options, address, environment)
                      .status()
                      .message()),
      ::testing::HasSubstr("a muster-run that is number 0, too, may have"));
}

}  // namespace
}  // namespace muster::worker
