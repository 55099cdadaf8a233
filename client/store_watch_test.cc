// What a store has beyond c10d's values: queues, lifetimes, compare-and-set,
// watches; for a whole store and for a part of one.

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/errors.h"
#include "client/session.h"
#include "client/store.h"
#include "client/testing/cutting_proxy.h"
#include "coordinator/server/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr seconds kLong{20};

std::shared_ptr<Session> Connect(const std::string& address) {
  SessionOptions options;
  options.address = address;
  return Session::Connect(std::move(options));
}

// `put k=v`.
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

class StoreQueueWatchTest : public ::testing::TestWithParam<bool> {
 protected:
  StoreQueueWatchTest() {
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
  absl::Status ErrorOf(Function function) {
    try {
      function();
    } catch (const DistStoreError& error) {
      return error.status();
    }
    return absl::OkStatus();
  }

  std::unique_ptr<coordinator::Server> server_;
  std::shared_ptr<Session> session_;
  std::shared_ptr<Store> store_;
};

INSTANTIATE_TEST_SUITE_P(Whole, StoreQueueWatchTest, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Prefix, StoreQueueWatchTest, ::testing::Values(true));

TEST_P(StoreQueueWatchTest, AQueueIsFirstInFirstOut) {
  store_->QueuePush("q", "1");
  store_->QueuePush("q", std::string("\0", 1));
  EXPECT_EQ(store_->QueueLen("q"), 2);
  EXPECT_TRUE(store_->Check({"q"}));
  EXPECT_EQ(store_->QueuePop("q"), "1");
  EXPECT_EQ(store_->QueuePop("q", /*block=*/false), std::string("\0", 1));
  EXPECT_EQ(store_->QueueLen("q"), 0);
  EXPECT_FALSE(store_->Check({"q"}));
}

TEST_P(StoreQueueWatchTest, AnEmptyQueueIsAnErrorOrATimeout) {
  const absl::Status empty = ErrorOf([&] { store_->QueuePop("q", false); });
  EXPECT_EQ(empty.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(empty.message()), HasSubstr("queue is empty"));
  store_->SetTimeout(milliseconds(50));
  const absl::Status late = ErrorOf([&] { store_->QueuePop("q"); });
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.message()), HasSubstr("timeout"));
  // The pop that timed out takes nothing.
  store_->SetTimeout(kLong);
  store_->QueuePush("q", "1");
  EXPECT_EQ(store_->QueueLen("q"), 1);
}

TEST_P(StoreQueueWatchTest, EachItemGoesToOneOfThoseWhoWait) {
  constexpr int kItems = 50;
  std::vector<std::future<std::string>> pops;
  pops.reserve(kItems);
  for (int i = 0; i < kItems; ++i) {
    pops.push_back(
        std::async(std::launch::async, [&] { return store_->QueuePop("q"); }));
  }
  const auto other = NewStore(Connect(address()));
  for (int i = 0; i < kItems; ++i) other->QueuePush("q", std::to_string(i));
  std::set<std::string> items;
  for (auto& pop : pops) items.insert(pop.get());
  EXPECT_EQ(items.size(), size_t{kItems});
  EXPECT_EQ(store_->QueueLen("q"), 0);
}

TEST_P(StoreQueueWatchTest, AKeyIsAQueueOrAValue) {
  store_->QueuePush("q", "1");
  EXPECT_EQ(ErrorOf([&] { store_->Set("q", ""); }).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorOf([&] { store_->Get("q"); }).code(),
            absl::StatusCode::kInvalidArgument);
  store_->Set("k", "");
  EXPECT_EQ(ErrorOf([&] { store_->QueuePush("k", ""); }).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(StoreQueueWatchTest, CompareAndSetGoesByTheRevision) {
  const CompareAndSetResult made = store_->CompareAndSet("k", 0, "1");
  EXPECT_TRUE(made.written);
  const CompareAndSetResult refused = store_->CompareAndSet("k", 0, "2");
  EXPECT_FALSE(refused.written);
  EXPECT_EQ(refused.present, "1");
  EXPECT_EQ(refused.revision, made.revision);
  EXPECT_TRUE(store_->CompareAndSet("k", made.revision, "3").written);
  const std::optional<StoreValue> value = store_->TryGet("k");
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(value->value, "3");
  EXPECT_GT(value->revision, made.revision);
  EXPECT_FALSE(store_->TryGet("absent").has_value());
}

TEST_P(StoreQueueWatchTest, DeletePrefixTakesWhatBeginsWithIt) {
  store_->MultiSet({"a/1", "a/2", "b"}, {"", "", ""});
  store_->QueuePush("a/q", "");
  EXPECT_EQ(store_->DeletePrefix("a/"), 3);
  EXPECT_EQ(store_->NumKeys(), 1);
}

TEST_P(StoreQueueWatchTest, AKeyExpires) {
  const auto watch = store_->Watch("k");
  store_->Set("k", "v", {.ttl = milliseconds(20)});
  EXPECT_EQ(Text(watch->Next(kLong)), "put k=v");
  EXPECT_EQ(Text(watch->Next(kLong)), "expired k");
  EXPECT_FALSE(store_->Check({"k"}));
  EXPECT_EQ(
      ErrorOf([&] { store_->Set("k", "v", {.ttl = milliseconds(0)}); }).code(),
      absl::StatusCode::kInvalidArgument);
}

TEST_P(StoreQueueWatchTest, AnEphemeralKeyGoesWithItsSession) {
  const auto watch = store_->Watch("k");
  {
    const auto other = Connect(address());
    NewStore(other)->Set("k", "v", {.ephemeral = true});
    EXPECT_EQ(Text(watch->Next(kLong)), "put k=v");
    other->Leave("done");
  }
  EXPECT_EQ(Text(watch->Next(kLong)), "orphaned k");
}

TEST_P(StoreQueueWatchTest, AWatchGivesEveryChangeOnce) {
  const auto watch = store_->Watch("p/", {.prefix = true});
  store_->Set("other", "");
  store_->MultiSet({"p/2", "p/1"}, {"2", "1"});
  store_->DeleteKey("p/1");
  EXPECT_EQ(Text(watch->Next(kLong)), "put p/1=1");
  const int64_t between = watch->revision();
  EXPECT_EQ(Text(watch->Next(kLong)), "put p/2=2");
  EXPECT_EQ(Text(watch->Next(kLong)), "deleted p/1");
  EXPECT_EQ(Text(watch->Next(milliseconds(20))), "nothing");
  // One that goes on from between two keys of one revision sees both.
  const auto resumed =
      store_->Watch("p/", {.prefix = true, .after_revision = between});
  EXPECT_EQ(Text(resumed->Next(kLong)), "put p/1=1");
  EXPECT_EQ(Text(resumed->Next(kLong)), "put p/2=2");
  const auto later = store_->Watch(
      "p/", {.prefix = true, .after_revision = watch->revision()});
  EXPECT_EQ(Text(later->Next(milliseconds(20))), "nothing");
}

TEST_P(StoreQueueWatchTest, AWatchOfAnUnknownRevisionIsAnError) {
  const auto watch = store_->Watch("k", {.after_revision = 1000});
  EXPECT_EQ(ErrorOf([&] { watch->Next(kLong); }).code(),
            absl::StatusCode::kOutOfRange);
}

TEST_P(StoreQueueWatchTest, CancelEndsANextThatWaits) {
  const auto watch = store_->Watch("k");
  auto next = std::async(std::launch::async, [&] {
    return Text(watch->Next(std::chrono::hours(1)));
  });
  watch->Cancel();
  EXPECT_EQ(next.get(), "nothing");
  EXPECT_EQ(Text(watch->Next(std::chrono::hours(1))), "nothing");
}

TEST_P(StoreQueueWatchTest, ABrokenConnectionLosesNoChangeAndNoItem) {
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
  // The answer of a pop gets lost; its retry gets the same item.
  store_->QueuePush("q", "1");
  store_->QueuePush("q", "2");
  proxy.HoldAnswers(true);
  auto retried =
      std::async(std::launch::async, [&] { return store->QueuePop("q"); });
  const auto observer = NewStore(Connect(address()));
  while (observer->QueueLen("q") == 2) {
  }
  proxy.Cut();
  proxy.HoldAnswers(false);
  EXPECT_EQ(retried.get(), "1");
  EXPECT_EQ(store->QueuePop("q", /*block=*/false), "2");
}

// A store of somebody else's making has the basic part only.
class BasicStore : public Store {
 public:
  using Store::Set;
  using Store::Wait;
  void Set(absl::string_view, absl::string_view) override {}
  std::string Get(absl::string_view) override { return ""; }
  int64_t Add(absl::string_view, int64_t) override { return 0; }
  void Append(absl::string_view, absl::string_view) override {}
  bool Check(const std::vector<std::string>&) override { return false; }
  std::string CompareSet(absl::string_view, absl::string_view,
                         absl::string_view) override {
    return "";
  }
  bool DeleteKey(absl::string_view) override { return false; }
  int64_t NumKeys() override { return 0; }
  std::vector<std::string> ListKeys(absl::string_view) override { return {}; }
  void Wait(const std::vector<std::string>&, milliseconds) override {}
  std::vector<std::string> MultiGet(const std::vector<std::string>&) override {
    return {};
  }
  void MultiSet(const std::vector<std::string>&,
                const std::vector<std::string>&) override {}
  void SetTimeout(milliseconds) override {}
  milliseconds timeout() const override { return kLong; }
};

TEST(BasicStoreTest, TheExtendedPartIsNotImplemented) {
  BasicStore store;
  try {
    store.QueuePush("q", "");
    FAIL();
  } catch (const DistStoreError& error) {
    EXPECT_EQ(error.status(), absl::UnimplementedError("Not implemented."));
  }
  EXPECT_THROW(store.QueuePop("q"), DistStoreError);
  EXPECT_THROW(store.Watch("k"), DistStoreError);
}

}  // namespace
}  // namespace muster
