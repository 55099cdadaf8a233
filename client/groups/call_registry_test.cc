#include "client/groups/call_registry.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/session.h"
#include "coordinator/server/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::internal {
namespace {

using coordinator::Server;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The registries of three ranks. The test decides how far each rank is.
class CallRegistryTest : public ::testing::Test {
 protected:
  CallRegistryTest() {
    coordinator::ServerOptions options;
    options.listen = "127.0.0.1:0";
    auto server = Server::Start(options);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    const std::shared_ptr<Session> session = Session::Connect(
        {.address = absl::StrCat("127.0.0.1:", server_->port()), .job = "j"});
    for (int rank = 0; rank < 3; ++rank) {
      registries_.push_back(std::make_unique<CallRegistry>(
          CallRegistry::Options{.session = session,
                                .key_prefix = "board/",
                                .seats = {},
                                .rank = rank,
                                .is_gone = [](int) { return false; }}));
    }
  }

  CallRegistry& Registry(int rank) {
    return *registries_[static_cast<size_t>(rank)];
  }

  std::unique_ptr<Server> server_;
  std::vector<std::unique_ptr<CallRegistry>> registries_;
};

// A call of all ranks, the number-th in their order.
SharedCall Numbered(int64_t number, const std::vector<int>& ranks) {
  return {.number = number,
          .place = absl::StrCat(number, "/", ranks.size()),
          .instance = absl::StrCat("group ", number),
          .meaning = absl::StrCat("makes group ", number, " of ", ranks.size()),
          .ranks = ranks};
}

// A call of these ranks only.
SharedCall Local(const std::string& name, const std::vector<int>& ranks) {
  return {.series = name,
          .place = absl::StrCat(name, "/", ranks.size()),
          .instance = name,
          .meaning = absl::StrCat("makes group ", name, " of ", ranks.size()),
          .ranks = ranks};
}

// Returns the error that both get in a long wait.
Status LookOften(CallRegistry::Waiting& one, CallRegistry::Waiting& other) {
  Status first;
  Status second;
  for (int i = 0; i < 3; ++i) {
    if (first.ok()) first = one.Look();
    if (second.ok()) second = other.Look();
  }
  EXPECT_EQ(first, second);
  return first;
}

TEST_F(CallRegistryTest, WhoWasStoppedAtTheEndOfACallIsNotInTheNextOnesWay) {
  const std::vector<int> ranks = {0, 1};
  const std::vector<std::pair<SharedCall, SharedCall>> pairs = {
      {Numbered(1, ranks), Numbered(2, ranks)},
      {Local("a", ranks), Local("b", ranks)},
      {Numbered(3, ranks), Local("c", ranks)}};
  for (const auto& [first, second] : pairs) {
    std::optional<CallRegistry::Waiting> slow(std::in_place, &Registry(1),
                                              first);
    EXPECT_EQ(slow->Look(), OkStatus());
    {
      CallRegistry::Waiting quick(&Registry(0), first);
      EXPECT_EQ(quick.Look(), OkStatus());
      quick.Succeed();
    }
    CallRegistry::Waiting next(&Registry(0), second);
    EXPECT_EQ(LookOften(next, *slow), OkStatus());
    slow->Succeed();
    slow.reset();
    CallRegistry::Waiting too(&Registry(1), second);
    EXPECT_EQ(LookOften(next, too), OkStatus());
  }
}

TEST_F(CallRegistryTest, RanksThatWaitForEachOtherInDifferentCallsAreTold) {
  CallRegistry::Waiting a(&Registry(0), Local("a", {0, 1}));
  CallRegistry::Waiting b(&Registry(1), Local("b", {0, 1}));
  const Status told = LookOften(a, b);
  EXPECT_TRUE(IsInvalidArgument(told)) << told;
  EXPECT_THAT(std::string(told.message()),
              AllOf(HasSubstr("rank 0 makes group a of 2"),
                    HasSubstr("rank 1 makes group b of 2")));
}

TEST_F(CallRegistryTest, WhoComesAfterADisagreementIsToldOnce) {
  const std::vector<std::pair<SharedCall, SharedCall>> pairs = {
      {Numbered(1, {0, 1, 2}), Numbered(1, {0, 1})},
      {Local("a", {0, 1, 2}), Local("b", {0, 1})}};
  for (const auto& [call, odd] : pairs) {
    Status told;
    {
      CallRegistry::Waiting a(&Registry(0), call);
      CallRegistry::Waiting b(&Registry(1), odd);
      told = LookOften(a, b);
    }
    ASSERT_TRUE(IsInvalidArgument(told)) << told;
    EXPECT_EQ(CallRegistry::Waiting(&Registry(2), call).Look(), told);
    // The ranks repeat the call.
    const SharedCall again =
        call.number == 0 ? call : Numbered(call.number + 1, call.ranks);
    CallRegistry::Waiting a(&Registry(0), again);
    CallRegistry::Waiting c(&Registry(2), again);
    EXPECT_EQ(LookOften(a, c), OkStatus());
  }
}

TEST_F(CallRegistryTest, WhatOneRankIsRefusedIsToldToTheOthers) {
  for (const SharedCall& call : {Numbered(1, {0, 1}), Local("a", {0, 1})}) {
    Registry(1).Refuse(call, "no such backend");
    CallRegistry::Waiting waiting(&Registry(0), call);
    const Status told = waiting.Look();
    EXPECT_TRUE(IsInvalidArgument(told)) << told;
    EXPECT_THAT(std::string(told.message()),
                HasSubstr("rank 1 was refused: no such backend"));
    // Only once.
    EXPECT_EQ(waiting.Look(), OkStatus());
  }
}

}  // namespace
}  // namespace muster::internal
