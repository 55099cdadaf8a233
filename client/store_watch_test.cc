// Features that only the coordinator's store has: lifetimes of keys, watches,
// and calls that resume after a reconnection; without and with a prefix.

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/testing/cutting_proxy.h"
#include "coordinator/server/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"
#include "muster/session.h"
#include "muster/store.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kLong{20};

std::shared_ptr<Session> Connect(const std::string& address) {
  SessionOptions options;
  options.address = address;
  return Session::Connect(std::move(options));
}

// Returns `put k=v`.
std::string Text(const std::optional<KeyChange>& change) {
  if (!change.has_value()) return "nothing";
  switch (change->kind) {
    case KeyChange::Kind::kPut:
      return "put " + change->key + "=" + change->value;
    case KeyChange::Kind::kDeleted:
      return "deleted " + change->key;
    case KeyChange::Kind::kExpired:
      return "expired " + change->key;
    case KeyChange::Kind::kOrphaned:
      return "orphaned " + change->key;
  }
  return "unknown";
}

class StoreWatchTest : public ::testing::TestWithParam<bool> {
 protected:
  StoreWatchTest() {
    auto server = coordinator::Server::Start({});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    session_ = Connect(address());
    store_ = NewStore(session_);
  }

  std::string address() const {
    return "127.0.0.1:" + std::to_string(server_->port());
  }

  std::shared_ptr<Store> NewStore(const std::shared_ptr<Session>& session) {
    std::shared_ptr<Store> store = std::make_shared<CoordinatorStore>(session);
    if (GetParam()) store = std::make_shared<PrefixStore>("part", store);
    store->SetTimeout(kLong);
    return store;
  }

  template <typename Function>
  Status CatchError(Function function) {
    try {
      function();
    } catch (const DistStoreError& error) {
      return error.status();
    }
    return OkStatus();
  }

  std::unique_ptr<coordinator::Server> server_;
  std::shared_ptr<Session> session_;
  std::shared_ptr<Store> store_;
};

INSTANTIATE_TEST_SUITE_P(Whole, StoreWatchTest, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Prefix, StoreWatchTest, ::testing::Values(true));

TEST_P(StoreWatchTest, AKeyExpires) {
  const auto watch = store_->Watch("k");
  store_->Set("k", "v", {.ttl = milliseconds(20)});
  EXPECT_EQ(Text(watch->Next(kLong)), "put k=v");
  EXPECT_EQ(Text(watch->Next(kLong)), "expired k");
  EXPECT_FALSE(store_->Check({"k"}));
  EXPECT_EQ(CatchError([&] {
              store_->Set("k", "v", {.ttl = milliseconds(0)});
            }).code(),
            StatusCode::kInvalidArgument);
}

TEST_P(StoreWatchTest, AnEphemeralKeyGoesWithItsSession) {
  const auto watch = store_->Watch("k");
  {
    const auto other = Connect(address());
    NewStore(other)->Set("k", "v", {.ephemeral = true});
    EXPECT_EQ(Text(watch->Next(kLong)), "put k=v");
    other->Leave("done");
  }
  EXPECT_EQ(Text(watch->Next(kLong)), "orphaned k");
}

TEST_P(StoreWatchTest, AWatchGivesEveryChangeOnce) {
  const auto watch = store_->Watch("p/", {.prefix = true});
  store_->Set("other", "");
  store_->MultiSet({"p/2", "p/1"}, {"2", "1"});
  store_->DeleteKey("p/1");
  EXPECT_EQ(Text(watch->Next(kLong)), "put p/1=1");
  const int64_t between = watch->revision();
  EXPECT_EQ(Text(watch->Next(kLong)), "put p/2=2");
  EXPECT_EQ(Text(watch->Next(kLong)), "deleted p/1");
  EXPECT_EQ(Text(watch->Next(milliseconds(20))), "nothing");
  // A watch from between two keys of one revision returns both.
  const auto resumed =
      store_->Watch("p/", {.prefix = true, .after_revision = between});
  EXPECT_EQ(Text(resumed->Next(kLong)), "put p/1=1");
  EXPECT_EQ(Text(resumed->Next(kLong)), "put p/2=2");
  const auto later = store_->Watch(
      "p/", {.prefix = true, .after_revision = watch->revision()});
  EXPECT_EQ(Text(later->Next(milliseconds(20))), "nothing");
}

TEST_P(StoreWatchTest, AWatchOfAnUnknownRevisionIsAnError) {
  const auto watch = store_->Watch("k", {.after_revision = 1000});
  EXPECT_EQ(CatchError([&] { watch->Next(kLong); }).code(),
            StatusCode::kOutOfRange);
}

TEST_P(StoreWatchTest, CancelEndsANextThatWaits) {
  const auto watch = store_->Watch("k");
  auto next = std::async(std::launch::async, [&] {
    return Text(watch->Next(std::chrono::hours(1)));
  });
  watch->Cancel();
  EXPECT_EQ(next.get(), "nothing");
  EXPECT_EQ(Text(watch->Next(std::chrono::hours(1))), "nothing");
}

TEST_P(StoreWatchTest, ABrokenConnectionLosesNoChangeAndNoItem) {
  testing::CuttingProxy proxy(server_->port());
  const auto store = NewStore(Connect(proxy.address()));
  const auto watch = store->Watch("k");
  auto popped =
      std::async(std::launch::async, [&] { return store->QueuePop("q"); });
  for (int i = 0; i < 3; ++i) {
    proxy.Cut();
    store_->Set("k", std::to_string(i));
    EXPECT_EQ(Text(watch->Next(kLong)), "put k=" + std::to_string(i));
  }
  store_->QueuePush("q", "item");
  EXPECT_EQ(popped.get(), "item");
  // The answer of a pop is lost; its retry gets the same item.
  store_->QueuePush("q", "1");
  store_->QueuePush("q", "2");
  proxy.HoldAnswers(true);
  auto retried =
      std::async(std::launch::async, [&] { return store->QueuePop("q"); });
  const auto observer = NewStore(Connect(address()));
  while (observer->QueueLen("q") == 2) {
  }
  proxy.Cut();
  EXPECT_EQ(retried.get(), "1");
  EXPECT_EQ(store->QueuePop("q", /*block=*/false), "2");
}

}  // namespace
}  // namespace muster
