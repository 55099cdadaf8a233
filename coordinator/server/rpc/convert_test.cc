#include "coordinator/server/rpc/convert.h"

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>

#include "coordinator/server/rpc/apply.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

google::protobuf::Duration Wire(int64_t whole, int32_t nanos) {
  google::protobuf::Duration duration;
  duration.set_seconds(whole);
  duration.set_nanos(nanos);
  return duration;
}

TEST(ConvertTest, DurationsSurviveBothWays) {
  for (const core::Duration duration :
       {core::Duration(0), core::Duration(milliseconds(1500)),
        core::Duration(nanoseconds(1)), core::Duration(-milliseconds(1500)),
        core::Duration(std::chrono::hours(24 * 365))}) {
    google::protobuf::Duration wire;
    FillDuration(duration, &wire);
    EXPECT_EQ(ToDuration(wire), duration);
  }
}

TEST(ConvertTest, DurationsOutOfRangeBecomeTheEnds) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int32_t kNanosMax = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(ToDuration(Wire(kMax, kNanosMax)), core::Duration::max());
  EXPECT_EQ(ToDuration(Wire(kMin, 0)), core::Duration::min());
  // The largest number of seconds that fits, with too many nanoseconds.
  EXPECT_GT(ToDuration(Wire(9'223'372'034, kNanosMax)), seconds(9'223'372'030));
}

TEST(ConvertTest, DurationsThatNobodyCanMeanNameFieldAndValue) {
  EXPECT_TRUE(CheckDuration("timeout", Wire(0, 0)).ok());
  EXPECT_TRUE(CheckDuration("timeout", Wire(5, 999'999'999)).ok());
  EXPECT_EQ(
      CheckDuration("timeout", Wire(-1, 0)),
      InvalidArgumentError("timeout is -1s and 0ns, must not be negative"));
  EXPECT_EQ(
      CheckDuration("timeout", Wire(1, -500)),
      InvalidArgumentError("timeout is 1s and -500ns, must not be negative"));
  EXPECT_EQ(CheckDuration("timeout", Wire(0, 1'000'000'000)),
            InvalidArgumentError("timeout has 1000000000 nanos, must be "
                                 "at most 999999999"));
}

TEST(ConvertTest, DepartureTellsEverythingKnown) {
  core::Event event;
  event.kind = core::EventKind::kReplaced;
  event.member = core::MemberId("b");
  event.incarnation = core::Incarnation(7);
  event.rank = core::Rank(3);
  event.host = "trainer-3";
  event.pid = 99;
  event.cause = "why";
  event.last_progress = "what";
  v1::MemberInfo info;
  FillMember(event, &info);
  EXPECT_EQ(info.state(), v1::MEMBER_STATE_REPLACED);
  EXPECT_EQ(info.member(), "b");
  EXPECT_EQ(info.incarnation(), 7u);
  EXPECT_EQ(info.rank(), 3);
  EXPECT_EQ(info.host(), "trainer-3");
  EXPECT_EQ(info.pid(), 99);
  EXPECT_EQ(info.cause(), "why");
  EXPECT_EQ(info.last_progress(), "what");
}

// A client that does not know `group_failure` must see no departure.
TEST(ConvertTest, ToOlderClientsAFailedGroupIsNoDeparture) {
  core::Event event;
  event.kind = core::EventKind::kGroupFailed;
  event.group_failure = std::make_shared<const core::GroupFailure>();
  v1::MemberEvent wire;
  FillEvent(event, &wire);
  EXPECT_TRUE(wire.has_group_failure());
  EXPECT_EQ(wire.member().state(), v1::MEMBER_STATE_ALIVE);
  EXPECT_EQ(wire.member().rank(), -1);
  EXPECT_FALSE(wire.generation_ended());
}

TEST(ConvertTest, MemberWithoutARankHasMinusOne) {
  v1::MemberInfo info;
  FillMember(core::MemberSnapshot(), &info);
  EXPECT_EQ(info.rank(), -1);
}

}  // namespace
}  // namespace muster::coordinator
