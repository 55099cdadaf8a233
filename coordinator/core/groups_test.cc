#include "coordinator/core/groups.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/testing/core_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

std::vector<Rank> Ranks(std::initializer_list<int32_t> values) {
  std::vector<Rank> ranks;
  for (const int32_t value : values) ranks.emplace_back(value);
  return ranks;
}

// A world of a, b, c, d, with ranks 0 to 3; e holds none.
class GroupTableTest : public testing::Test {
 protected:
  GroupTableTest() {
    auto formation = std::make_shared<Formation>();
    formation->generation = Generation(3);
    int32_t rank = 0;
    for (const char* name : {"a", "b", "c", "d", "e"}) {
      std::vector<Event> departed;
      const std::string host = std::string("host-") + name;
      EXPECT_TRUE(members_
                      .Register(From(name, 1, 1),
                                {.host = host, .pid = 10 + rank}, t0, departed,
                                notes_)
                      .ok());
      if (rank == 4) break;
      members_.AssignRank(MemberId(name), Rank(rank), Generation(3));
      formation->world.push_back(
          {MemberId(name), Incarnation(1), host, 10 + rank, ""});
      ++rank;
    }
    groups_.Reset(formation);
  }

  void TearDown() override { EXPECT_EQ(groups_.CheckInvariants(), OkStatus()); }

  // Returns the counts, or the error's code and text.
  std::string Register(const std::string& member,
                       std::vector<GroupDefinition> groups,
                       int64_t generation = 3,
                       const std::vector<std::string>& left = {}) {
    groups_.Register(From(member, 1, 1),
                     {.generation = Generation(generation),
                      .left = left,
                      .groups = std::move(groups)},
                     now_, out_);
    const Reply reply = std::exchange(out_.replies, {}).at(0);
    if (!reply.status.ok()) return reply.status.ToString();
    std::string counts;
    for (const int32_t count :
         std::get<GroupsReply>(reply.payload).registered) {
      counts += (counts.empty() ? "" : " ") + std::to_string(count);
    }
    return counts;
  }

  Instant now_ = t0;
  Limits limits_;
  Journal journal_{/*on=*/true};
  Membership members_{MembershipOptions(), &limits_, &journal_};
  GroupTable groups_{&limits_, &members_, &journal_};
  Outbox out_;
  Outbox notes_;
};

TEST_F(GroupTableTest, EachRankIsCountedOnce) {
  EXPECT_EQ(Register("a", {{"tp0", Ranks({0, 1})}, {"dp0", Ranks({0, 2})}}),
            "1 1");
  EXPECT_EQ(Register("a", {{"tp0", Ranks({0, 1})}}), "1");
  EXPECT_EQ(Register("b", {{"tp0", Ranks({0, 1})}}, 0), "2");
  EXPECT_EQ(*groups_.FindRanks("dp0"), Ranks({0, 2}));
  EXPECT_EQ(groups_.FindRanks("dp1"), nullptr);
  EXPECT_EQ(Register("a", {}), "");
}

TEST_F(GroupTableTest, OtherRanksNameBothMembersAndBothLists) {
  Register("a", {{"tp0", Ranks({0, 1, 2})}});
  EXPECT_EQ(Register("b", {{"tp0", Ranks({1, 2})}}),
            "INVALID_ARGUMENT: group \"tp0\": member \"b\" (host-b, pid 11) "
            "registers 2 ranks (1, 2), member \"a\" (host-a, pid 10) "
            "registered 3 ranks (0, 1, 2)");
}

TEST_F(GroupTableTest, ACallRegistersAllItsGroupsOrNone) {
  Register("a", {{"tp0", Ranks({0, 1})}});
  Register("b", {{"new", Ranks({1, 2})}, {"tp0", Ranks({1})}});
  EXPECT_EQ(groups_.FindRanks("new"), nullptr);
  EXPECT_EQ(groups_.size(), 1);
}

TEST_F(GroupTableTest, MalformedGroupsAreRefused) {
  EXPECT_EQ(Register("a", {{"x", Ranks({0})}, {"", Ranks({0})}}),
            "INVALID_ARGUMENT: groups: number 2 of 2 has no name");
  EXPECT_EQ(Register("a", {{"x", {}}}),
            "INVALID_ARGUMENT: group \"x\" has no ranks");
  EXPECT_EQ(Register("a", {{"x", Ranks({0, 4})}}),
            "INVALID_ARGUMENT: group \"x\": rank 4 is outside of world size 4 "
            "(ranks 0 to 3)");
  EXPECT_EQ(Register("a", {{"x", Ranks({-1, 0})}}),
            "INVALID_ARGUMENT: group \"x\": rank -1 is outside of world size 4 "
            "(ranks 0 to 3)");
  EXPECT_EQ(Register("a", {{"x", Ranks({0, 2, 1})}}),
            "INVALID_ARGUMENT: group \"x\": rank 1 follows rank 2; ranks must "
            "ascend");
  EXPECT_EQ(Register("a", {{"x", Ranks({0, 0})}}),
            "INVALID_ARGUMENT: group \"x\": rank 0 follows rank 0; ranks must "
            "ascend");
  EXPECT_EQ(Register("d", {{"x", Ranks({0, 1})}}),
            "INVALID_ARGUMENT: group \"x\": rank 3, which registers it, is not "
            "among its 2 ranks (0, 1)");
  EXPECT_EQ(Register("a", {{"x", Ranks({0})}, {"x", Ranks({0})}}),
            "INVALID_ARGUMENT: group \"x\" is listed twice");
  EXPECT_EQ(groups_.size(), 0);
}

TEST_F(GroupTableTest, TheGenerationMustBeTheNewestAndTheCallerOfIt) {
  EXPECT_EQ(Register("a", {}, 2),
            "ABORTED: groups: generation 2 is over, current is 3; rendezvous "
            "again");
  EXPECT_EQ(Register("a", {}, 4),
            "INVALID_ARGUMENT: groups: generation 4 has not begun, current is "
            "3; take the number that the rendezvous returned");
  EXPECT_EQ(Register("e", {}),
            "ABORTED: groups: member \"e\" holds no rank in generation 3; "
            "rendezvous again");
  groups_.Reset(nullptr);
  EXPECT_EQ(Register("a", {}),
            "ABORTED: groups: no generation has formed; rendezvous first");
}

TEST_F(GroupTableTest, ALongListIsShortened) {
  std::vector<Rank> many;
  many.reserve(20);
  for (int32_t i = 0; i < 20; ++i) many.emplace_back(i);
  EXPECT_EQ(RanksText(many, many.size()),
            "20 ranks (0, 1, 2, 3, 4, 5, 6, 7 and 12 more)");
  EXPECT_EQ(RanksText(Ranks({4}), 1), "1 rank (4)");
}

TEST_F(GroupTableTest, Limits) {
  limits_.groups = 2;
  limits_.group_ranks = 5;
  limits_.name_bytes = 8;
  EXPECT_EQ(Register("a", {{"x", Ranks({0, 1, 2})}}), "1");
  EXPECT_EQ(Register("a", {{"y", Ranks({0})}, {"z", Ranks({0})}}),
            "RESOURCE_EXHAUSTED: limit groups is 2, offered 3 (group \"z\")" +
                LimitAdvice("groups"));
  EXPECT_EQ(Register("a", {{"y", Ranks({0, 1, 2})}}),
            "RESOURCE_EXHAUSTED: limit group_ranks is 5, offered 6 (group "
            "\"y\")");
  EXPECT_EQ(Register("a", {{"123456789", Ranks({0})}}),
            "RESOURCE_EXHAUSTED: limit name_bytes is 8, offered 9 (group "
            "\"123456789\")");
  EXPECT_EQ(Register("a", {{"y", Ranks({0}), "longer than 8 bytes"}}), "1");
  EXPECT_EQ(groups_.Snapshot(now_).at(1).description, "longer t");
}

TEST_F(GroupTableTest, ASnapshotListsWhoIsMissing) {
  Register("b", {{"tp0", Ranks({0, 1, 3}), "tensor parallel"}});
  const std::vector<GroupSnapshot> snapshot = groups_.Snapshot(now_);
  ASSERT_THAT(snapshot, SizeIs(1));
  EXPECT_EQ(snapshot[0].name, "tp0");
  EXPECT_EQ(snapshot[0].description, "tensor parallel");
  EXPECT_EQ(*snapshot[0].ranks, Ranks({0, 1, 3}));
  EXPECT_EQ(snapshot[0].registered, 1);
  EXPECT_EQ(snapshot[0].missing, Ranks({0, 3}));
}

TEST_F(GroupTableTest, ASnapshotTellsSinceWhenItWaitsForRanks) {
  const auto forming = [this] {
    return groups_.Snapshot(now_).at(0).forming_for;
  };
  Register("a", {{"tp0", Ranks({0, 1, 2})}});
  now_ = t0 + 5s;
  Register("b", {{"tp0", Ranks({0, 1, 2})}});
  EXPECT_EQ(forming(), 5s);
  // The same as before the restart.
  GroupTable again(&limits_, &members_, &journal_);
  again.Restore(groups_.MakeRecord("tp0"), now_);
  again.Restore(groups_.MakeRecord("tp0", Rank(0)));
  EXPECT_EQ(again.Snapshot(now_ + 2s).at(0).forming_for, 2s);
  Register("c", {{"tp0", Ranks({0, 1, 2})}});
  EXPECT_EQ(forming(), std::nullopt);
  again.Restore(groups_.MakeRecord("tp0", Rank(1)));
  again.Restore(groups_.MakeRecord("tp0", Rank(2)));
  EXPECT_EQ(again.Snapshot(now_).at(0).forming_for, std::nullopt);
  // A member that leaves later is not waited for.
  Register("c", {}, 3, {"tp0"});
  EXPECT_EQ(forming(), std::nullopt);
}

TEST_F(GroupTableTest, RecordsBringThemBack) {
  Register("b", {{"tp0", Ranks({0, 1}), "text"}});
  EXPECT_THAT(journal_.groups, ElementsAre("tp0"));
  EXPECT_THAT(journal_.group_ranks, ElementsAre(std::pair("tp0", Rank(1))));
  GroupTable again(&limits_, &members_, &journal_);
  auto formation = std::make_shared<Formation>();
  formation->generation = Generation(3);
  formation->world.resize(4);
  again.RestoreFormation(formation);
  again.Restore(groups_.MakeRecord("tp0"), t0);
  again.Restore(groups_.MakeRecord("tp0", Rank(1)));
  EXPECT_EQ(again.CheckInvariants(), OkStatus());
  EXPECT_EQ(again.Snapshot(now_).at(0).missing, Ranks({0}));
  EXPECT_EQ(again.Snapshot(now_).at(0).description, "text");
  EXPECT_EQ(again.MakeRecord("tp0").founder, Rank(1));
  EXPECT_TRUE(again.MakeRecord("tp0", Rank(0)).erased);
}

TEST_F(GroupTableTest, TheLastToLeaveEndsIt) {
  limits_.group_ranks = 2;
  Register("a", {{"tp0", Ranks({0, 1})}});
  Register("b", {{"tp0", Ranks({0, 1})}});
  journal_.Clear();
  // Leaving an unknown group, or leaving twice, does not matter.
  EXPECT_EQ(Register("c", {}, 3, {"tp0", "none"}), "");
  EXPECT_EQ(Register("a", {}, 3, {"tp0", "tp0"}), "");
  EXPECT_EQ(groups_.Snapshot(now_).at(0).missing, Ranks({0}));
  EXPECT_THAT(journal_.groups, IsEmpty());
  EXPECT_THAT(journal_.group_ranks, ElementsAre(std::pair("tp0", Rank(0))));
  // A member that registers again counts again.
  EXPECT_EQ(Register("a", {{"tp0", Ranks({0, 1})}}), "2");
  EXPECT_EQ(Register("b", {}, 3, {"tp0"}), "");
  journal_.Clear();
  // The left group's place is free for groups of the same call.
  EXPECT_EQ(Register("a", {{"dp0", Ranks({0, 3})}}, 3, {"tp0"}), "1");
  EXPECT_EQ(groups_.FindRanks("tp0"), nullptr);
  EXPECT_THAT(journal_.groups, UnorderedElementsAre("tp0", "dp0"));
  EXPECT_TRUE(groups_.MakeRecord("tp0").erased);
  EXPECT_TRUE(groups_.MakeRecord("tp0", Rank(0)).erased);
}

TEST_F(GroupTableTest, WhoHasLeftAGroupMayBeRefusedAnother) {
  Register("a", {{"tp0", Ranks({0})}});
  Register("a", {{"x", Ranks({1})}}, 3, {"tp0"});
  EXPECT_EQ(groups_.size(), 0);
}

TEST_F(GroupTableTest, ThoseThatAreGoneKeepNoGroup) {
  for (const char* member : {"a", "b", "c"}) {
    Register(member, {{"tp0", Ranks({0, 1, 2})}});
  }
  Register("a", {}, 3, {"tp0"});
  std::vector<Event> departed;
  members_.Leave(*members_.Find(MemberId("b")), "done", t0, departed, notes_);
  EXPECT_EQ(groups_.size(), 1);
  Register("c", {}, 3, {"tp0"});
  EXPECT_EQ(groups_.size(), 0);
  EXPECT_TRUE(groups_.MakeRecord("tp0", Rank(1)).erased);
}

TEST_F(GroupTableTest, TheNextGenerationHasNone) {
  Register("b", {{"tp0", Ranks({0, 1})}});
  journal_.Clear();
  groups_.Reset(nullptr);
  EXPECT_THAT(groups_.Snapshot(now_), IsEmpty());
  EXPECT_THAT(journal_.groups, ElementsAre("tp0"));
  EXPECT_THAT(journal_.group_ranks, ElementsAre(std::pair("tp0", Rank(1))));
  EXPECT_TRUE(groups_.MakeRecord("tp0").erased);
  EXPECT_TRUE(groups_.MakeRecord("tp0", Rank(1)).erased);
}

}  // namespace
}  // namespace muster::coordinator::core
