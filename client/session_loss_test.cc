// How a session detects the loss of its coordinator.

#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "client/testing/cutting_proxy.h"
#include "coordinator/server/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/session.h"

namespace muster {
namespace {

using coordinator::Server;
using muster::testing::CuttingProxy;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::StartsWith;

constexpr seconds kSoon(20);

std::unique_ptr<Server> StartServer() {
  coordinator::ServerOptions options;
  options.listen = "127.0.0.1:0";
  auto server = Server::Start(options);
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

class SessionLossTest : public ::testing::Test {
 protected:
  SessionOptions Options(int port) {
    SessionOptions options;
    options.address = "127.0.0.1:" + std::to_string(port);
    options.coordinator_note = "embedded in rank 0";
    options.connect_timeout = kSoon;
    options.give_up_after = milliseconds(200);
    options.on_over = [this](const Status& why) { over_.set_value(why); };
    return options;
  }

  Status AwaitOver() {
    auto over = over_.get_future();
    if (over.wait_for(kSoon) != std::future_status::ready) {
      ADD_FAILURE() << "the session lasts";
      return OkStatus();
    }
    return over.get();
  }

 private:
  std::promise<Status> over_;
};

TEST_F(SessionLossTest, GivesUpACoordinatorThatStaysAway) {
  auto server = StartServer();
  const auto session = Session::Connect(Options(server->port()));
  const std::string address = session->address();
  server.reset();
  const Status over = AwaitOver();
  EXPECT_EQ(over.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(over.message()),
              StartsWith("coordinator at " + address +
                         " (embedded in rank 0) is gone: connection refused"));
}

// Like a stopped process or a broken network: the port accepts connections, but
// never answers.
TEST_F(SessionLossTest, GivesUpASilentCoordinator) {
  const auto server = StartServer();
  CuttingProxy proxy(server->port());
  SessionOptions options = Options(proxy.port());
  options.silence_max = milliseconds(2'400);
  const auto session = Session::Connect(options);
  proxy.HoldAnswers(true);
  const Status over = AwaitOver();
  EXPECT_EQ(over.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(over.message()),
              StartsWith("coordinator at " + proxy.address() +
                         " (embedded in rank 0) is gone: no answer to the "
                         "connection attempt for "));
}

}  // namespace
}  // namespace muster
