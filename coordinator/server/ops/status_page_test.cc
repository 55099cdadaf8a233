#include "coordinator/server/ops/status_page.h"

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

core::MemberSnapshot Member(const std::string& name, int rank) {
  core::MemberSnapshot member;
  member.id = core::MemberId(name);
  member.rank = core::Rank(rank);
  member.registration.host = "host-" + name;
  member.registration.pid = 7;
  member.heard_ago = seconds(3);
  return member;
}

StatusPageInput OneJob() {
  StatusPageInput input;
  input.uptime = seconds(90);
  input.sessions = 3;
  input.jobs.emplace_back();
  input.jobs[0].name = "llama";
  input.jobs[0].operations_per_second = 12.4;
  core::JobSnapshot& job = input.jobs[0].state;
  job.generation = core::Generation(4);
  job.generation_running = true;
  job.world_size = 2;
  job.keys = 17;
  job.queue_items = 5;
  job.waiters = 6;
  return input;
}

TEST(StatusPageTest, TellsWhatAJobIsAndDoes) {
  EXPECT_THAT(
      RenderStatusPage(OneJob()),
      AllOf(HasSubstr("up 90s, 1 jobs, 3 sessions"), HasSubstr("job llama"),
            HasSubstr("generation 4 (over), world size 2"),
            HasSubstr("17 keys"), HasSubstr("5 queue items"),
            HasSubstr("6 calls wait"), HasSubstr("12 calls per second"),
            HasSubstr("No members"), Not(HasSubstr("draining"))));
  StatusPageInput draining = OneJob();
  draining.draining = true;
  EXPECT_THAT(RenderStatusPage(draining), HasSubstr("draining"));
}

TEST(StatusPageTest, AJobWhoseMembersAreGoneComesLastAndIsOver) {
  StatusPageInput input = OneJob();
  input.jobs[0].name = "finished";
  input.jobs[0].state.members = {Member("a", 0)};
  input.jobs[0].state.members[0].state = core::MemberState::kLeft;
  input.jobs.push_back(OneJob().jobs[0]);
  input.jobs[1].state.members = {Member("b", 0)};
  const std::string page = RenderStatusPage(input);
  EXPECT_LT(page.find("job llama</h2><p>generation 4, world"),
            page.find("job finished</h2><p>generation 4 (over), world"));
  EXPECT_THAT(page, HasSubstr("job finished"));
}

TEST(StatusPageTest, MembersStandByRankAndSayWhatBecameOfThem) {
  StatusPageInput input = OneJob();
  core::JobSnapshot& job = input.jobs[0].state;
  job.members = {Member("a", 1), Member("b", 0)};
  job.members[0].state = core::MemberState::kLost;
  job.members[0].cause = "no heartbeat for 11s";
  job.members[1].last_progress = "in all_reduce #8 on group \"world\"";
  job.generation_running = false;
  job.generation_end = "rank 1 (host-a, pid 7) lost: no heartbeat for 11s";
  const std::string page = RenderStatusPage(input);
  EXPECT_THAT(page, AllOf(HasSubstr("generation 4 (over)"),
                          HasSubstr("ended by rank 1 (host-a, pid 7) lost"),
                          HasSubstr("lost: no heartbeat for 11s"),
                          HasSubstr("all_reduce #8"), HasSubstr("3s ago")));
  EXPECT_LT(page.find("host-b"), page.find("<td>host-a"));
}

TEST(StatusPageTest, OpenBarriersAndTheRendezvousSayWhoIsMissing) {
  StatusPageInput input = OneJob();
  core::JobSnapshot& job = input.jobs[0].state;
  core::BarrierSnapshot barrier;
  barrier.group = "world";
  barrier.barrier = "epoch";
  barrier.instance = 3;
  barrier.expected = 12;
  barrier.arrived = 2;
  barrier.open_for = seconds(5);
  for (int rank = 2; rank < 12; ++rank) {
    core::MissingRank missing;
    missing.rank = core::Rank(rank);
    missing.host = "host-" + std::to_string(rank);
    barrier.missing.push_back(missing);
  }
  job.barriers = {barrier};
  job.open_barriers = 1;
  job.rendezvous_waiting = "rendezvous: 1 of 2 ranks joined in 3s; missing 1";
  EXPECT_THAT(RenderStatusPage(input),
              AllOf(HasSubstr("epoch #3"), HasSubstr("2 of 12"),
                    HasSubstr("2 (host-2), 3 (host-3)"),
                    HasSubstr("9 (host-9) and 2 more"), HasSubstr("5s"),
                    HasSubstr("1 of 2 ranks joined in 3s; missing 1")));
}

// The page may be read without other network access, and contains clients'
// texts.
TEST(StatusPageTest, LoadsNothingAndRunsNothing) {
  StatusPageInput input = OneJob();
  core::JobSnapshot& job = input.jobs[0].state;
  job.members = {Member("<script>alert(1)</script>", 0)};
  job.members[0].cause = "\"><img src=x>";
  job.rendezvous_closed = "<b>me</b>";
  job.rendezvous_waiting = "<i>";
  job.generation_end = "<u>";
  const std::string page = RenderStatusPage(input);
  for (const char* const foreign : {"<script", "<img", "<b>me", "<i>", "<u>",
                                    "http:", "https:", "url(", "@import"}) {
    EXPECT_THAT(page, Not(HasSubstr(foreign))) << foreign;
  }
}

core::BarrierSnapshot Barrier(int32_t expected, int32_t missing_named) {
  core::BarrierSnapshot barrier;
  barrier.barrier = "b";
  barrier.expected = expected;
  barrier.arrived = 1;
  for (int32_t i = 1; i <= missing_named; ++i) {
    core::MissingRank& missing = barrier.missing.emplace_back();
    missing.rank = core::Rank(i);
    missing.host = absl::StrCat("host-", i);
  }
  return barrier;
}

std::string Page(core::JobSnapshot job) {
  StatusPageInput input;
  input.jobs.push_back({"demo", std::move(job), 0});
  return RenderStatusPage(input);
}

TEST(StatusPageTest, WhatASnapshotLeavesOutIsCounted) {
  core::JobSnapshot job;
  job.barriers = {Barrier(100, 64)};
  job.open_barriers = 300;
  const std::string page = Page(job);
  EXPECT_THAT(page, HasSubstr("8 (host-8) and 91 more<"));
  EXPECT_THAT(page, HasSubstr("and 299 more barriers"));
}

TEST(StatusPageTest, WhereAllAreShownNothingIsCounted) {
  core::JobSnapshot job;
  job.barriers = {Barrier(3, 2)};
  job.open_barriers = 1;
  const std::string page = Page(job);
  EXPECT_THAT(page, HasSubstr("2 (host-2)<"));
  EXPECT_THAT(page, Not(HasSubstr("more")));
}

TEST(StatusPageTest, NamesAreNoMarkup) {
  core::JobSnapshot job;
  job.rendezvous_closed = "<script>\x1b[2J\u202E";
  EXPECT_THAT(Page(job), HasSubstr("closed by "
                                   "&lt;script&gt;\\x1b[2J\\xe2\\x80\\xae"));
}

}  // namespace
}  // namespace muster::coordinator
