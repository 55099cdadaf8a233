#include "client/groups/live_groups.h"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "client/groups/error_resolver.h"
#include "client/groups/group_state.h"
#include "dataplane/testing/fake_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/session.h"

namespace muster::internal {
namespace {

MemberEvent Lost(int rank) {
  MemberEvent event;
  event.kind = MemberEvent::Kind::kLost;
  event.member.rank = rank;
  event.generation = 1;
  return event;
}

std::shared_ptr<GroupState> MakeGroup(LiveGroups& live,
                                      const std::string& name) {
  GroupStateOptions options;
  options.name = name;
  options.generation = 1;
  options.seats = {{.rank = 0}, {.rank = 1}};
  options.rank = 0;
  auto group = GroupState::Create(
      options, std::make_unique<dataplane::testing::FakeBackend>(), nullptr,
      live.NewResolver({.ranks = {0, 1}}));
  live.Add(group);
  return group;
}

TEST(LiveGroupsTest, EveryResolverHearsOfAllThatHappensAndHappened) {
  LiveGroups live;
  const auto early = live.NewResolver({.ranks = {0, 1}});
  live.OnEvent(Lost(1));
  const auto late = live.NewResolver({.ranks = {0, 1}});
  const auto other = live.NewResolver({.ranks = {0, 2}});
  EXPECT_FALSE(early->Known(1).ok());
  EXPECT_FALSE(late->Known(1).ok());
  EXPECT_TRUE(other->Known(1).ok());
  live.OnSessionOver(AbortedError("its state is lost"));
  EXPECT_TRUE(IsAborted(other->Known(1)));
  EXPECT_TRUE(IsAborted(live.NewResolver({.ranks = {0}})->Known(1)));
}

// A thread that wakes at the end of one group finds the others ended.
TEST(LiveGroupsTest, AllResolversKnowBeforeAnyGroupEnds) {
  LiveGroups live;
  std::vector<std::shared_ptr<ErrorResolver>> resolvers;
  int ended = 0;
  for (int i = 0; i < 3; ++i)
    resolvers.push_back(live.NewResolver({.ranks = {1}}));
  for (const auto& resolver : resolvers) {
    ErrorResolver::Group group;
    group.generation = 1;
    group.abort = [&](const Status&) {
      ++ended;
      for (const auto& any : resolvers) EXPECT_FALSE(any->Known(1).ok());
    };
    resolver->Begin(group);
  }
  live.OnEvent(Lost(1));
  EXPECT_EQ(ended, 3);
}

TEST(LiveGroupsTest, HeartbeatsCarryTheProgressOfTheGroupsThatLive) {
  LiveGroups live;
  const auto world = MakeGroup(live, "world");
  auto gone = MakeGroup(live, "gone");
  const auto other = MakeGroup(live, "other");
  gone->Shutdown();
  gone = nullptr;
  const std::vector<GroupProgress> progress = live.Progress();
  ASSERT_EQ(progress.size(), 2U);
  EXPECT_EQ(progress[0].group, "world");
  EXPECT_EQ(progress[1].group, "other");
}

TEST(LiveGroupsTest, WhoIsGoneOfSomeRanksAndWhoHasReported) {
  LiveGroups live;
  live.OnEvent(Lost(3));
  MemberEvent left = Lost(5);
  left.kind = MemberEvent::Kind::kLeft;
  left.left_ranks = {{.first = 6, .count = 2}};
  live.OnEvent(left);
  MemberEvent reported = Lost(1);
  reported.kind = MemberEvent::Kind::kFailed;
  live.OnEvent(reported);
  reported.kind = MemberEvent::Kind::kLeft;
  live.OnEvent(reported);
  MemberEvent waits = Lost(0);
  waits.kind = MemberEvent::Kind::kWaiting;
  live.OnEvent(waits);
  MemberEvent earlier = Lost(2);
  earlier.generation = 0;
  live.OnEvent(earlier);
  const LiveGroups::Absent absent = live.FindAbsent(1, {0, 1, 2, 3, 7, 8});
  ASSERT_EQ(absent.gone.size(), 2U);
  EXPECT_EQ(absent.gone[0].rank, 3);
  EXPECT_EQ(absent.gone[1].rank, 7);
  EXPECT_EQ(absent.left, std::vector<int>{7});
  EXPECT_EQ(absent.reported, std::vector<int>{1});
}

TEST(LiveGroupsTest, AGenerationIsOverWhenTheCoordinatorSaysSo) {
  LiveGroups live;
  MemberEvent lost = Lost(3);
  lost.generation_ended = false;
  live.OnEvent(lost);
  EXPECT_FALSE(live.IsOver(1));
  lost.generation_ended = true;
  live.OnEvent(lost);
  EXPECT_TRUE(live.IsOver(1));
  EXPECT_FALSE(live.IsOver(2));
}

TEST(LiveGroupsTest, AGroupThatConnectsIsToldUntilItIsThere) {
  LiveGroups live;
  {
    const LiveGroups::Connecting connecting(&live, "tp0", "new_group");
    const std::vector<GroupProgress> progress = live.Progress();
    ASSERT_EQ(progress.size(), 1U);
    EXPECT_EQ(progress[0].group, "tp0");
    EXPECT_EQ(progress[0].current, "new_group");
    EXPECT_EQ(progress[0].last_enqueued, 0);
  }
  EXPECT_TRUE(live.Progress().empty());
}

TEST(LiveGroupsTest, NoMoreThanTheCoordinatorTakes) {
  LiveGroups live;
  std::vector<std::shared_ptr<GroupState>> groups;
  for (size_t i = 0; i <= kProgressGroupsMax; ++i) {
    groups.push_back(MakeGroup(live, std::to_string(i)));
  }
  EXPECT_EQ(live.Progress().size(), kProgressGroupsMax);
}

}  // namespace
}  // namespace muster::internal
