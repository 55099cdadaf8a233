#include "client/stores/bootstrap.h"

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/deadline.h"
#include "coordinator/server/server.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/session.h"

namespace muster::internal {
namespace {

using std::chrono::minutes;

class BootstrapTest : public ::testing::Test {
 protected:
  BootstrapTest() {
    coordinator::ServerOptions options;
    options.listen = "127.0.0.1:0";
    auto server = coordinator::Server::Start(options);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    store_ = std::make_unique<SessionBootstrap>(
        Session::Connect(
            {.address = absl::StrCat("127.0.0.1:", server_->port()),
             .job = "j"}),
        "group/", [this](bool) {
          if (++polls_ == 1) begun_.set_value();
          return OkStatus();
        });
  }

  // Waits for a key for ten minutes.
  std::future<StatusOr<std::vector<std::string>>> BeginToWait() {
    auto waiting = std::async(std::launch::async, [this] {
      return store_->Get({"address"}, Clock::now() + minutes(10));
    });
    begun_.get_future().wait();
    return waiting;
  }

  std::unique_ptr<coordinator::Server> server_;
  std::unique_ptr<SessionBootstrap> store_;
  int polls_ = 0;
  std::promise<void> begun_;
};

TEST_F(BootstrapTest, AnInterruptionWakesWhoWaits) {
  auto waiting = BeginToWait();
  const Status why = AbortedError("rank 1 is lost");
  store_->interruption().Interrupt(why);
  EXPECT_EQ(waiting.get().status(), why);
  EXPECT_EQ(store_->Get({"address"}, Clock::now() + minutes(10)).status(), why);
}

TEST_F(BootstrapTest, WhoHasLeftInPeaceMayHaveSetTheKey) {
  auto waiting = BeginToWait();
  store_->interruption().Interrupt(CancelledError("rank 1 has left"));
  ASSERT_TRUE(store_->Set("address", "here").ok());
  const auto values = waiting.get();
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(values->front(), "here");
}

}  // namespace
}  // namespace muster::internal
