#include "client/store.h"

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/errors.h"
#include "client/session.h"
#include "coordinator/server/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The same rules hold for a store and for a part of one.
class StoreTest : public ::testing::TestWithParam<bool> {
 protected:
  StoreTest() {
    auto server = coordinator::Server::Start({});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    base_ = NewStore();
    store_ = GetParam() ? std::make_shared<PrefixStore>("part", base_) : base_;
    store_->SetTimeout(seconds(20));
  }

  std::shared_ptr<Store> NewStore() {
    SessionOptions options;
    options.address = "127.0.0.1:" + std::to_string(server_->port());
    return std::make_shared<CoordinatorStore>(
        Session::Connect(std::move(options)));
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
  std::shared_ptr<Store> base_;
  std::shared_ptr<Store> store_;
};

INSTANTIATE_TEST_SUITE_P(Whole, StoreTest, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Prefix, StoreTest, ::testing::Values(true));

TEST_P(StoreTest, KeepsBytes) {
  const std::string bytes("a\0b\xff", 4);
  store_->Set(bytes, bytes);
  EXPECT_EQ(store_->Get(bytes), bytes);
  store_->Set("empty", "");
  EXPECT_EQ(store_->Get("empty"), "");
}

TEST_P(StoreTest, GetWaitsForTheKey) {
  auto value = std::async(std::launch::async, [&] { return store_->Get("k"); });
  store_->Set("k", "v");
  EXPECT_EQ(value.get(), "v");
}

TEST_P(StoreTest, GetTimesOutAndTheStoreStaysUsable) {
  store_->SetTimeout(milliseconds(100));
  const absl::Status status = ErrorOf([&] { store_->Get("nonexistent"); });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("nonexistent"));
  store_->SetTimeout(seconds(20));
  store_->Set("k", "v");
  EXPECT_EQ(store_->Get("k"), "v");
}

TEST_P(StoreTest, AddCountsInDecimal) {
  EXPECT_EQ(store_->Add("n", 5), 5);
  EXPECT_EQ(store_->Add("n", -7), -2);
  EXPECT_EQ(store_->Get("n"), "-2");
  EXPECT_EQ(store_->Add("zero", 0), 0);
  EXPECT_TRUE(store_->Check({"zero"}));
}

TEST_P(StoreTest, AddRefusesWhatIsNoNumberAndOverflow) {
  store_->Set("text", "12abc");
  EXPECT_EQ(ErrorOf([&] { store_->Add("text", 1); }).code(),
            absl::StatusCode::kInvalidArgument);
  store_->Set("big", "9223372036854775807");
  EXPECT_EQ(ErrorOf([&] { store_->Add("big", 1); }).code(),
            absl::StatusCode::kOutOfRange);
}

TEST_P(StoreTest, AddWakesWaiters) {
  auto done = std::async(std::launch::async,
                         [&] { store_->Wait({"counter"}, seconds(20)); });
  store_->Add("counter", 1);
  done.get();
}

TEST_P(StoreTest, AppendCreatesAndExtends) {
  store_->Append("log", "a");
  store_->Append("log", "b");
  EXPECT_EQ(store_->Get("log"), "ab");
}

TEST_P(StoreTest, CompareSetHasC10dsResults) {
  EXPECT_EQ(store_->CompareSet("k", "something", "new"), "something");
  EXPECT_FALSE(store_->Check({"k"}));
  EXPECT_EQ(store_->CompareSet("k", "", "first"), "first");
  EXPECT_EQ(store_->CompareSet("k", "wrong", "second"), "first");
  EXPECT_EQ(store_->CompareSet("k", "first", "second"), "second");
  EXPECT_EQ(store_->Get("k"), "second");
}

TEST_P(StoreTest, CheckAndWaitWantAllKeys) {
  store_->Set("a", "1");
  EXPECT_TRUE(store_->Check({"a"}));
  EXPECT_FALSE(store_->Check({"a", "b"}));
  store_->Wait({});
  const absl::Status status = ErrorOf([&] {
    store_->Wait({"a", "b"}, milliseconds(100));
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("b"));
}

TEST_P(StoreTest, MultiSetAndMultiGet) {
  store_->MultiSet({"a", "b"}, {"1", "2"});
  EXPECT_THAT(store_->MultiGet({"b", "a"}), ElementsAre("2", "1"));
  EXPECT_THAT(store_->MultiGet({}), IsEmpty());
  EXPECT_THAT(
      std::string(ErrorOf([&] { store_->MultiSet({"a"}, {}); }).message()),
      HasSubstr("multiSet keys and values vectors must be of same size"));
}

TEST_P(StoreTest, DeleteTellsWhetherThereWasSuchAKey) {
  store_->Set("a", "1");
  EXPECT_TRUE(store_->DeleteKey("a"));
  EXPECT_FALSE(store_->DeleteKey("a"));
}

TEST_P(StoreTest, NumKeysCountsTheUsersKeysOfThisStore) {
  base_->Set("muster/group/world/1/address/0", "the SDK's own");
  EXPECT_EQ(store_->NumKeys(), 0);
  store_->MultiSet({"a", "b", "c"}, {"", "", ""});
  EXPECT_EQ(store_->NumKeys(), 3);
  EXPECT_EQ(base_->NumKeys(), 3);
  EXPECT_THAT(store_->ListKeys(""), ::testing::Contains("b"));
}

TEST_P(StoreTest, TimeoutMustBePositive) {
  EXPECT_EQ(ErrorOf([&] { store_->SetTimeout(milliseconds(0)); }).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(StoreTest, PastALimitTheStoreStaysUsable) {
  EXPECT_EQ(ErrorOf([&] { store_->Set(std::string(100'000, 'k'), ""); }).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(
      ErrorOf([&] { store_->Set("k", std::string(65 << 20, 'v')); }).code(),
      absl::StatusCode::kResourceExhausted);
  store_->Set("k", "v");
  EXPECT_EQ(store_->Get("k"), "v");
}

TEST_P(StoreTest, OtherProcessesSeeTheSame) {
  store_->Set("shared", "value");
  EXPECT_EQ(NewStore()->Get(GetParam() ? "part/shared" : "shared"), "value");
}

TEST(PrefixStoreTest, Nests) {
  auto server = coordinator::Server::Start({});
  ASSERT_TRUE(server.ok()) << server.status();
  SessionOptions options;
  options.address = "127.0.0.1:" + std::to_string((*server)->port());
  auto base =
      std::make_shared<CoordinatorStore>(Session::Connect(std::move(options)));
  PrefixStore nested("a", std::make_shared<PrefixStore>("b", base));
  nested.Set("key", "v");
  EXPECT_EQ(base->Get("b/a/key"), "v");
  nested.SetTimeout(seconds(7));
  EXPECT_EQ(base->timeout(), seconds(7));
  EXPECT_THROW(PrefixStore("a", nullptr), DistStoreError);
}

}  // namespace
}  // namespace muster
