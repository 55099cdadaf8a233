#include "client/internal/live_groups.h"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/internal/failure_judge.h"
#include "client/internal/group_state.h"
#include "client/session.h"
#include "dataplane/testing/fake_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

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
      live.NewJudge({.ranks = {0, 1}}));
  live.Add(group);
  return group;
}

TEST(LiveGroupsTest, EveryJudgeHearsOfAllThatHappensAndHappened) {
  LiveGroups live;
  const auto early = live.NewJudge({.ranks = {0, 1}});
  live.OnEvent(Lost(1));
  const auto late = live.NewJudge({.ranks = {0, 1}});
  const auto other = live.NewJudge({.ranks = {0, 2}});
  EXPECT_FALSE(early->Known(1).ok());
  EXPECT_FALSE(late->Known(1).ok());
  EXPECT_TRUE(other->Known(1).ok());
  live.OnSessionOver(absl::AbortedError("its state is lost"));
  EXPECT_TRUE(absl::IsAborted(other->Known(1)));
  EXPECT_TRUE(absl::IsAborted(live.NewJudge({.ranks = {0}})->Known(1)));
}

// Whoever is woken by the end of one group finds the others ended.
TEST(LiveGroupsTest, AllJudgesKnowBeforeAnyGroupEnds) {
  LiveGroups live;
  std::vector<std::shared_ptr<FailureJudge>> judges;
  int ended = 0;
  for (int i = 0; i < 3; ++i) judges.push_back(live.NewJudge({.ranks = {1}}));
  for (const auto& judge : judges) {
    FailureJudge::Group group;
    group.generation = 1;
    group.abort = [&](const absl::Status&) {
      ++ended;
      for (const auto& any : judges) EXPECT_FALSE(any->Known(1).ok());
    };
    judge->Begin(group);
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
