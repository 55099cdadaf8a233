// Tests that all stores must pass, without and with a prefix.

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "coordinator/server/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"
#include "muster/file_store.h"
#include "muster/hash_store.h"
#include "muster/session.h"
#include "muster/store.h"
#include "muster/tcp_store.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr seconds kLong{20};

enum class Kind { kHash, kFile, kTcp, kCoordinator };

// A store with two handles, as two processes would have.
class Pair {
 public:
  virtual ~Pair() = default;
  virtual std::shared_ptr<Store> NewHandle() = 0;
};

class HashPair : public Pair {
 public:
  std::shared_ptr<Store> NewHandle() override { return store_.Clone(); }

 private:
  HashStore store_;
};

class FilePair : public Pair {
 public:
  std::shared_ptr<Store> NewHandle() override {
    return std::make_shared<FileStore>(path_, /*world_size=*/1);
  }

 private:
  const std::string path_ = [] {
    const auto* const test =
        ::testing::UnitTest::GetInstance()->current_test_info();
    std::string name = std::string(test->test_suite_name()) + test->name();
    for (char& c : name) c = c == '/' ? '_' : c;
    return ::testing::TempDir() + "/" + name;
  }();
};

class TcpPair : public Pair {
 public:
  std::shared_ptr<Store> NewHandle() override {
    return std::make_shared<TcpStore>(
        TcpStoreOptions{.host = "127.0.0.1", .port = server_.port()});
  }

 private:
  TcpStore server_{{.host = "127.0.0.1", .world_size = 1, .is_master = true}};
};

class CoordinatorPair : public Pair {
 public:
  CoordinatorPair() : server_(*coordinator::Server::Start({})) {}

  std::shared_ptr<Store> NewHandle() override {
    SessionOptions options;
    options.address = "127.0.0.1:" + std::to_string(server_->port());
    return std::make_shared<CoordinatorStore>(
        Session::Connect(std::move(options)));
  }

 private:
  const std::unique_ptr<coordinator::Server> server_;
};

class StoreConformance
    : public ::testing::TestWithParam<std::tuple<Kind, bool>> {
 protected:
  StoreConformance() {
    switch (kind()) {
      case Kind::kHash:
        pair_ = std::make_unique<HashPair>();
        break;
      case Kind::kFile:
        pair_ = std::make_unique<FilePair>();
        break;
      case Kind::kTcp:
        pair_ = std::make_unique<TcpPair>();
        break;
      case Kind::kCoordinator:
        pair_ = std::make_unique<CoordinatorPair>();
        break;
    }
    base_ = pair_->NewHandle();
    store_ = Behind(base_);
    store_->SetTimeout(kLong);
    other_ = Behind(pair_->NewHandle());
    other_->SetTimeout(kLong);
  }

  static Kind kind() { return std::get<0>(GetParam()); }
  static bool prefixed() { return std::get<1>(GetParam()); }
  static bool is_file() { return kind() == Kind::kFile; }

  static std::shared_ptr<Store> Behind(std::shared_ptr<Store> store) {
    if (!prefixed()) return store;
    return std::make_shared<PrefixStore>("part", std::move(store));
  }

  static Status CatchError(const std::function<void()>& function) {
    try {
      function();
    } catch (const DistStoreError& error) {
      return error.status();
    }
    return OkStatus();
  }

  static StatusCode CatchCode(const std::function<void()>& function) {
    return CatchError(function).code();
  }

  // Whether the file's store refuses this verb, as it must; others have it.
  static bool Lacks(const std::string& verb,
                    const std::function<void()>& call) {
    if (!is_file()) return false;
    const Status status = CatchError(call);
    EXPECT_EQ(status,
              UnimplementedError("Not implemented. This store has no " + verb));
    return true;
  }

  // Returns the name of a key in error texts.
  static std::string Named(const std::string& key) {
    return prefixed() ? "part/" + key : key;
  }

  std::unique_ptr<Pair> pair_;
  std::shared_ptr<Store> base_;
  std::shared_ptr<Store> store_;
  // The handle of another process.
  std::shared_ptr<Store> other_;
};

std::string GetName(const ::testing::TestParamInfo<std::tuple<Kind, bool>>& p) {
  constexpr const char* kNames[] = {"Hash", "File", "Tcp", "Coordinator"};
  return std::string(kNames[static_cast<int>(std::get<0>(p.param))]) +
         (std::get<1>(p.param) ? "Prefix" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Stores, StoreConformance,
    ::testing::Combine(::testing::Values(Kind::kHash, Kind::kFile, Kind::kTcp,
                                         Kind::kCoordinator),
                       ::testing::Bool()),
    GetName);

TEST_P(StoreConformance, KeepsBytes) {
  const std::string bytes("a\0b\xff\n", 5);
  store_->Set(bytes, bytes);
  EXPECT_EQ(other_->Get(bytes), bytes);
  store_->Set("empty", "");
  EXPECT_EQ(other_->Get("empty"), "");
  const std::string large(3 << 20, 'x');
  store_->Set("large", large);
  EXPECT_EQ(other_->Get("large"), large);
}

TEST_P(StoreConformance, SetReplacesAndOthersSeeTheLast) {
  store_->Set("k", "1");
  other_->Set("k", "2");
  EXPECT_EQ(store_->Get("k"), "2");
  store_->Set("k", "3");
  EXPECT_EQ(other_->Get("k"), "3");
  if (prefixed()) {
    EXPECT_EQ(base_->Get("part/k"), "3");
  }
}

TEST_P(StoreConformance, GetWaitsForTheKey) {
  auto value = std::async(std::launch::async, [&] { return store_->Get("k"); });
  other_->Set("k", "v");
  EXPECT_EQ(value.get(), "v");
}

TEST_P(StoreConformance, EveryVerbThatWritesWakesWaiters) {
  const std::vector<std::function<void(const std::string&)>> writers = {
      [&](const std::string& key) { other_->Set(key, ""); },
      [&](const std::string& key) { other_->Add(key, 0); },
      [&](const std::string& key) { other_->CompareSet(key, "", "v"); },
      [&](const std::string& key) {
        if (other_->HasExtendedApi() || prefixed()) {
          other_->Append(key, "v");
          other_->MultiSet({key}, {"v"});
        } else {
          other_->Set(key, "");
        }
      },
      [&](const std::string& key) {
        if (is_file()) {
          other_->Set(key, "");
        } else {
          other_->QueuePush(key, "item");
        }
      }};
  for (size_t i = 0; i < writers.size(); ++i) {
    const std::string key = "k" + std::to_string(i);
    auto waiting = std::async(std::launch::async, [&] {
      store_->Wait({key, "also"}, kLong);
    });
    writers[i](key);
    other_->Set("also", "");
    waiting.get();
  }
}

TEST_P(StoreConformance, TheDefaultTimeoutIsFiveMinutes) {
  EXPECT_EQ(pair_->NewHandle()->timeout(), seconds(300));
  EXPECT_EQ(CatchCode([&] { store_->SetTimeout(milliseconds(0)); }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->timeout(), kLong);
}

TEST_P(StoreConformance, ATimeoutNamesTheKeyAndTheStoreStaysUsable) {
  store_->SetTimeout(milliseconds(100));
  const Status get = CatchError([&] { store_->Get("nonexistent key"); });
  const Status wait = CatchError([&] { store_->Wait({"nonexistent key"}); });
  EXPECT_EQ(get.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(wait.code(), StatusCode::kDeadlineExceeded);
  const std::string key = Named("nonexistent key");
  const std::string text = "wait timeout after 100ms, keys: " + key;
  // A FileStore's Get has c10d's text.
  EXPECT_EQ(get.message(),
            (kind() == Kind::kFile
                 ? "Timeout waiting for key: " + key + " after 100 ms: "
                 : "") +
                text + " (timeout: Store::SetTimeout)");
  EXPECT_EQ(wait.message(), text + " (timeout: timeout of Store::Wait)");
  store_->SetTimeout(kLong);
  store_->Set("k", "v");
  EXPECT_EQ(store_->Get("k"), "v");
}

TEST_P(StoreConformance, SignalsDoNotBreakAWait) {
  struct sigaction action = {};
  struct sigaction before = {};
  action.sa_handler = [](int) {};
  sigaction(SIGUSR1, &action, &before);
  std::promise<pthread_t> thread;
  auto value = std::async(std::launch::async, [&] {
    thread.set_value(pthread_self());
    return store_->Get("k");
  });
  const pthread_t waiting = thread.get_future().get();
  for (int i = 0; i < 100; ++i) {
    pthread_kill(waiting, SIGUSR1);
    other_->Add("n", 1);
  }
  other_->Set("k", "v");
  EXPECT_EQ(value.get(), "v");
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_P(StoreConformance, AddCountsInDecimal) {
  EXPECT_EQ(store_->Add("n", 5), 5);
  EXPECT_EQ(other_->Add("n", -7), -2);
  EXPECT_EQ(store_->Get("n"), "-2");
  EXPECT_EQ(store_->Add("zero", 0), 0);
  EXPECT_TRUE(other_->Check({"zero"}));
}

TEST_P(StoreConformance, AddRefusesWhatIsNoNumberAndOverflow) {
  for (const char* text : {"12abc", "", " 1", "1.5", "abc"}) {
    store_->Set("text", text);
    EXPECT_EQ(CatchCode([&] { store_->Add("text", 1); }),
              StatusCode::kInvalidArgument)
        << text;
    EXPECT_EQ(store_->Get("text"), text);
  }
  store_->Set("text", "12abc");
  EXPECT_THAT(
      std::string(CatchError([&] { store_->Add("text", 1); }).message()),
      HasSubstr("\" holds \"12abc\", which is not a decimal int64"));
  store_->Set("big", "9223372036854775807");
  EXPECT_EQ(CatchCode([&] { store_->Add("big", 1); }), StatusCode::kOutOfRange);
}

TEST_P(StoreConformance, AddIsExactFromManyThreads) {
  constexpr int kTimes = 100;
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] {
      Store& store = i % 2 == 0 ? *store_ : *other_;
      for (int k = 0; k < kTimes; ++k) store.Add("n", 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store_->Add("n", 0), 4 * kTimes);
}

TEST_P(StoreConformance, CompareSetHasC10dsResults) {
  EXPECT_EQ(store_->CompareSet("k", "something", "new"), "something");
  EXPECT_FALSE(store_->Check({"k"}));
  EXPECT_EQ(store_->CompareSet("k", "", "first"), "first");
  EXPECT_EQ(other_->CompareSet("k", "wrong", "second"), "first");
  EXPECT_EQ(other_->CompareSet("k", "", "second"), "first");
  EXPECT_EQ(store_->CompareSet("k", "first", "second"), "second");
  EXPECT_EQ(other_->Get("k"), "second");
  store_->Set("empty", "");
  EXPECT_EQ(store_->CompareSet("empty", "", "filled"), "filled");
}

TEST_P(StoreConformance, CompareSetElectsOne) {
  std::vector<std::future<std::string>> votes;
  votes.reserve(8);
  for (int i = 0; i < 8; ++i) {
    votes.push_back(std::async(std::launch::async, [this, i] {
      Store& store = i % 2 == 0 ? *store_ : *other_;
      return store.CompareSet("leader", "", std::to_string(i));
    }));
  }
  std::set<std::string> leaders;
  for (auto& vote : votes) leaders.insert(vote.get());
  EXPECT_EQ(leaders.size(), 1U);
  EXPECT_EQ(store_->Get("leader"), *leaders.begin());
}

TEST_P(StoreConformance, CheckAndWaitWantAllKeys) {
  store_->Set("a", "1");
  EXPECT_TRUE(store_->Check({"a"}));
  EXPECT_TRUE(store_->Check({}));
  EXPECT_FALSE(store_->Check({"a", "b"}));
  store_->Wait({});
  store_->Wait({}, milliseconds(0));
  for (const int timeout : {0, -1}) {
    const Status refused =
        CatchError([&] { store_->Wait({"a"}, milliseconds(timeout)); });
    EXPECT_TRUE(IsInvalidArgument(refused)) << refused;
  }
  const Status status = CatchError([&] {
    store_->Wait({"a", "b", "c"}, milliseconds(50));
  });
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("after 50ms, keys: " + Named("b") + ", " + Named("c")));
}

TEST_P(StoreConformance, NumKeysCountsTheKeysOfTheStore) {
  for (int i = 0; i < 5; ++i) store_->Set("k" + std::to_string(i), "");
  store_->Add("k0000", 1);
  store_->Set("k0", "again");
  base_->Set("muster/group/world/1/address/0", "the SDK's own");
  if (prefixed()) base_->Set("outside", "");
  const int own = kind() == Kind::kFile || kind() == Kind::kTcp ? 1 : 0;
  EXPECT_EQ(store_->NumKeys(), 6 + (prefixed() ? 0 : own));
  EXPECT_EQ(base_->NumKeys(), 6 + (prefixed() ? 1 : 0) + own);
  if (is_file()) return;
  store_->QueuePush("q", "");
  EXPECT_EQ(store_->NumKeys(), 6 + (prefixed() ? 0 : own));
}

TEST_P(StoreConformance, ListKeysIsSortedAndLeavesOutTheSdksOwn) {
  EXPECT_THAT(store_->ListKeys(""), IsEmpty());
  for (const char* key : {"b/2", "a", "b/1", "c"}) other_->Set(key, "");
  base_->Set("muster/k", "");
  EXPECT_THAT(store_->ListKeys(""), ElementsAre("a", "b/1", "b/2", "c"));
  EXPECT_THAT(store_->ListKeys("b/"), ElementsAre("b/1", "b/2"));
  EXPECT_THAT(base_->ListKeys("muster/k"), ElementsAre("muster/k"));
}

TEST_P(StoreConformance, DeleteTellsWhetherThereWasSuchAKey) {
  store_->Set("a", "1");
  if (Lacks("DeleteKey", [&] { store_->DeleteKey("a"); })) return;
  EXPECT_TRUE(other_->DeleteKey("a"));
  EXPECT_FALSE(store_->DeleteKey("a"));
  EXPECT_FALSE(store_->Check({"a"}));
  EXPECT_EQ(store_->CompareSet("a", "1", "2"), "1");
  store_->QueuePush("q", "item");
  EXPECT_TRUE(store_->DeleteKey("q"));
  EXPECT_EQ(store_->QueueLen("q"), 0);
}

TEST_P(StoreConformance, AppendCreatesAndExtends) {
  EXPECT_EQ(store_->HasExtendedApi(), !is_file());
  if (!prefixed() && Lacks("Append", [&] { store_->Append("k", ""); })) return;
  store_->Append("log", "po");
  other_->Append("log", "tato");
  EXPECT_EQ(store_->Get("log"), "potato");
  store_->Append("twice", "ab");
  store_->Append("twice", "ab");
  EXPECT_EQ(store_->Get("twice"), "abab");
  store_->Append("nothing", "");
  EXPECT_EQ(store_->Get("nothing"), "");
  store_->Append("nothing", "x");
  EXPECT_EQ(store_->Get("nothing"), "x");
}

TEST_P(StoreConformance, MultiSetAndMultiGet) {
  if (!prefixed() && is_file()) {
    Lacks("MultiSet", [&] { store_->MultiSet({"a"}, {"1"}); });
    Lacks("MultiGet", [&] { store_->MultiGet({"a"}); });
    return;
  }
  auto both = std::async(std::launch::async, [&] {
    return store_->MultiGet({"b", "a", "b"});
  });
  other_->MultiSet({"a", "b"}, {"1", "2"});
  EXPECT_THAT(both.get(), ElementsAre("2", "1", "2"));
  EXPECT_THAT(store_->MultiGet({}), IsEmpty());
  store_->MultiSet({}, {});
  EXPECT_THAT(
      std::string(CatchError([&] { store_->MultiSet({"a"}, {}); }).message()),
      HasSubstr("multiSet keys and values vectors must be of same size"));
  store_->SetTimeout(milliseconds(50));
  EXPECT_EQ(CatchCode([&] {
              store_->MultiGet({"a", "none"});
            }),
            StatusCode::kDeadlineExceeded);
}

TEST_P(StoreConformance, EveryWaitSeesAnItemThatStays) {
  if (Lacks("QueuePush", [&] { store_->QueuePush("other", ""); })) return;
  std::vector<std::future<void>> waits;
  for (int i = 0; i < 3; ++i) {
    waits.push_back(
        std::async(std::launch::async, [&] { store_->Wait({"q"}, kLong); }));
  }
  other_->QueuePush("q", "item");
  for (std::future<void>& wait : waits) wait.get();
  EXPECT_EQ(store_->QueueLen("q"), 1);
}

TEST_P(StoreConformance, AQueueIsFirstInFirstOut) {
  if (Lacks("QueuePush", [&] { store_->QueuePush("q", "1"); }) &&
      Lacks("QueueLen", [&] { store_->QueueLen("q"); })) {
    return;
  }
  store_->QueuePush("q", "1");
  other_->QueuePush("q", std::string("\0", 1));
  EXPECT_EQ(store_->QueueLen("q"), 2);
  EXPECT_TRUE(store_->Check({"q"}));
  store_->Wait({"q"});
  EXPECT_EQ(other_->QueuePop("q"), "1");
  EXPECT_EQ(store_->QueuePop("q", /*block=*/false), std::string("\0", 1));
  EXPECT_EQ(store_->QueueLen("q"), 0);
  EXPECT_FALSE(store_->Check({"q"}));
}

TEST_P(StoreConformance, AnEmptyQueueIsAnErrorOrATimeout) {
  if (Lacks("QueuePop", [&] { store_->QueuePop("q", false); })) return;
  const Status empty = CatchError([&] { store_->QueuePop("q", false); });
  EXPECT_EQ(empty.code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(empty.message()), HasSubstr("queue is empty"));
  EXPECT_THROW(store_->QueuePop("q", false), QueueEmptyError);
  store_->SetTimeout(milliseconds(50));
  const Status late = CatchError([&] { store_->QueuePop("q"); });
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.message()), HasSubstr("timeout"));
  // The pop that timed out takes no item.
  store_->SetTimeout(kLong);
  store_->QueuePush("q", "1");
  EXPECT_EQ(store_->QueueLen("q"), 1);
}

TEST_P(StoreConformance, EachItemGoesToOneOfThoseWhoWait) {
  if (is_file()) return;
  constexpr int kItems = 50;
  // No kind of waiting call may take another's wake-up.
  auto waiting = std::async(std::launch::async, [&] {
    store_->Wait({"q", "value"});
  });
  auto getting =
      std::async(std::launch::async, [&] { return store_->Get("value"); });
  std::vector<std::future<std::string>> pops;
  pops.reserve(kItems);
  for (int i = 0; i < kItems; ++i) {
    pops.push_back(
        std::async(std::launch::async, [&] { return store_->QueuePop("q"); }));
  }
  for (int i = 0; i < kItems; ++i) other_->QueuePush("q", std::to_string(i));
  std::set<std::string> items;
  for (auto& pop : pops) items.insert(pop.get());
  EXPECT_EQ(items.size(), size_t{kItems});
  EXPECT_EQ(store_->QueueLen("q"), 0);
  other_->QueuePush("q", "");
  other_->Set("value", "v");
  EXPECT_EQ(getting.get(), "v");
  waiting.get();
}

TEST_P(StoreConformance, AKeyIsAQueueOrAValue) {
  if (is_file()) return;
  store_->QueuePush("q", "1");
  const std::vector<std::function<void()>> for_values = {
      [&] { store_->Set("q", ""); },
      [&] { store_->Get("q"); },
      [&] { store_->Add("q", 1); },
      [&] { store_->Append("q", ""); },
      [&] { store_->CompareSet("q", "", ""); },
      [&] { store_->MultiSet({"q"}, {""}); },
      [&] { store_->MultiGet({"q"}); },
      [&] { store_->CompareAndSet("q", 0, ""); }};
  for (size_t i = 0; i < for_values.size(); ++i) {
    const Status status = CatchError(for_values[i]);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << i;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("\" is a queue of 1 items, no value"));
  }
  store_->Set("k", "");
  EXPECT_EQ(CatchCode([&] { store_->QueuePush("k", ""); }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(CatchCode([&] { store_->QueuePop("k"); }),
            StatusCode::kInvalidArgument);
}

TEST_P(StoreConformance, CompareAndSetGoesByTheRevision) {
  if (Lacks("CompareAndSet", [&] { store_->CompareAndSet("k", 0, ""); }) &&
      Lacks("TryGet", [&] { store_->TryGet("k"); })) {
    return;
  }
  const CompareAndSetResult made = store_->CompareAndSet("k", 0, "1");
  EXPECT_TRUE(made.written);
  const CompareAndSetResult refused = other_->CompareAndSet("k", 0, "2");
  EXPECT_FALSE(refused.written);
  EXPECT_EQ(refused.present, "1");
  EXPECT_EQ(refused.revision, made.revision);
  EXPECT_TRUE(store_->CompareAndSet("k", made.revision, "3").written);
  const std::optional<StoreValue> value = other_->TryGet("k");
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(value->value, "3");
  EXPECT_GT(value->revision, made.revision);
  EXPECT_FALSE(store_->TryGet("absent").has_value());
  const CompareAndSetResult missing = store_->CompareAndSet("absent", 7, "");
  EXPECT_FALSE(missing.written);
  EXPECT_EQ(missing.revision, 0);
  EXPECT_FALSE(missing.present.has_value());
  EXPECT_EQ(CatchCode([&] { store_->CompareAndSet("k", -1, ""); }),
            StatusCode::kInvalidArgument);
}

TEST_P(StoreConformance, DeletePrefixTakesWhatBeginsWithIt) {
  if (Lacks("DeletePrefix", [&] { store_->DeletePrefix("a/"); })) return;
  store_->MultiSet({"a/1", "a/2", "b"}, {"", "", ""});
  store_->QueuePush("a/q", "");
  EXPECT_EQ(other_->DeletePrefix("a/"), 3);
  EXPECT_THAT(store_->ListKeys(""), ElementsAre("b"));
}

TEST_P(StoreConformance, SetWithEmptyOptionsIsASet) {
  store_->Set("k", "v", {});
  EXPECT_EQ(other_->Get("k"), "v");
  if (kind() == Kind::kTcp || kind() == Kind::kCoordinator) return;
  EXPECT_EQ(CatchCode([&] { store_->Set("k", "", {.ephemeral = true}); }),
            StatusCode::kUnimplemented);
  EXPECT_EQ(CatchCode([&] { store_->Watch("k"); }), StatusCode::kUnimplemented);
}

TEST_P(StoreConformance, ACloneHasTheKeysAndATimeoutOfItsOwn) {
  const std::shared_ptr<Store> clone = store_->Clone();
  EXPECT_EQ(clone->timeout(), kLong);
  clone->SetTimeout(seconds(7));
  EXPECT_EQ(store_->timeout(), kLong);
  clone->Set("k", "v");
  EXPECT_EQ(store_->Get("k"), "v");
  EXPECT_EQ(clone->NumKeys(), store_->NumKeys());
  store_ = nullptr;
  base_ = nullptr;
  EXPECT_EQ(clone->Get("k"), "v");
}

}  // namespace
}  // namespace muster
