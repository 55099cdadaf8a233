// Every function of stores through C, on each kind of store. What the functions
// do is tested in client/store_conformance_test.

#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "coordinator/server/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/muster_control.h"

namespace muster::c {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::TestWithParam;
using ::testing::ValuesIn;

#define ASSERT_OK(call) \
  ASSERT_EQ(call, MUSTER_OK) << muster_error_message(muster_last_error())
#define EXPECT_OK(call) \
  EXPECT_EQ(call, MUSTER_OK) << muster_error_message(muster_last_error())

// Takes the strings over.
std::vector<std::string> Take(muster_strings* strings) {
  std::vector<std::string> taken;
  for (size_t i = 0; i < muster_strings_count(strings); ++i) {
    taken.emplace_back(muster_strings_data(strings, i),
                       muster_strings_size(strings, i));
  }
  muster_strings_release(strings);
  return taken;
}

muster_bytes Bytes(std::string_view text) { return {text.data(), text.size()}; }

std::unique_ptr<coordinator::Server> StartServer() {
  auto server = coordinator::Server::Start({});
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

muster_session* Connect(const std::string& address) {
  muster_session_options options = {};
  options.size = sizeof(options);
  options.address = address.c_str();
  muster_session* session = nullptr;
  EXPECT_OK(muster_session_connect(&options, &session));
  return session;
}

struct StoreKind {
  std::string name;
  // Whether it has the functions beyond the basic ones.
  bool is_extended;
  std::function<muster_store*()> make;
};

muster_store* MakeCoordinatorStore() {
  // Lives as long as the process.
  static coordinator::Server& server = *StartServer().release();
  muster_session* const session =
      Connect("127.0.0.1:" + std::to_string(server.port()));
  muster_store* store = nullptr;
  EXPECT_OK(muster_coordinator_store_new(session, &store));
  // The store keeps the session.
  muster_session_release(session);
  return store;
}

std::vector<StoreKind> Kinds() {
  return {{"Hash", true,
           [] {
             muster_store* store = nullptr;
             EXPECT_OK(muster_hash_store_new(&store));
             return store;
           }},
          {"File", false,
           [] {
             const std::string path =
                 std::string(std::getenv("TEST_TMPDIR")) + "/store";
             muster_store* store = nullptr;
             EXPECT_OK(muster_file_store_new(path.c_str(), 1, &store));
             return store;
           }},
          {"Tcp", true,
           [] {
             muster_tcp_store_options options = {};
             options.size = sizeof(options);
             options.host = "127.0.0.1";
             options.is_master = 1;
             muster_store* store = nullptr;
             EXPECT_OK(muster_tcp_store_new(&options, &store));
             int32_t port = 0;
             EXPECT_OK(muster_tcp_store_port(store, &port));
             EXPECT_GT(port, 0);
             return store;
           }},
          {"Coordinator", true, [] { return MakeCoordinatorStore(); }},
          {"Prefix", true, [] {
             muster_store* other = nullptr;
             EXPECT_OK(muster_hash_store_new(&other));
             muster_store* store = nullptr;
             EXPECT_OK(muster_prefix_store_new("p", other, &store));
             muster_store_release(other);
             return store;
           }}};
}

class StoreTest : public TestWithParam<StoreKind> {
 protected:
  StoreTest() : store_(GetParam().make()) {}
  ~StoreTest() override { muster_store_release(store_); }

  void Set(std::string_view key, std::string_view value) {
    EXPECT_OK(muster_store_set(store_, key.data(), key.size(), value.data(),
                               value.size(), nullptr));
  }
  std::string Get(std::string_view key) {
    muster_strings* value = nullptr;
    EXPECT_OK(muster_store_get(store_, key.data(), key.size(), &value));
    const std::vector<std::string> taken = Take(value);
    return taken.empty() ? "none" : taken[0];
  }

  muster_store* const store_;
};

TEST_P(StoreTest, BasicFunctions) {
  const std::string key("k\0ey", 4);
  const std::string value("v\0alue", 6);
  Set(key, value);
  EXPECT_EQ(Get(key), value);
  int64_t sum = 0;
  EXPECT_OK(muster_store_add(store_, "n", 1, 5, &sum));
  EXPECT_OK(muster_store_add(store_, "n", 1, 2, nullptr));
  EXPECT_OK(muster_store_add(store_, "n", 1, -1, &sum));
  EXPECT_EQ(sum, 6);
  const muster_bytes keys[2] = {Bytes(key), Bytes("missing")};
  int32_t exist = -1;
  EXPECT_OK(muster_store_check(store_, keys, 1, &exist));
  EXPECT_EQ(exist, 1);
  EXPECT_OK(muster_store_check(store_, keys, 2, &exist));
  EXPECT_EQ(exist, 0);
  EXPECT_OK(muster_store_wait(store_, keys, 1, 0));
  EXPECT_EQ(muster_store_wait(store_, keys, 2, 1), MUSTER_DEADLINE_EXCEEDED);
  EXPECT_EQ(muster_error_get_kind(muster_last_error()), MUSTER_ERROR_STORE);
  EXPECT_THAT(muster_error_message(muster_last_error()), HasSubstr("missing"));
  muster_strings* strings = nullptr;
  EXPECT_OK(
      muster_store_compare_set(store_, "c", 1, "", 0, "new", 3, &strings));
  EXPECT_THAT(Take(strings), ElementsAre("new"));
  EXPECT_OK(muster_store_compare_set(store_, "c", 1, "other", 5, "newer", 5,
                                     &strings));
  EXPECT_THAT(Take(strings), ElementsAre("new"));
  int64_t count = 0;
  EXPECT_OK(muster_store_num_keys(store_, &count));
  EXPECT_GE(count, 3);
  EXPECT_OK(muster_store_list_keys(store_, "k", 1, &strings));
  EXPECT_THAT(Take(strings), ElementsAre(key));
  int32_t has = -1;
  EXPECT_OK(muster_store_has_extended_api(store_, &has));
  EXPECT_EQ(has, GetParam().is_extended ? 1 : 0);
}

TEST_P(StoreTest, ClonesHaveTheKeysAndATimeoutOfTheirOwn) {
  muster_store* clone = nullptr;
  ASSERT_OK(muster_store_clone(store_, &clone));
  Set("shared", "by both");
  EXPECT_OK(muster_store_set_timeout(clone, 5));
  int64_t timeout_ms = 0;
  EXPECT_OK(muster_store_timeout(clone, &timeout_ms));
  EXPECT_EQ(timeout_ms, 5);
  EXPECT_OK(muster_store_timeout(store_, &timeout_ms));
  EXPECT_EQ(timeout_ms, 300'000);
  muster_strings* value = nullptr;
  EXPECT_OK(muster_store_get(clone, "shared", 6, &value));
  EXPECT_THAT(Take(value), ElementsAre("by both"));
  EXPECT_EQ(muster_store_get(clone, "missing", 7, &value),
            MUSTER_DEADLINE_EXCEEDED);
  EXPECT_EQ(value, nullptr);
  EXPECT_EQ(muster_store_set_timeout(clone, 0), MUSTER_INVALID_ARGUMENT);
  muster_store_release(clone);
}

TEST_P(StoreTest, ExtendedFunctions) {
  if (!GetParam().is_extended) {
    EXPECT_EQ(muster_store_append(store_, "a", 1, "b", 1),
              MUSTER_UNIMPLEMENTED);
    EXPECT_EQ(muster_error_get_kind(muster_last_error()), MUSTER_ERROR_STORE);
    return;
  }
  EXPECT_OK(muster_store_append(store_, "a", 1, "one", 3));
  EXPECT_OK(muster_store_append(store_, "a", 1, " two", 4));
  EXPECT_EQ(Get("a"), "one two");
  const muster_bytes keys[2] = {Bytes("x"), Bytes("y")};
  const muster_bytes values[2] = {Bytes("1"), Bytes("2")};
  EXPECT_OK(muster_store_multi_set(store_, keys, values, 2));
  muster_strings* strings = nullptr;
  EXPECT_OK(muster_store_multi_get(store_, keys, 2, &strings));
  EXPECT_THAT(Take(strings), ElementsAre("1", "2"));

  int64_t revision = -1;
  EXPECT_OK(muster_store_try_get(store_, "none", 4, &strings, &revision));
  EXPECT_EQ(strings, nullptr);
  EXPECT_OK(muster_store_try_get(store_, "x", 1, &strings, &revision));
  EXPECT_THAT(Take(strings), ElementsAre("1"));
  EXPECT_GT(revision, 0);
  int32_t written = -1;
  int64_t next_revision = 0;
  EXPECT_OK(muster_store_compare_and_set(store_, "x", 1, revision, "3", 1,
                                         nullptr, &written, &next_revision,
                                         &strings));
  EXPECT_EQ(written, 1);
  EXPECT_GT(next_revision, revision);
  EXPECT_EQ(strings, nullptr);
  EXPECT_OK(muster_store_compare_and_set(store_, "x", 1, revision, "4", 1,
                                         nullptr, &written, nullptr, &strings));
  EXPECT_EQ(written, 0);
  EXPECT_THAT(Take(strings), ElementsAre("3"));

  EXPECT_OK(muster_store_queue_push(store_, "q", 1, "item", 4));
  int64_t length = 0;
  EXPECT_OK(muster_store_queue_len(store_, "q", 1, &length));
  EXPECT_EQ(length, 1);
  EXPECT_OK(muster_store_queue_pop(store_, "q", 1, 1, &strings));
  EXPECT_THAT(Take(strings), ElementsAre("item"));
  EXPECT_EQ(muster_store_queue_pop(store_, "q", 1, 0, &strings),
            MUSTER_NOT_FOUND);
  EXPECT_EQ(muster_error_get_kind(muster_last_error()), MUSTER_ERROR_STORE);

  int32_t existed = -1;
  EXPECT_OK(muster_store_delete_key(store_, "x", 1, &existed));
  EXPECT_EQ(existed, 1);
  EXPECT_OK(muster_store_delete_key(store_, "x", 1, &existed));
  EXPECT_EQ(existed, 0);
  int64_t deleted = 0;
  EXPECT_OK(muster_store_delete_prefix(store_, "a", 1, &deleted));
  EXPECT_EQ(deleted, 1);
}

INSTANTIATE_TEST_SUITE_P(Kinds, StoreTest, ValuesIn(Kinds()),
                         [](const auto& info) { return info.param.name; });

TEST(TcpStoreTest, ASocketIsTakenOverUnlessThereIsNoValidStruct) {
  muster_tcp_store_options options = {};
  options.host = "127.0.0.1";
  options.is_master = 1;
  options.has_listen_fd = 1;
  options.listen_fd = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_GE(options.listen_fd, 0);
  muster_store* store = nullptr;
  EXPECT_EQ(muster_tcp_store_new(&options, &store), MUSTER_INVALID_ARGUMENT);
  options.size = sizeof(options);
  EXPECT_EQ(muster_tcp_store_new(&options, nullptr), MUSTER_INVALID_ARGUMENT);
  EXPECT_THAT(muster_error_message(muster_last_error()),
              HasSubstr("argument store is NULL"));
  EXPECT_EQ(close(options.listen_fd), -1);
  options.listen_fd = socket(AF_INET, SOCK_STREAM, 0);
  options.size = 0;
  EXPECT_EQ(muster_tcp_store_new(&options, nullptr), MUSTER_INVALID_ARGUMENT);
  EXPECT_EQ(close(options.listen_fd), 0);
}

TEST(PrefixStoreTest, TheOtherStoreHasTheKeyWithThePrefix) {
  muster_store* hash = nullptr;
  muster_store* prefixed = nullptr;
  muster_store* underlying = nullptr;
  ASSERT_OK(muster_hash_store_new(&hash));
  ASSERT_OK(muster_prefix_store_new("p", hash, &prefixed));
  EXPECT_OK(muster_store_set(prefixed, "k", 1, "v", 1, nullptr));
  ASSERT_OK(muster_prefix_store_underlying(prefixed, &underlying));
  muster_strings* keys = nullptr;
  EXPECT_OK(muster_store_list_keys(underlying, "", 0, &keys));
  EXPECT_THAT(Take(keys), ElementsAre("p/k"));
  muster_store_release(underlying);
  muster_store_release(prefixed);
  muster_store_release(hash);
}

// Returns "KIND key=value", or "nothing".
std::string NextChange(muster_watch* watch) {
  muster_key_change change = {};
  change.size = sizeof(change);
  int32_t found = -1;
  EXPECT_OK(muster_watch_next(watch, 20'000, &change, &found));
  if (found != 1) return "nothing";
  return std::to_string(change.kind) + " " +
         std::string(static_cast<const char*>(change.key.data),
                     change.key.size) +
         "=" +
         std::string(static_cast<const char*>(change.value.data),
                     change.value.size);
}

TEST(WatchTest, ChangesComeInOrderAndACancelEndsTheWait) {
  muster_store* const store = MakeCoordinatorStore();
  muster_watch_options options = {};
  options.size = sizeof(options);
  options.prefix = 1;
  muster_watch* watch = nullptr;
  ASSERT_OK(muster_store_watch(store, "w/", 2, &options, &watch));
  EXPECT_OK(muster_store_set(store, "w/a", 3, "1", 1, nullptr));
  EXPECT_OK(muster_store_set(store, "other", 5, "1", 1, nullptr));
  EXPECT_OK(muster_store_delete_key(store, "w/a", 3, nullptr));
  EXPECT_EQ(NextChange(watch), "0 w/a=1");
  int64_t put_revision = 0;
  EXPECT_OK(muster_watch_revision(watch, &put_revision));
  EXPECT_EQ(NextChange(watch), "1 w/a=");

  // A key that lives for a millisecond.
  muster_set_options set = {};
  set.size = sizeof(set);
  set.ttl_ms = 1;
  EXPECT_OK(muster_store_set(store, "w/b", 3, "2", 1, &set));
  EXPECT_EQ(NextChange(watch), "0 w/b=2");
  EXPECT_EQ(NextChange(watch), "2 w/b=");

  // Another watch begins after the first change.
  options.has_after_revision = 1;
  options.after_revision = put_revision;
  muster_watch* later = nullptr;
  ASSERT_OK(muster_store_watch(store, "w/", 2, &options, &later));
  EXPECT_EQ(NextChange(later), "1 w/a=");
  muster_watch_release(later);

  std::thread waiter([&] { EXPECT_EQ(NextChange(watch), "nothing"); });
  EXPECT_OK(muster_watch_cancel(watch));
  waiter.join();
  muster_watch_release(watch);
  muster_store_release(store);
}

TEST(WatchTest, AnEphemeralKeyGoesWithItsSession) {
  const auto server = StartServer();
  const std::string address = "127.0.0.1:" + std::to_string(server->port());
  muster_session* const mine = Connect(address);
  muster_session* const others = Connect(address);
  muster_store* store = nullptr;
  muster_store* their_store = nullptr;
  ASSERT_OK(muster_coordinator_store_new(mine, &store));
  ASSERT_OK(muster_coordinator_store_new(others, &their_store));
  muster_watch* watch = nullptr;
  ASSERT_OK(muster_store_watch(store, "e", 1, nullptr, &watch));
  muster_set_options set = {};
  set.size = sizeof(set);
  set.ephemeral = 1;
  EXPECT_OK(muster_store_set(their_store, "e", 1, "1", 1, &set));
  EXPECT_EQ(NextChange(watch), "0 e=1");
  EXPECT_OK(muster_session_leave(others, "done", 0));
  EXPECT_EQ(NextChange(watch), "3 e=");
  muster_store_release(their_store);
  muster_session_release(others);
  muster_watch_release(watch);
  muster_store_release(store);
  muster_session_release(mine);
}

}  // namespace
}  // namespace muster::c
