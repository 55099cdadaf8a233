// Groups that shrink and form again after failures, between processes. Also
// tests that groups leave nothing behind, however often they are made, fail and
// end.
//
// The cycles are few here. For more:
//
//   ./dev test //client:shrink_test --test_env=MUSTER_CREATE_CYCLES=1000
//       --test_env=MUSTER_FAIL_CYCLES=100 --test_timeout=900

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/testing/processes.h"
#include "coordinator/server/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using muster::testing::Process;
using muster::testing::ReservedPort;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

constexpr std::chrono::seconds kSoon(30);
// Less than the time for which survivors wait for each other, with a reserve
// for a busy machine.
constexpr std::chrono::seconds kAtOnce(10);

class ShrinkTest : public ::testing::Test {
 protected:
  void Start(const std::string& scenario, int size, int cycles = 0,
             bool external = false) {
    for (int rank = 0; rank < size; ++rank) {
      StartOne(scenario,
               {{"RANK", std::to_string(rank)},
                {"WORLD_SIZE", std::to_string(size)},
                {"MASTER_ADDR", "127.0.0.1"},
                {"MASTER_PORT", std::to_string(port_.port())},
                {"TORCHELASTIC_USE_AGENT_STORE", external ? "True" : "False"},
                {"CYCLES", std::to_string(cycles)}});
    }
  }

  // With five ranks: 1 is killed; 0, 2 and 3 shrink the group without it; 4
  // comes to that call but does not complete it.
  void StopAtTheCall(const std::string& place) {
    for (size_t rank = 0; rank < 5; ++rank) Line(rank);
    Kill(1);
    for (const size_t rank : {0, 2, 3, 4}) {
      ranks_[rank]->WriteLine("go");
      EXPECT_THAT(Line(rank), StartsWith("error DistNetworkError [1] "));
    }
    ranks_[4]->WriteLine("stop at 1" + place);
    EXPECT_EQ(Line(4), "met");
    for (const size_t rank : {0, 2, 3}) ranks_[rank]->WriteLine("1");
  }

  // Expects that after an error with `why`.
  void ExpectTheyGoOnWithoutTheLast(const std::string& why) {
    for (const size_t rank : {0, 2, 3}) {
      EXPECT_THAT(Line(rank),
                  AllOf(StartsWith("error DistNetworkError [4] group \"world\" "
                                   "cannot be shrunk without 1 alone"),
                        HasSubstr("rank 4 ("), HasSubstr(why)));
      ranks_[rank]->WriteLine("14");
    }
    for (const size_t rank : {0, 2, 3}) {
      EXPECT_EQ(Line(rank), "world: rank " +
                                std::to_string(rank > 0 ? rank - 1 : 0) +
                                " of 3, sum 6");
      EXPECT_EQ(Line(rank), "bye");
      EXPECT_EQ(ranks_[rank]->Wait(kSoon).code, 0);
    }
  }

  void StartOne(const std::string& scenario,
                const std::map<std::string, std::string>& environment) {
    ranks_.push_back(std::make_unique<Process>(
        std::vector<std::string>{"client/testing/shrink_rank", scenario},
        environment));
  }

  // Three ranks of the scenario "headless"; any of them may be the first.
  void ExpectTheOthersGoOn() {
    size_t first = 3;
    for (size_t i = 0; i < 3; ++i) {
      const std::string line = Line(i);
      EXPECT_THAT(line, EndsWith(" of 3, sum 6"));
      if (line == "world: rank 0 of 3, sum 6") first = i;
    }
    ASSERT_LT(first, 3U);
    Kill(first);
    std::vector<std::string> lines;
    for (size_t i = 0; i < 3; ++i) {
      if (i != first) ranks_[i]->WriteLine("go");
    }
    for (size_t i = 0; i < 3; ++i) {
      if (i == first) continue;
      EXPECT_THAT(Line(i), StartsWith("error DistNetworkError [0] "));
      lines.push_back(Line(i));
      EXPECT_EQ(ranks_[i]->Wait(kSoon).code, 0);
    }
    EXPECT_THAT(lines, UnorderedElementsAre("world: rank 0 of 2, sum 3",
                                            "world: rank 1 of 2, sum 3"));
  }

  std::string Line(size_t rank) { return ranks_[rank]->ReadLine(kSoon); }

  void Kill(size_t rank) {
    ranks_[rank]->Signal(SIGKILL);
    EXPECT_EQ(ranks_[rank]->Wait(kSoon).signal, SIGKILL);
  }

  // Checks the scenario's report of what it has more at the end.
  void ExpectNoGrowth(std::chrono::seconds patience) {
    for (const auto& rank : ranks_) {
      EXPECT_EQ(rank->ReadLine(patience), "0 more threads, 0 more descriptors");
      // Memory of the allocator, and the coordinator's table of groups.
      EXPECT_LE(std::stoi(rank->ReadLine(kSoon)), 16);
      EXPECT_EQ(rank->Wait(kSoon).code, 0);
    }
  }

  ReservedPort port_;
  std::vector<std::unique_ptr<Process>> ranks_;
};

TEST_F(ShrinkTest, SurvivorsGoOnInTheSameProcesses) {
  Start("survivors", 4);
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(Line(rank),
              "world: rank " + std::to_string(rank) + " of 4, sum 10");
  }
  Kill(3);
  for (size_t rank = 0; rank < 3; ++rank) ranks_[rank]->WriteLine("go");
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(Line(rank), AllOf(StartsWith("error DistNetworkError [3] "),
                                  HasSubstr("rank 3 (")));
  }
  for (size_t rank = 1; rank < 3; ++rank) {
    EXPECT_THAT(Line(rank), StartsWith("error DistNetworkError [3] "));
    EXPECT_EQ(Line(rank),
              "1:shrink:2: rank " + std::to_string(rank - 1) + " of 2, sum 3");
    EXPECT_THAT(Line(rank), HasSubstr("group \"1\" was destroyed"));
  }
  EXPECT_EQ(Line(2), "alone: rank 0 of 1, sum 1");
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(Line(rank),
              "world: rank " + std::to_string(rank) + " of 3, sum 6");
  }
  // The rank that serves the coordinator: the new rank 0 takes over.
  Kill(0);
  for (size_t rank = 1; rank < 3; ++rank) ranks_[rank]->WriteLine("go");
  for (size_t rank = 1; rank < 3; ++rank) {
    EXPECT_THAT(Line(rank), StartsWith("error DistNetworkError [0] "));
    EXPECT_EQ(Line(rank),
              "world: rank " + std::to_string(rank - 1) + " of 2, sum 3");
    EXPECT_EQ(Line(rank), "bye");
    EXPECT_EQ(ranks_[rank]->Wait(kSoon).code, 0);
  }
}

TEST_F(ShrinkTest, WithAnExternalCoordinatorAnyRankMayBeGone) {
  coordinator::ServerOptions options;
  options.listen = "127.0.0.1:" + std::to_string(port_.port());
  const auto server = coordinator::Server::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  for (int i = 0; i < 3; ++i) {
    StartOne(
        "headless",
        {{"INIT_METHOD", "muster://127.0.0.1:" + std::to_string(port_.port()) +
                             "/job?world_size=3"}});
  }
  ExpectTheOthersGoOn();
}

// The coordinator restarts with a running generation, in which the rank that
// died meanwhile is alive.
TEST_F(ShrinkTest, TheCoordinatorMayHaveBeenKilledMeanwhile) {
  const std::vector<std::string> coordinator = {
      "coordinator/muster-coordinator",
      "--listen=127.0.0.1:" + std::to_string(port_.port()),
      "--http_listen=",
      "--lease=3s",
      "--storage=rocksdb",
      "--storage_path=" + ::testing::TempDir() + "/" +
          std::to_string(getpid()) + "-coordinator"};
  const std::map<std::string, std::string> environment;
  auto server = std::make_unique<Process>(coordinator, environment);
  EXPECT_THAT(server->ReadLine(kSoon), StartsWith("listening "));
  constexpr size_t kRanks = 8;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    StartOne("headless", {{"RANK", std::to_string(rank)},
                          {"WORLD_SIZE", std::to_string(kRanks)},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", std::to_string(port_.port())},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  }
  for (size_t rank = 0; rank < kRanks; ++rank) Line(rank);
  server->Signal(SIGKILL);
  EXPECT_EQ(server->Wait(kSoon).signal, SIGKILL);
  Kill(0);
  for (size_t rank = 1; rank < kRanks; ++rank) ranks_[rank]->WriteLine("go");
  for (size_t rank = 1; rank < kRanks; ++rank) {
    EXPECT_THAT(Line(rank), StartsWith("error Dist"));
  }
  server = std::make_unique<Process>(coordinator, environment);
  EXPECT_THAT(server->ReadLine(kSoon), StartsWith("listening "));
  for (size_t rank = 1; rank < kRanks; ++rank) {
    EXPECT_EQ(Line(rank),
              "world: rank " + std::to_string(rank - 1) + " of 7, sum 28");
    EXPECT_EQ(ranks_[rank]->Wait(kSoon).code, 0);
  }
}

TEST_F(ShrinkTest, OneThatTheOthersHaveLostIsToldSoAtOnce) {
  coordinator::ServerOptions options;
  options.listen = "127.0.0.1:" + std::to_string(port_.port());
  options.lease = std::chrono::seconds(1);
  const auto server = coordinator::Server::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  for (int rank = 0; rank < 3; ++rank) {
    StartOne("together", {{"RANK", std::to_string(rank)},
                          {"WORLD_SIZE", "3"},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", std::to_string(port_.port())},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  }
  for (size_t rank = 0; rank < 3; ++rank) Line(rank);
  ranks_[2]->Signal(SIGSTOP);
  for (const size_t rank : {0, 1}) {
    ranks_[rank]->WriteLine("go");
    EXPECT_THAT(Line(rank), StartsWith("error DistNetworkError [2] "));
    ranks_[rank]->WriteLine("2");
  }
  for (const size_t rank : {0, 1}) {
    EXPECT_EQ(Line(rank),
              "world: rank " + std::to_string(rank) + " of 2, sum 3");
    EXPECT_EQ(Line(rank), "bye");
  }
  ranks_[2]->Signal(SIGCONT);
  ranks_[2]->WriteLine("go");
  EXPECT_THAT(Line(2), AllOf(StartsWith("error DistBackendError [2] "),
                             HasSubstr("no heartbeat for")));
  // It may have learned of another loss first.
  ranks_[2]->WriteLine("1");
  EXPECT_THAT(Line(2),
              AllOf(StartsWith("error DistBackendError [2] group \"world\" "
                               "cannot be shrunk without 1 by this rank, 2, "),
                    HasSubstr("no heartbeat for")));
}

TEST_F(ShrinkTest, InAFileTheNewRankZeroTellsWhereItServes) {
  const std::string path = ::testing::TempDir() + "/shrinking";
  unlink(path.c_str());
  for (int i = 0; i < 3; ++i) {
    StartOne("headless",
             {{"INIT_METHOD",
               "file://" + path + "?world_size=3&rank=" + std::to_string(i)}});
  }
  ExpectTheOthersGoOn();
  unlink(path.c_str());
}

TEST_F(ShrinkTest, ALivingRankIsLeftOutAndHearsOfIt) {
  Start("outcast", 3);
  EXPECT_THAT(Line(1), HasSubstr(": shrunk without global rank 1"));
  for (const size_t rank : {0, 2}) ranks_[rank]->WriteLine("go");
  EXPECT_THAT(Line(1), AllOf(StartsWith("error DistBackendError [1] group "
                                        "\"world\": aborted by rank "),
                             HasSubstr(": shrunk without rank 1")));
  for (const size_t rank : {0, 2}) {
    EXPECT_THAT(Line(rank), HasSubstr(": shrunk without global rank 1"));
    const std::string place = std::to_string(rank / 2) + " of 2, sum 3";
    EXPECT_EQ(Line(rank), "group: rank " + place);
    EXPECT_EQ(Line(rank), "world: rank " + place);
  }
  for (const auto& rank : ranks_) EXPECT_EQ(rank->Wait(kSoon).code, 0);
}

TEST_F(ShrinkTest, OneThatIsGoneTooEndsTheCallAndTheNextOneMeets) {
  Start("two_gone", 4);
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(Line(rank),
              "group: rank " + std::to_string(rank) + " of 4, sum 10");
  }
  for (const size_t rank : {3, 2}) ranks_[rank]->Signal(SIGKILL);
  for (const size_t rank : {0, 1}) ranks_[rank]->WriteLine("go");
  for (const size_t rank : {0, 1}) {
    EXPECT_EQ(Line(rank),
              "1:shrink:2_3: rank " + std::to_string(rank) + " of 2, sum 3");
  }
  // They have the default group's error, which they have not seen.
  for (const size_t rank : {0, 1}) {
    ranks_[rank]->Signal(SIGKILL);
    ranks_[rank]->Wait(kSoon);
  }
}

TEST_F(ShrinkTest, OfTwoThatDieTogetherOneAloneCannotBeExcluded) {
  Start("together", 5);
  for (size_t rank = 0; rank < 5; ++rank) Line(rank);
  for (const size_t rank : {3, 4}) ranks_[rank]->Signal(SIGKILL);
  const std::vector<size_t> living = {0, 1, 2};
  for (const size_t rank : living) ranks_[rank]->WriteLine("go");
  for (const size_t rank : living) {
    EXPECT_THAT(Line(rank), StartsWith("error DistNetworkError ["));
    ranks_[rank]->WriteLine("3");
  }
  for (const size_t rank : living) {
    EXPECT_THAT(
        Line(rank),
        AllOf(StartsWith("error DistNetworkError [4] group \"world\" cannot be "
                         "shrunk without 3 alone, more are gone: rank 4 ("),
              HasSubstr("): connection closed")));
  }
  // Not at once: the survivors wait for each other.
  ranks_[0]->WriteLine("234");
  ranks_[2]->WriteLine("234");
  EXPECT_EQ(Line(2), "bye");
  ranks_[1]->WriteLine("234");
  for (const size_t rank : {0, 1}) {
    EXPECT_EQ(Line(rank),
              "world: rank " + std::to_string(rank) + " of 2, sum 3");
    EXPECT_EQ(Line(rank), "bye");
  }
  for (const size_t rank : living) EXPECT_EQ(ranks_[rank]->Wait(kSoon).code, 0);
}

// Between the wait of the others for each other and the rendezvous of the new
// group.
TEST_F(ShrinkTest, OneThatDiesOnItsWayIntoTheNewGroupIsNamedAtOnce) {
  Start("together", 5);
  StopAtTheCall(/*place=*/"");
  const auto before = std::chrono::steady_clock::now();
  Kill(4);
  ExpectTheyGoOnWithoutTheLast("more are gone: rank 4 (");
  EXPECT_LT(std::chrono::steady_clock::now() - before, kAtOnce);
}

TEST_F(ShrinkTest, OneThatStopsOnItsWayIntoTheNewGroupIsNamedWithItsLease) {
  coordinator::ServerOptions options;
  options.listen = "127.0.0.1:" + std::to_string(port_.port());
  options.lease = std::chrono::seconds(2);
  const auto server = coordinator::Server::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  Start("together", 5, /*cycles=*/0, /*external=*/true);
  StopAtTheCall(/*place=*/"");
  const auto before = std::chrono::steady_clock::now();
  ranks_[4]->Signal(SIGSTOP);
  ExpectTheyGoOnWithoutTheLast("no heartbeat for 2s (lease 2s)");
  EXPECT_LT(std::chrono::steady_clock::now() - before, kAtOnce);
}

// The others wait for its connection; it is rank 3 of the new group.
TEST_F(ShrinkTest, OneThatDiesInTheNewGroupLeavesTheOldOneToBeShrunkAgain) {
  Start("together", 5);
  StopAtTheCall(/*place=*/" as 3 of 4");
  EXPECT_EQ(Line(4), "joined");
  const auto before = std::chrono::steady_clock::now();
  Kill(4);
  ExpectTheyGoOnWithoutTheLast("; rank 3 of the new group is rank 4 (");
  EXPECT_LT(std::chrono::steady_clock::now() - before, kAtOnce);
}

// Rank 0, which serves the coordinator, does not stay ten seconds for it.
TEST_F(ShrinkTest, OneThatIsStuckAndLeftOutHoldsUpNobody) {
  Start("together", 5);
  for (size_t rank = 0; rank < 5; ++rank) Line(rank);
  for (const size_t rank : {3, 4}) ranks_[rank]->Signal(SIGKILL);
  for (const size_t rank : {0, 1, 2}) {
    ranks_[rank]->WriteLine("go");
    EXPECT_THAT(Line(rank), StartsWith("error DistNetworkError ["));
  }
  ranks_[2]->Signal(SIGSTOP);
  const auto before = std::chrono::steady_clock::now();
  for (const size_t rank : {0, 1}) ranks_[rank]->WriteLine("234");
  for (const size_t rank : {0, 1}) {
    EXPECT_EQ(Line(rank),
              "world: rank " + std::to_string(rank) + " of 2, sum 3");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(8));
  for (const size_t rank : {0, 1}) {
    EXPECT_EQ(Line(rank), "bye");
    EXPECT_EQ(ranks_[rank]->Wait(kSoon).code, 0);
  }
}

TEST_F(ShrinkTest, ACallThatFailedOnOneRankAloneCanBeMadeAgain) {
  Start("retry", 3);
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(Line(rank),
              "group: rank " + std::to_string(rank) + " of 3, sum 6");
  }
  // Which of the remaining ranks becomes rank 1 of the new group.
  for (const auto& [excluded, stays] : {std::pair("1", "2"), {"2", "1"}}) {
    EXPECT_THAT(Line(0),
                StartsWith(std::string("error DistBackendError [") + stays +
                           "] group \"1:shrink:" + excluded +
                           "\" of 2 ranks did not form within 500ms "
                           "(ShrinkGroupOptions::timeout): 1 of 2 ranks came "
                           "to the rendezvous in time; missing rank 1; rank 1 "
                           "of it is global rank " +
                           stays + " ("));
  }
  for (const auto& rank : ranks_) rank->WriteLine("go");
  for (const size_t rank : {0, 1}) {
    EXPECT_EQ(Line(rank),
              "1:shrink:2: rank " + std::to_string(rank) + " of 2, sum 3");
  }
  for (const auto& rank : ranks_) EXPECT_EQ(rank->Wait(kSoon).code, 0);
}

TEST_F(ShrinkTest, BadArgumentsLeaveTheGroupAsItWas) {
  Start("errors", 2);
  for (int rank = 0; rank < 2; ++rank) {
    for (const std::string& text : std::vector<std::string>{
             "Default process group has not been initialized",
             "ranks_to_exclude cannot be empty",
             "ranks_to_exclude: rank 2 is not in group \"world\", whose ranks "
             "are 0 to 1",
             "ranks_to_exclude: rank -1 is not in group \"world\"",
             "ranks_to_exclude cannot have duplicate ranks, but rank 1 is in "
             "it twice",
             "ranks_to_exclude: cannot exclude all ranks, got 2",
             "ranks_to_exclude: this rank, " + std::to_string(rank) +
                 ", is among them",
             "ShrinkGroupOptions::timeout must not be negative but was -1 "
             "ms"}) {
      EXPECT_THAT(Line(rank), StartsWith("error DistError [] " + text));
    }
    EXPECT_EQ(Line(rank),
              "world: rank " + std::to_string(rank) + " of 2, sum 3");
    EXPECT_EQ(ranks_[rank]->Wait(kSoon).code, 0);
  }
}

// Returns the number in the environment variable.
int GetCycles(const char* variable, int fallback) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? fallback : std::atoi(text);
}

TEST_F(ShrinkTest, NothingIsLeftOfGroupsThatCameAndWent) {
  const int cycles = GetCycles("MUSTER_CREATE_CYCLES", 50);
  Start("create_cycles", 2, cycles);
  ExpectNoGrowth(kSoon + std::chrono::seconds(cycles / 5));
}

TEST_F(ShrinkTest, AGroupWithSmallCollectivesAloneTakesNoThreadAndLittle) {
  constexpr int kGroups = 64;
  Start("many_groups", 2, kGroups);
  for (size_t rank = 0; rank < 2; ++rank) {
    // The number of gRPC's threads varies.
    EXPECT_LT(std::stoi(Line(rank)), kGroups / 4);
    // Two connections to its peer, a listener, and a descriptor for wake-ups.
    EXPECT_LE(std::stoi(Line(rank)), 6 * kGroups);
    EXPECT_LE(std::stoi(Line(rank)), 64 * kGroups);  // KiB
    EXPECT_EQ(ranks_[rank]->Wait(kSoon).code, 0);
  }
}

TEST_F(ShrinkTest, GroupsThatNobodyHasAnyMoreAreDestroyed) {
  constexpr int kGroups = 20;
  Start("dropped_groups", 2, kGroups);
  for (size_t rank = 0; rank < 2; ++rank) {
    // If they leaked, 20 groups would add 20 or more of each.
    EXPECT_LT(std::stoi(Line(rank)), kGroups / 2);
    EXPECT_LT(std::stoi(Line(rank)), kGroups / 2);
    EXPECT_EQ(ranks_[rank]->Wait(kSoon).code, 0);
  }
}

TEST_F(ShrinkTest, NothingIsLeftOfGroupsThatFailedAndFormedAgain) {
  const int cycles = GetCycles("MUSTER_FAIL_CYCLES", 5);
  Start("fail_cycles", 3, cycles);
  ExpectNoGrowth(kSoon + std::chrono::seconds(5 * cycles));
}

}  // namespace
}  // namespace muster
