#include "client/tools/diagnose/tool_text.h"

#include <nlohmann/json.hpp>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::tools {
namespace {

v1::GetJobResponse Job() {
  v1::GetJobResponse job;
  job.mutable_summary()->set_job("demo");
  job.mutable_summary()->set_generation(3);
  job.mutable_summary()->set_generation_running(true);
  job.mutable_summary()->set_world_size(2);
  job.mutable_summary()->set_members_alive(1);
  return job;
}

v1::MemberInfo Member(int rank, const std::string& name) {
  v1::MemberInfo member;
  member.set_rank(rank);
  member.set_member(name);
  member.set_host("host-" + name);
  member.set_pid(7);
  member.set_state(v1::MEMBER_STATE_ALIVE);
  member.set_silent_ms(1234);
  return member;
}

TEST(CtlTextTest, Status) {
  v1::ListJobsResponse jobs;
  jobs.set_coordinator_epoch(42);
  jobs.mutable_uptime()->set_seconds(3725);
  jobs.mutable_uptime()->set_nanos(999'000'000);
  jobs.set_version("1.2.3");
  jobs.set_sessions(5);
  jobs.add_jobs()->set_members_alive(3);
  jobs.add_jobs()->set_members_alive(1);
  EXPECT_EQ(StatusText("h:1", jobs),
            "coordinator h:1 serves\n"
            "  version 1.2.3, up 1h2m5s, epoch 42\n"
            "  jobs 2, members alive 4, sessions 5\n"
            "  jobs are lost with the process\n");
  jobs.set_draining(true);
  jobs.set_durable(true);
  EXPECT_EQ(StatusText("h:1", jobs),
            "coordinator h:1 drains\n"
            "  version 1.2.3, up 1h2m5s, epoch 42\n"
            "  jobs 2, members alive 4, sessions 5\n"
            "  jobs are kept over a restart\n");
}

TEST(CtlTextTest, JobsWhoseMembersAreGoneComeLastAndAreOver) {
  v1::ListJobsResponse jobs;
  for (const char* name : {"finished", "runs", "store"}) {
    jobs.add_jobs()->set_job(name);
  }
  for (int i = 0; i < 2; ++i) {
    jobs.mutable_jobs(i)->set_generation(1);
    jobs.mutable_jobs(i)->set_generation_running(true);
  }
  jobs.mutable_jobs(1)->set_members_alive(2);
  const std::string text = JobsText(jobs);
  EXPECT_LT(text.find("runs      1  "), text.find("store"));
  EXPECT_LT(text.find("store"), text.find("finished  1 (over)"));
  EXPECT_NE(text.find("finished  1 (over)"), std::string::npos);
}

TEST(CtlTextTest, JobsStandInColumns) {
  v1::ListJobsResponse jobs;
  EXPECT_EQ(JobsText(jobs), "no jobs\n");
  v1::JobSummary* job = jobs.add_jobs();
  job->set_job("a");
  job = jobs.add_jobs();
  job->set_job("a-longer-name");
  job->set_generation(12);
  job->set_world_size(4);
  job->set_members_alive(3);
  job->set_keys(2);
  job->set_store_bytes(123456);
  job->set_queue_items(6);
  job->set_waiters(7);
  job->set_open_barriers(1);
  job->set_operations_per_second(1234.5);
  EXPECT_EQ(
      JobsText(jobs),
      "JOB            GENERATION  WORLD  ALIVE  KEYS  BYTES   QUEUED  WAITING  "
      "BARRIERS  CALLS/S\n"
      "a              -           0      0      0     0       0       0        "
      "0         0\n"
      "a-longer-name  12 (over)   4      3      2     123456  6       7        "
      "1         1235\n");
}

TEST(CtlTextTest, MembersSayWhatBecameOfThem) {
  v1::GetJobResponse job = Job();
  EXPECT_EQ(MembersText(job),
            "job demo: generation 3, world size 2, 1 alive\nno members\n");
  *job.add_members() = Member(0, "a");
  job.mutable_members(0)->set_last_progress("all_reduce #4 on group \"world\"");
  *job.add_members() = Member(-1, "b");
  job.mutable_members(1)->set_state(v1::MEMBER_STATE_LOST);
  job.mutable_members(1)->set_cause("no heartbeat for 11s (lease 10s)");
  job.mutable_members(1)->set_silent_ms(71'999);
  job.set_generation_end("rank 1 (host-b, pid 7) lost: no heartbeat for 11s");
  job.set_rendezvous_waiting("rendezvous: 1 of 2 ranks joined in 3s; missing");
  EXPECT_EQ(MembersText(job),
            "job demo: generation 3, world size 2, 1 alive\n"
            "ended by rank 1 (host-b, pid 7) lost: no heartbeat for 11s\n"
            "rendezvous: 1 of 2 ranks joined in 3s; missing\n"
            "RANK  MEMBER  STATE  HOST    PID  HEARD      LAST SEEN DOING\n"
            "0     a       alive  host-a  7    1.2s ago   all_reduce #4 on "
            "group \"world\"\n"
            "-     b       lost   host-b  7    1m11s ago  no heartbeat for 11s "
            "(lease 10s)\n");
}

TEST(CtlTextTest, MembersSayWhenTheRendezvousIsClosed) {
  v1::GetJobResponse job = Job();
  job.set_rendezvous_closed("member \"a\" (h, pid 7): finished");
  EXPECT_EQ(MembersText(job),
            "job demo: generation 3, world size 2, 1 alive\n"
            "rendezvous closed by member \"a\" (h, pid 7): finished\n"
            "no members\n");
}

TEST(CtlTextTest, BarriersSayWhoIsMissing) {
  v1::GetJobResponse job = Job();
  EXPECT_EQ(BarriersText(job), "no open barriers\n");
  v1::OpenBarrier* barrier = job.add_barriers();
  barrier->set_name("setup");
  barrier->set_group("world");
  barrier->set_instance(3);
  barrier->set_arrived(1);
  barrier->set_expected(3);
  barrier->mutable_open_for()->set_seconds(2);
  *barrier->add_missing() = Member(1, "b");
  barrier->mutable_missing(0)->set_state(v1::MEMBER_STATE_DISCONNECTED);
  barrier->mutable_missing(0)->set_last_progress("all_reduce #4");
  barrier->add_missing()->set_rank(2);
  EXPECT_EQ(BarriersText(job),
            "barrier setup #3 of group world: 1 of 3 arrived, open for 2s\n"
            "  missing rank 1 (host-b, pid 7, disconnected, all_reduce #4)\n"
            "  missing rank 2\n");
}

TEST(CtlTextTest, BarriersThatTheAnswerLeavesOutAreCounted) {
  v1::GetJobResponse job = Job();
  job.mutable_summary()->set_open_barriers(300);
  v1::OpenBarrier* barrier = job.add_barriers();
  barrier->set_name("b");
  barrier->set_instance(1);
  barrier->set_expected(100);
  barrier->set_arrived(1);
  barrier->add_missing()->set_rank(2);
  EXPECT_EQ(BarriersText(job),
            "barrier b #1 of group : 1 of 100 arrived, open for 0\n"
            "  missing rank 2\n"
            "  and 98 more\n"
            "and 299 more barriers\n");
  for (const uint32_t count : {0, 2, 5, 1, 4, 88}) barrier->add_others(count);
  EXPECT_THAT(BarriersText(job),
              testing::HasSubstr("  and 98 more (0-1,7,12-99)\n"));
}

TEST(CtlTextTest, GroupsSayWhoHasNotRegistered) {
  v1::GetJobResponse job = Job();
  EXPECT_EQ(GroupsText(job), "no groups\n");
  v1::RegisteredGroup* group = job.add_groups();
  group->set_name("tp0");
  group->set_description("tensor parallel");
  for (const int rank : {0, 1, 2, 5, 7, 8}) group->add_ranks(rank);
  group->set_registered(5);
  group->add_missing(7);
  group = job.add_groups();
  group->set_name("dp");
  group->add_ranks(0);
  group->set_registered(1);
  EXPECT_EQ(GroupsText(job),
            "GROUP  SIZE  REGISTERED  RANKS      MISSING  DESCRIPTION\n"
            "tp0    6     5           0-2,5,7-8  7        tensor parallel\n"
            "dp     1     1           0          -\n");
}

TEST(CtlTextTest, ChangesAreOneLineEach) {
  v1::WatchResponse response;
  v1::KeyChange* change = response.add_changes();
  change->set_kind(v1::CHANGE_KIND_PUT);
  change->set_revision(17);
  change->set_key("k");
  change->set_value("two\nlines");
  change = response.add_changes();
  change->set_kind(v1::CHANGE_KIND_EXPIRED);
  change->set_revision(18);
  change->set_key("k");
  EXPECT_EQ(ChangesText(response),
            "put 17 \"k\" \"two\\nlines\"\nexpired 18 \"k\"\n");
}

TEST(CtlTextTest, AnErrorIsJsonWhateverItsText) {
  const std::string texts[] = {"",
                               "a \"quoted\" \\ text",
                               "two\nlines\r\t",
                               std::string("\0\x01\x1b[2J\x7f", 7),
                               "\u202Ereversed",
                               "größer"};
  for (const std::string& text : texts) {
    const std::string json = ErrorJson(text);
    EXPECT_EQ(json.find('\n'), json.size() - 1) << json;
    EXPECT_EQ(nlohmann::json::parse(json).at("error"), text) << json;
    for (const char c : json) EXPECT_GE(c, '\n') << json;
  }
  EXPECT_EQ(nlohmann::json::parse(ErrorJson("a\xff b\xe2\x80")).at("error"),
            "a\uFFFD b\uFFFD");
}

}  // namespace
}  // namespace muster::tools
