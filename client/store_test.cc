// The coordinator's store beyond store_conformance_test, prefixes, and stores
// that a program defines.

#include "muster/store.h"

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/server/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"
#include "muster/hash_store.h"
#include "muster/session.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

Status CatchError(const std::function<void()>& function) {
  try {
    function();
  } catch (const DistStoreError& error) {
    return error.status();
  }
  return OkStatus();
}

TEST(CoordinatorStoreTest, PastALimitTheStoreStaysUsable) {
  auto server = coordinator::Server::Start({});
  ASSERT_TRUE(server.ok()) << server.status();
  SessionOptions options;
  options.address = "127.0.0.1:" + std::to_string((*server)->port());
  CoordinatorStore store(Session::Connect(std::move(options)));
  EXPECT_EQ(
      CatchError([&] { store.Set(std::string(100'000, 'k'), ""); }).code(),
      StatusCode::kResourceExhausted);
  EXPECT_EQ(
      CatchError([&] { store.Set("k", std::string(65 << 20, 'v')); }).code(),
      StatusCode::kResourceExhausted);
  store.Set("k", "v");
  EXPECT_EQ(store.Get("k"), "v");
}

TEST(PrefixStoreTest, Nests) {
  const auto base = std::make_shared<HashStore>();
  const auto inner = std::make_shared<PrefixStore>("b", base);
  PrefixStore nested("a", inner);
  nested.Set("key", "v");
  EXPECT_EQ(base->Get("b/a/key"), "v");
  EXPECT_EQ(nested.underlying_store(), inner);
  EXPECT_EQ(nested.underlying_non_prefix_store(), base);
  nested.SetTimeout(seconds(7));
  EXPECT_EQ(base->timeout(), seconds(7));
  EXPECT_EQ(nested.Clone()->Get("key"), "v");
  EXPECT_THROW(PrefixStore("a", nullptr), DistStoreError);
}

// The pure virtual part of Store, which every store must have.
class BasicStore : public Store {
 public:
  using Store::Set;
  using Store::Wait;
  void Set(std::string_view key, std::string_view value) override {
    values[std::string(key)] = std::string(value);
  }
  std::string Get(std::string_view key) override {
    return values.at(std::string(key));
  }
  int64_t Add(std::string_view, int64_t) override { return 0; }
  bool Check(const std::vector<std::string>&) override { return false; }
  std::string CompareSet(std::string_view key, std::string_view expected,
                         std::string_view desired) override {
    const std::string name(key);
    if (on_compare_set) on_compare_set();
    if (!values.contains(name) && !expected.empty()) {
      return std::string(expected);
    }
    if (values[name] == expected) values[name] = std::string(desired);
    return values[name];
  }
  int64_t NumKeys() override { return 0; }
  void Wait(const std::vector<std::string>&, milliseconds) override {}
  void SetTimeout(milliseconds) override {}
  milliseconds timeout() const override { return seconds(20); }

  std::map<std::string, std::string> values;
  std::function<void()> on_compare_set;
};

TEST(BasicStoreTest, WhatAStoreDoesNotHaveIsAnErrorThatNamesIt) {
  BasicStore store;
  const std::map<std::string, std::function<void()>> verbs = {
      {"DeleteKey", [&] { store.DeleteKey("k"); }},
      {"ListKeys", [&] { store.ListKeys(""); }},
      {"Append", [&] { store.Append("k", ""); }},
      {"MultiGet", [&] { store.MultiGet({"k"}); }},
      {"MultiSet", [&] { store.MultiSet({"k"}, {"v"}); }},
      {"TryGet", [&] { store.TryGet("k"); }},
      {"CompareAndSet", [&] { store.CompareAndSet("k", 0, ""); }},
      {"DeletePrefix", [&] { store.DeletePrefix("k"); }},
      {"QueuePush", [&] { store.QueuePush("q", ""); }},
      {"QueuePop", [&] { store.QueuePop("q"); }},
      {"QueueLen", [&] { store.QueueLen("q"); }},
      {"Watch", [&] { store.Watch("k"); }},
      {"Clone", [&] { store.Clone(); }},
      {"Set with a time to live or an owner",
       [&] { store.Set("k", "", {.ttl = seconds(1)}); }}};
  for (const auto& [name, call] : verbs) {
    EXPECT_EQ(CatchError(call),
              UnimplementedError("Not implemented. This store has no " + name));
  }
  EXPECT_FALSE(store.HasExtendedApi());
}

TEST(BasicStoreTest, APrefixMakesTheExtendedPartOfTheBasicOne) {
  const auto base = std::make_shared<BasicStore>();
  PrefixStore store("f", base);
  EXPECT_FALSE(store.HasExtendedApi());
  store.Append("foo", "po");
  store.Append("foo", "tato");
  EXPECT_EQ(base->values["f/foo"], "potato");
  store.Append("twice", "ab");
  store.Append("twice", "ab");
  EXPECT_EQ(store.Get("twice"), "abab");
  store.MultiSet({"a", "b"}, {"c", "d"});
  EXPECT_THAT(store.MultiGet({"a", "b", "foo"}),
              ElementsAre("c", "d", "potato"));
}

TEST(BasicStoreTest, AnAppendThatMeetsAnotherOneComesAfterIt) {
  const auto base = std::make_shared<BasicStore>();
  int calls = 0;
  // Between the read and the write of the first Append.
  base->on_compare_set = [&] {
    if (++calls == 2) base->values["f/k"] = "other,";
  };
  PrefixStore("f", base).Append("k", "mine");
  EXPECT_EQ(base->values["f/k"], "other,mine");
}

}  // namespace
}  // namespace muster
