// Process groups other than the default one, between processes.

#include <signal.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/control/admin_client.h"
#include "client/control/endpoint.h"
#include "client/testing/processes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using internal::HostName;
using muster::testing::Process;
using muster::testing::ReservedPort;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::chrono::seconds kSoon(30);

class GroupsTest : public ::testing::Test {
 protected:
  void Start(const std::string& scenario, int size,
             const std::string& level = "OFF") {
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<Process>(
          std::vector<std::string>{"client/testing/group_rank", scenario},
          std::map<std::string, std::string>{
              {"RANK", std::to_string(rank)},
              {"WORLD_SIZE", std::to_string(size)},
              {"MASTER_ADDR", "127.0.0.1"},
              {"MASTER_PORT", std::to_string(port_.port())},
              {"TORCH_DISTRIBUTED_DEBUG", level}}));
    }
  }

  std::string Line(size_t rank) { return ranks_[rank]->ReadLine(kSoon); }

  // Returns the milliseconds in the rank's next line, "at 4711".
  int64_t Time(size_t rank) {
    const std::string line = Line(rank);
    EXPECT_THAT(line, StartsWith("at "));
    return line.size() > 3 ? std::stoll(line.substr(3)) : 0;
  }

  // Compares each rank's next line.
  void ExpectLines(const std::vector<std::string>& lines) {
    for (size_t rank = 0; rank < lines.size(); ++rank) {
      EXPECT_EQ(Line(rank), lines[rank]) << "rank " << rank;
    }
  }

  void ExpectAll(const std::string& line) {
    ExpectLines(std::vector<std::string>(ranks_.size(), line));
  }

  // Makes these ranks use a group.
  void Try(const std::string& group, const std::vector<size_t>& ranks) {
    for (const size_t rank : ranks) ranks_[rank]->WriteLine(group);
  }

  void ExpectGood(const std::string& group, const std::vector<size_t>& ranks,
                  int sum) {
    Try(group, ranks);
    for (const size_t rank : ranks) {
      EXPECT_EQ(Line(rank), group + " sum " + std::to_string(sum));
      EXPECT_EQ(Line(rank), "no error");
    }
  }

  void Kill(size_t rank) {
    ranks_[rank]->Signal(SIGKILL);
    EXPECT_EQ(ranks_[rank]->Wait(kSoon).signal, SIGKILL);
  }

  ReservedPort port_;
  std::vector<std::unique_ptr<Process>> ranks_;
};

TEST_F(GroupsTest, OverlappingGroupsOfSomeRanks) {
  Start("overlapping", 4);
  const std::string none = "rank -1 of -1:";
  ExpectLines({"low: rank 0 of 2: 0 1", "low: rank 1 of 2: 0 1", "low: " + none,
               "low: " + none});
  ExpectLines({"odd: " + none, "odd: rank 0 of 2: 1 3", "odd: " + none,
               "odd: rank 1 of 2: 1 3"});
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(Line(rank),
              "all: rank " + std::to_string(rank) + " of 4: 0 1 2 3");
  }
  ExpectLines({"description \"\"", "description \"odd ones\"",
               "description \"\"", "description \"odd ones\""});
  ExpectLines({"timeouts 60000 7000", "timeouts 60000 7000", "timeouts 60000 0",
               "timeouts 60000 0"});
  // A rank outside the group keeps its tensor.
  ExpectLines({"low sum 11", "low sum 11", "low sum 100", "low sum 1000"});
  ExpectLines({"odd sum 1", "odd sum 1010", "odd sum 100", "odd sum 1010"});
  ExpectAll("all sum 1111");
  ExpectLines({"from 0", "from 3", "from 2", "from 3"});
  EXPECT_EQ(Line(3), "received from 1");
  EXPECT_EQ(Line(1), "group rank 1, global rank 1");
  EXPECT_EQ(Line(3), "group rank 1, global rank 1");
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(Line(rank),
                AllOf(StartsWith("error DistError"),
                      HasSubstr("Invalid process group specified: group \"1\" "
                                "was destroyed")));
  }
  ExpectLines({"odd sum 1", "odd sum 1010", "odd sum 100", "odd sum 1010"});
  ExpectAll("world sum 1111");
  ExpectLines(
      {"again sum 1001", "again sum 10", "again sum 100", "again sum 1001"});
  ExpectAll("bye");
}

TEST_F(GroupsTest, SubgroupsAndSplitsAndGroupsOfTheirMembersAlone) {
  Start("makers", 4);
  ExpectLines({"pair: rank 0 of 2: 0 1", "pair: rank 1 of 2: 0 1",
               "pair: rank 0 of 2: 2 3", "pair: rank 1 of 2: 2 3"});
  ExpectLines({"pair sum 11", "pair sum 11", "pair sum 1100", "pair sum 1100"});
  ExpectLines({"some: rank 0 of 2: 0 2", "some: rank 0 of 1: 1",
               "some: rank 1 of 2: 0 2", "some: rank -1 of -1:"});
  ExpectLines({"some sum 101", "some sum 10", "some sum 101", "some sum 1000"});
  EXPECT_EQ(Line(2), "local sum 1100");
  EXPECT_EQ(Line(3), "local sum 1100");
  EXPECT_EQ(Line(1), "split: rank 0 of 2: 1 3");
  EXPECT_EQ(Line(2), "split: rank -1 of -1:");
  EXPECT_EQ(Line(3), "split: rank 1 of 2: 1 3");
  EXPECT_EQ(Line(1), "by gloo");
  EXPECT_EQ(Line(3), "by gloo");
  EXPECT_EQ(Line(1), "split sum 1010");
  EXPECT_EQ(Line(2), "split sum 100");
  EXPECT_EQ(Line(3), "split sum 1010");
  ExpectAll("bye");
}

TEST_F(GroupsTest, ANameUsedAgainIsThatOfAnotherGroup) {
  Start("names again", 4);
  const std::vector<std::vector<size_t>> groups = {
      {0, 1, 2}, {0, 2, 3}, {0, 1, 2}};
  const std::vector<std::string> ones = {"1", "10", "100", "1000"};
  for (const std::vector<size_t>& ranks : groups) {
    const std::string two = ranks[1] == 1 ? "11" : "101";
    for (const size_t rank : {ranks[0], ranks[1]}) {
      EXPECT_EQ(Line(rank), "part sum " + two);
      EXPECT_EQ(Line(rank), "two sum " + two);
    }
    EXPECT_EQ(Line(ranks[2]), "part sum " + ones[ranks[2]]);
  }
  ExpectAll("bye");
}

// Returns the lines of rank `rank` of the scenario "errors".
std::vector<std::string> ErrorTexts(int rank) {
  const std::string one = "\"one" + std::to_string(rank) + "\"";
  const std::string other = "Global rank " + std::to_string(1 - rank) +
                            " is not part of group " + one;
  return {
      "Default process group has not been initialized, please make sure "
      "to call init_process_group.",
      "the new group's world size should be less or equal to the world "
      "size set by init_process_group: 3 ranks of 2",
      "The new group's rank should be within the the world_size set by "
      "init_process_group: rank 2 of world size 2",
      "The new group's rank should be within the the world_size set by "
      "init_process_group: rank -1 of world size 2",
      "the new group cannot have duplicate ranks, but rank 1 is in it "
      "twice",
      "the new group cannot be empty",
      "NewGroupOptions::timeout must not be negative but was -1 ms",
      "unknown backend \"carrier-pigeon\"",
      "argument cpu_transport must be tcp or gloo but was \"carrier-pigeon\"",
      "The specified group name has already been created, please use a "
      "different group name: " +
          one,
      other,
      other,
      "Group rank 1 is not part of group " + one,
      "The arg 'group_size' (0) must be positive",
      "The arg 'group_size' (3) must not exceed the world size (2)",
      "Rank 0 has appeared in both subgroup 0 and 1",
      "split_ranks cannot be empty",
      "Group rank 2 is not part of group \"world\"",
      "Rank 0 has appeared in both split 0 and 1",
      "Global rank 99 is not part of group \"world\"",
      "recv on group \"world\": argument tag: Tag must be nonnegative, got -1",
      "Invalid process group specified",
      "Invalid process group specified"};
}

TEST_F(GroupsTest, EveryErrorSaysWhatIsWrong) {
  Start("errors", 2);
  for (int rank = 0; rank < 2; ++rank) {
    for (const std::string& text : ErrorTexts(rank)) {
      EXPECT_THAT(Line(rank), StartsWith("error DistError [] " + text));
    }
    // None of these errors ended a group.
    EXPECT_EQ(Line(rank), "world sum 11");
    EXPECT_THAT(Line(rank), HasSubstr(": rank 7 of world size 2"));
    // Each call takes a number.
    int before = 0;
    int after = 0;
    std::sscanf(Line(rank).c_str(), "number %d to %d", &before, &after);
    EXPECT_EQ(after, before + 2);
    EXPECT_EQ(ranks_[rank]->Wait(kSoon).code, 0);
  }
}

TEST_F(GroupsTest, AKilledRankEndsItsGroupsAlone) {
  Start("mourners", 4);
  ExpectAll("formed");
  Try("23", {2});
  Kill(3);
  EXPECT_THAT(Line(2), AllOf(StartsWith("error DistNetworkError [3] "),
                             HasSubstr("on group \"3\": global rank 3 ("),
                             HasSubstr("was lost")));
  ExpectGood("01", {0, 1}, 11);
  ExpectGood("12", {1, 2}, 110);
  Try("world", {0, 1, 2});
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(Line(rank), AllOf(StartsWith("error DistNetworkError [3] "),
                                  HasSubstr("group \"world\": rank 3 (")));
  }
  // The groups without the dead rank go on even then.
  ExpectGood("12", {1, 2}, 110);
  ExpectGood("01", {0, 1}, 11);
  Try("barrier 12", {1, 2});
  EXPECT_EQ(Line(1), "no error");
  EXPECT_EQ(Line(2), "no error");
  // Long before its timeout.
  Try("new 03", {0});
  EXPECT_THAT(Line(0), AllOf(StartsWith("error DistNetworkError [3] "),
                             HasSubstr("global rank 3 (")));
  Try("new 02", {0, 2});
  for (const size_t rank : {0, 2}) {
    EXPECT_EQ(Line(rank), "02 sum 101");
    EXPECT_EQ(Line(rank), "no error");
  }
  Try("end", {0, 1, 2});
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(Line(rank), "bye");
}

TEST_F(GroupsTest, ARankThatDiesWhileAGroupFormsIsNamedAtOnce) {
  Start("dying", 3);
  EXPECT_EQ(ranks_[1]->Wait(kSoon).signal, SIGKILL);
  for (const size_t rank : {0, 2}) {
    EXPECT_THAT(Line(rank), AllOf(StartsWith("error DistNetworkError [1] "),
                                  HasSubstr("while the group formed: global "
                                            "rank 1 ("),
                                  HasSubstr("was lost")));
  }
}

TEST_F(GroupsTest, GroupsLiveOnWithoutTheRankThatServesTheCoordinator) {
  Start("mourners", 4);
  ExpectAll("formed");
  Kill(0);
  Try("world", {1, 2, 3});
  for (size_t rank = 1; rank < 4; ++rank) {
    EXPECT_THAT(Line(rank), StartsWith("error DistNetworkError [0] "));
  }
  // No call has seen that it failed.
  Try("destroy 01", {1});
  EXPECT_THAT(Line(1), StartsWith("error DistNetworkError [0] "));
  Try("destroy 01", {1});
  EXPECT_THAT(Line(1), HasSubstr("Invalid process group specified"));
  ExpectGood("12", {1, 2}, 110);
  ExpectGood("23", {2, 3}, 1100);
  Try("end", {1, 2, 3});
  for (size_t rank = 1; rank < 4; ++rank) EXPECT_EQ(Line(rank), "bye");
}

TEST_F(GroupsTest, ATimeoutEndsTheGroupOnItsMembersAndNothingElse) {
  Start("late", 3);
  // Rank 2 waits for rank 1 of the group, in the backend's words.
  const std::string what =
      "timed out after 1s waiting for rank 1; global rank "
      "2 is pid " +
      std::to_string(ranks_[2]->pid()) + " on ";
  const std::string error = Line(1);
  EXPECT_THAT(error, AllOf(StartsWith("error DistBackendError [2] "),
                           HasSubstr("on group \"1\": " + what)));
  ranks_[2]->WriteLine("go");
  EXPECT_EQ(Line(2), error);
  ExpectAll("world sum 111");
  ExpectLines({"others sum 101", "others sum 10", "others sum 101"});
  ExpectAll("bye");
}

TEST_F(GroupsTest, AllRanksOfAGroupBlameTheSame) {
  Start("quarrel", 4);
  const std::string mismatch = Line(1);
  EXPECT_THAT(mismatch, StartsWith("error DistBackendError ["));
  EXPECT_EQ(Line(2), mismatch);
  EXPECT_EQ(Line(3), mismatch);
  const std::string timeout = Line(1);
  EXPECT_THAT(timeout, AllOf(StartsWith("error DistBackendError [3] "),
                             HasSubstr("on group \"timeout\": timed out"),
                             HasSubstr("did not come to the end of it: global "
                                       "rank 3 (")));
  EXPECT_EQ(Line(2), timeout);
  ranks_[3]->WriteLine("go");
  EXPECT_EQ(Line(3), timeout);
  // Ranks 2 and 3 do not make that group.
  EXPECT_THAT(
      Line(1),
      AllOf(StartsWith("error DistBackendError [2,3] group \"lonely\" of 3 "
                       "ranks did not form within 1s "
                       "(NewGroupOptions::timeout): 1 of 3 ranks came to the "
                       "rendezvous in time; missing ranks 1, 2; rank 1 of it "
                       "is global rank 2 ("),
            HasSubstr("; rank 2 of it is global rank 3 (")));
  // Ranks that disagree about a barrier do not blame absent ranks.
  const std::string conflict = Line(1);
  EXPECT_THAT(conflict,
              AllOf(StartsWith("error DistError [] "),
                    HasSubstr("wait_all_ranks"), HasSubstr("rank 1"),
                    HasSubstr("rank 2"), Not(HasSubstr("failed to pass"))));
  EXPECT_EQ(Line(2), conflict);
  EXPECT_EQ(Line(1), "met");
  EXPECT_EQ(Line(2), "met");
  // The next group of that name starts anew, also for rank 3.
  ExpectLines(
      {"again sum 1", "again sum 1110", "again sum 1110", "again sum 1110"});
  ExpectAll("bye");
}

// Ranks meet on connections; at level DETAIL they first meet in the store.
class BystandersTest : public GroupsTest,
                       public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Levels, BystandersTest,
                         ::testing::Values("OFF", "DETAIL"));

TEST_P(BystandersTest, WhoIsBusyIsNotToBlame) {
  Start("bystanders", 4, GetParam());
  const std::string stuck = Line(0);
  EXPECT_THAT(stuck, StartsWith("error DistBackendError [3] "));
  EXPECT_EQ(Line(2), stuck);
  ranks_[1]->WriteLine("go");
  EXPECT_EQ(Line(1), stuck);
  ranks_[3]->WriteLine("go");
  EXPECT_EQ(Line(3), stuck);
  const std::string unsent = Line(0);
  EXPECT_THAT(unsent, AllOf(StartsWith("error DistBackendError [1] recv #"),
                            HasSubstr("timed out after 200ms")));
  for (const size_t rank : {1, 3}) ranks_[rank]->WriteLine("go");
  for (const size_t rank : {1, 2, 3}) EXPECT_EQ(Line(rank), unsent);
  const std::string late = Line(0);
  EXPECT_THAT(late,
              AllOf(StartsWith("error DistBackendError [1] "),
                    HasSubstr("did not come to the end of it: global rank 1")));
  for (const size_t rank : {1, 2, 3}) EXPECT_EQ(Line(rank), late);
  const std::string aborted = Line(0);
  EXPECT_THAT(aborted, HasSubstr("): enough"));
  for (const size_t rank : {1, 2, 3}) EXPECT_EQ(Line(rank), aborted);
  ExpectAll("world sum 1111");
  ExpectAll("bye");
}

// Whichever rank detects it first.
TEST_F(GroupsTest, WhoDiffersFromMostRanksIsToBlame) {
  Start("odd", 4);
  const auto expect_told = [&](const std::string& culprits,
                               const std::string& what) {
    const std::string told = Line(0);
    EXPECT_THAT(told,
                AllOf(StartsWith("error DistBackendError [" + culprits + "] "),
                      HasSubstr(what)));
    for (const size_t rank : {1, 2, 3}) EXPECT_EQ(Line(rank), told);
  };
  expect_told("2",
              "ranks 0, 1, 3 of 4 run all_reduce #1 int32[64] sum; rank 2 runs "
              "all_reduce #1 int32[4] sum");
  expect_told("2", "rank 2 runs all_reduce #1 int32[4] max");
  expect_told("0,1,2,3", "ranks 0, 1 of 4 run all_reduce #1 int32[4] sum");
  expect_told("2", "ranks 0, 1, 3 of 4 run all_reduce #");
  ExpectAll("bye");
}

TEST_F(GroupsTest, ATimeoutSaysInWhichGroupTheCulpritIs) {
  Start("crossed", 2);
  EXPECT_THAT(Line(0),
              AllOf(StartsWith("error DistBackendError [1] all_reduce #1 on "
                               "group \"a\": timed out after 2s"),
                    HasSubstr("last progress: group \"a\": 0 of 0 done; in "
                              "all_reduce #1"),
                    HasSubstr(" on group \"b\" for ")));
  EXPECT_THAT(Line(1), AllOf(StartsWith("error DistBackendError [0] "),
                             HasSubstr("last progress: group \"b\": 0 of 0 "
                                       "done; in all_reduce #1"),
                             HasSubstr(" on group \"a\" for ")));
  ExpectAll("bye");
}

TEST_F(GroupsTest, WaitForDoesNotWaitForTheVerdict) {
  Start("impatient", 2);
  EXPECT_EQ(Line(0), "not yet");
  const std::string error = Line(0);
  EXPECT_THAT(error,
              AllOf(StartsWith("error DistBackendError [1] "),
                    HasSubstr("timed out after 300ms"),
                    HasSubstr("did not come to the end of it: global rank 1")));
  EXPECT_EQ(Line(0), "complete");
  EXPECT_EQ(Line(1), error);
  ExpectAll("bye");
}

TEST_F(GroupsTest, WhatFailsOnOneRankAloneLeavesTheOthersInStep) {
  Start("alone", 3);
  EXPECT_THAT(Line(1), HasSubstr("carrier-pigeon"));
  EXPECT_THAT(Line(1), HasSubstr("has appeared in both split"));
  ExpectAll("next sum 111");
  EXPECT_THAT(Line(0), HasSubstr("of 2 ranks did not form within 200ms"));
  EXPECT_THAT(Line(0),
              HasSubstr("group \"again\" of 3 ranks did not form within 1.2s "
                        "(NewGroupOptions::timeout): 1 of 3 ranks came"));
  ExpectAll("again sum 111");
  for (const size_t rank : {0, 2}) {
    EXPECT_EQ(Line(rank), "local sum 101");
    EXPECT_EQ(Line(rank), "one sum 101");
    EXPECT_EQ(Line(rank), "two sum 101");
  }
  ExpectAll("bye");
}

// The timeout is 30 minutes.
TEST_F(GroupsTest, RanksThatMeanDifferentThingsByOneCallAreAllToldSo) {
  Start("disagree", 4);
  const auto expect_told = [&](const std::vector<size_t>& told,
                               const std::string& one,
                               const std::string& other) {
    for (size_t rank = 0; rank < 4; ++rank) {
      if (std::count(told.begin(), told.end(), rank) == 0) {
        EXPECT_EQ(Line(rank), "no error");
        continue;
      }
      EXPECT_THAT(Line(rank), AllOf(StartsWith("error DistError [] "),
                                    HasSubstr(one), HasSubstr(other)));
    }
  };
  const std::vector<size_t> all = {0, 1, 2, 3};
  expect_told(all, "4 ranks (0, 1, 2, 3)", "3 ranks (0, 1, 2)");
  ExpectAll("next sum 1111");
  // A rank that is not in the group that it makes does not wait.
  expect_told({1, 3}, "2 ranks (0, 1)", "2 ranks (1, 3)");
  ExpectAll("next sum 1111");
  expect_told(all, "makes group \"a\" of 4 ranks (0, 1, 2, 3)",
              "makes group \"b\" of 4 ranks (0, 1, 2, 3)");
  ExpectAll("next sum 1111");
  expect_told(all, "", "unknown backend \"carrier-pigeon\"");
  ExpectAll("next sum 1111");
  expect_told(all,
              "makes a device mesh of shape [2, 2], dimensions a, b, on "
              "\"cpu\"",
              "makes a device mesh of shape [4, 1], on \"cpu\"");
  // These differ, and read the same.
  expect_told(all, "do not mean the same", "dimensions a, b, c, on \"cpu\"");
  expect_told({0, 1, 2}, "makes group \"c\" of 4 ranks (0, 1, 2, 3)",
              "makes group \"d\" of 1 rank (3)");
  ExpectAll("next sum 1111");
  expect_told({1}, "makes group \"world:split:0:1\" of 2 ranks (1, 3)",
              "makes group \"world:split:0:2\" of 2 ranks (2, 3)");
  ExpectAll("next sum 1111");
  expect_told({0, 1}, "makes group \"world:split:1:0\" of 3 ranks (0, 1, 2)",
              "splits group \"world\" into parts of which it is in none");
  ExpectAll("next sum 1111");
  expect_told({2, 3}, "", "cannot have duplicate ranks, but rank 2 is in it");
  ExpectAll("next sum 1111");
  for (const std::string group : {"a", "world"}) {
    for (size_t rank = 0; rank < 3; ++rank) {
      EXPECT_THAT(Line(rank),
                  AllOf(StartsWith("error DistError [] "),
                        HasSubstr("shrinks group \"" + group + "\" ")));
    }
  }
  for (size_t rank = 0; rank < 3; ++rank) ranks_[rank]->WriteLine("go");
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(Line(rank), "shrunk sum 111");
  }
  ranks_[3]->WriteLine("go");
  ExpectAll("bye");
}

TEST_F(GroupsTest, FiftyGroupsLeaveNothing) {
  Start("many", 3);
  ExpectAll("tidy");
  // The coordinator has no leftovers either.
  const auto control = internal::AdminClient::Open(
      {.address = "127.0.0.1:" + std::to_string(port_.port())});
  ASSERT_TRUE(control.ok());
  v1::GetJobRequest request;
  request.set_job("default");
  v1::GetJobResponse job;
  ASSERT_EQ((*control)->GetJob(request, &job), OkStatus());
  EXPECT_EQ(job.members_size(), 3);
  EXPECT_EQ(job.groups_size(), 0);
  for (const auto& rank : ranks_) rank->WriteLine("on");
  ExpectAll(
      "error DistError [] The world size (3) must be divisible by "
      "'group_size=2'");
  for (const auto& rank : ranks_) EXPECT_EQ(rank->Wait(kSoon).code, 0);
}

TEST_F(GroupsTest, AbortEndsTheGroupOnAllItsRanksAndSaysWhoAndWhy) {
  Start("abort", 4);
  const std::string who = "rank 1 (" + HostName() + ", pid " +
                          std::to_string(ranks_[1]->pid()) + "): ";
  const auto expect_abort = [&](const std::string& error) {
    const int64_t before = Time(1);
    for (const size_t rank : {0, 1, 2}) EXPECT_EQ(Line(rank), error);
    // A rank that does not wait for the culprit checks every 100 ms; the rest
    // is a reserve for a busy machine.
    for (const size_t rank : {0, 2}) EXPECT_LT(Time(rank) - before, 1'000);
  };
  const std::string head = "error DistBackendError [1] group ";
  expect_abort(head + "\"1\": aborted by global " + who + "no more");
  // The other groups go on.
  ExpectAll("world sum 1111");
  const std::string world = head + "\"world\": aborted by " + who;
  expect_abort(world + "out of memory");
  EXPECT_EQ(Line(3), world + "out of memory");
  ExpectAll("no error");
  for (const auto& rank : ranks_) EXPECT_EQ(rank->Wait(kSoon).code, 0);
}

TEST_F(GroupsTest, ADeviceMeshHasAGroupForEachLine) {
  Start("mesh", 4);
  ExpectLines({"dp sum 101", "dp sum 1010", "dp sum 101", "dp sum 1010"});
  ExpectLines({"tp sum 11", "tp sum 11", "tp sum 1100", "tp sum 1100"});
  ExpectAll("dp_tp sum 1111");
  ExpectLines({"at 0 0, tp rank 0", "at 0 1, tp rank 1", "at 1 0, tp rank 0",
               "at 1 1, tp rank 1"});
  ExpectLines({"odd sum 1", "odd sum 1010", "odd sum 100", "odd sum 1010"});
  ExpectAll("all sum 1111");
  ExpectAll("bye");
}

}  // namespace
}  // namespace muster
