#include "client/tools/diagnose/hung_ranks.h"

#include <chrono>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/v1/admin.pb.h"

namespace muster::tools {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Ranks 0 and 1 on "host-a", 2 on "host-b"; all have completed #41 of "world".
class HungRanksTest : public ::testing::Test {
 protected:
  HungRanksTest() {
    for (int rank = 0; rank < 3; ++rank) {
      v1::MemberInfo* member = job_.add_members();
      member->set_rank(rank);
      member->set_host(rank < 2 ? "host-a" : "host-b");
      member->set_pid(100 + rank);
      member->set_state(v1::MEMBER_STATE_ALIVE);
      v1::MemberProgress* progress = job_.add_progress();
      progress->mutable_age()->set_seconds(0);
      v1::GroupProgress* group = progress->add_groups();
      group->set_group("world");
      group->set_last_enqueued(41);
      group->set_last_completed(41);
    }
  }

  v1::GroupProgress& Group(v1::GetJobResponse& job, int rank) {
    return *job.mutable_progress(rank)->mutable_groups(0);
  }

  // Puts a rank into #42.
  void Waits(int rank, int for_seconds) {
    v1::GroupProgress& group = Group(job_, rank);
    group.set_last_enqueued(42);
    group.set_current("all_reduce #42 float32[8] sum");
    group.mutable_running_for()->set_seconds(for_seconds);
  }

  std::vector<HungRank> Look(const std::string& host) {
    return HungRanks(job_, nullptr, host, seconds(30));
  }

  v1::GetJobResponse job_;
};

TEST_F(HungRanksTest, IsWhoIsInCodeOfItsOwnOnThatHost) {
  Waits(0, 31);
  Waits(2, 40);
  const std::vector<HungRank> hung = Look("host-a");
  ASSERT_THAT(hung, SizeIs(1));
  EXPECT_EQ(hung[0].rank, 1);
  EXPECT_EQ(hung[0].pid, 101);
  EXPECT_THAT(hung[0].why,
              HasSubstr("others have waited in all_reduce #42 float32[8] sum "
                        "on group \"world\" for 40.0s, and it is in code of "
                        "its own: it has not called #42"));
  EXPECT_THAT(Look("host-b"), IsEmpty());
}

TEST_F(HungRanksTest, IsNobodyWhileNobodyHasWaitedForSoLong) {
  Waits(0, 29);
  Waits(2, 29);
  EXPECT_THAT(Look("host-a"), IsEmpty());
}

TEST_F(HungRanksTest, IsNotWhoWaitsInAnotherGroup) {
  Waits(0, 31);
  Waits(2, 31);
  v1::GroupProgress* other = job_.mutable_progress(1)->add_groups();
  other->set_group("other");
  other->set_last_enqueued(1);
  other->set_current("all_reduce #1 float32[8] sum");
  other->mutable_running_for()->set_seconds(31);
  EXPECT_THAT(Look("host-a"), IsEmpty());
}

TEST_F(HungRanksTest, IsNotWhoWaitsForAKey) {
  Waits(0, 31);
  Waits(2, 31);
  job_.mutable_members(1)->set_member("b");
  v1::KeyWait* wait = job_.add_key_waits();
  wait->set_member("b");
  wait->set_key("weights");
  EXPECT_THAT(Look("host-a"), IsEmpty());
}

TEST_F(HungRanksTest, IsNotWhoIsOnItsWay) {
  Waits(0, 31);
  Waits(2, 31);
  v1::GetJobResponse earlier = job_;
  Group(earlier, 1).set_last_enqueued(40);
  Group(earlier, 1).set_last_completed(40);
  EXPECT_THAT(HungRanks(job_, &earlier, "host-a", seconds(30)), IsEmpty());
}

}  // namespace
}  // namespace muster::tools
