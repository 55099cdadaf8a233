// InitProcessGroup and collectives between processes.

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/testing/processes.h"
#include "coordinator/server/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/mutex.h"
#include "muster/file_store.h"
#include "muster/session.h"
#include "muster/store.h"

namespace muster {
namespace {

using muster::testing::Exit;
using muster::testing::Process;
using muster::testing::ReservedPort;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

constexpr seconds kSoon(30);

using Ranks = std::vector<std::unique_ptr<Process>>;

class DistributedTest : public ::testing::Test {
 protected:
  std::map<std::string, std::string> Env(int rank, int size) const {
    return {{"RANK", std::to_string(rank)},
            {"WORLD_SIZE", std::to_string(size)},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", std::to_string(port_.port())}};
  }

  static std::unique_ptr<Process> Start(
      std::vector<std::string> arguments,
      const std::map<std::string, std::string>& environment) {
    arguments.insert(arguments.begin(), "client/testing/rank");
    return std::make_unique<Process>(arguments, environment);
  }

  Ranks StartAll(int size, const std::string& scenario) const {
    Ranks ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back(Start({scenario}, Env(rank, size)));
    }
    return ranks;
  }

  static void ExpectLines(const Ranks& ranks, const std::string& line) {
    for (const auto& rank : ranks) EXPECT_EQ(rank->ReadLine(kSoon), line);
  }

  static void ExpectExits(const Ranks& ranks, int code) {
    for (const auto& rank : ranks) EXPECT_EQ(rank->Wait(kSoon).code, code);
  }

  std::string Url(const std::string& scheme, const std::string& rest) const {
    return scheme + "://127.0.0.1:" + std::to_string(port_.port()) + rest;
  }

  ReservedPort port_;
};

void ExpectHello(const Ranks& ranks) {
  const int size = static_cast<int>(ranks.size());
  const std::string root = std::to_string(size - 1);
  const std::string roots = "root " + root + " " + root;
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_EQ(ranks[rank]->ReadLine(kSoon), "rank " + std::to_string(rank) +
                                                " of " + std::to_string(size) +
                                                " on shm");
    EXPECT_EQ(ranks[rank]->ReadLine(kSoon),
              "sum " + std::to_string(size * (size + 1) / 2.0) + " " +
                  std::to_string(size / 2.0));
    EXPECT_EQ(ranks[rank]->ReadLine(kSoon), roots);
    EXPECT_EQ(ranks[rank]->ReadLine(kSoon), "bye");
    EXPECT_EQ(ranks[rank]->Wait(kSoon).code, 0);
  }
}

TEST_F(DistributedTest, EnvironmentWithOneRank) {
  ExpectHello(StartAll(1, "hello"));
}

TEST_F(DistributedTest, EnvironmentWithTwoRanks) {
  ExpectHello(StartAll(2, "hello"));
}

TEST_F(DistributedTest, EnvironmentWithFourRanks) {
  ExpectHello(StartAll(4, "hello"));
}

TEST_F(DistributedTest, TcpUrl) {
  Ranks ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(Start(
        {"hello", Url("tcp", "?world_size=2&rank=" + std::to_string(rank))},
        {}));
  }
  ExpectHello(ranks);
}

// Tests with init_method file://.
class FileTest : public DistributedTest {
 protected:
  FileTest() { unlink(path_.c_str()); }
  ~FileTest() override { unlink(path_.c_str()); }

  std::unique_ptr<Process> StartRank(int rank, int size,
                                     const std::string& scenario) const {
    return Start(
        {scenario, "file://" + path_ + "?world_size=" + std::to_string(size) +
                       "&rank=" + std::to_string(rank)},
        {});
  }

  Ranks StartRanks(int size, const std::string& scenario) const {
    Ranks ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back(StartRank(rank, size, scenario));
    }
    return ranks;
  }

  const std::string path_ = ::testing::TempDir() + "/rendezvous";
};

TEST_F(FileTest, RanksMeetInAFile) {
  ExpectHello(StartRanks(3, "hello"));
  // The last rank has removed the file.
  EXPECT_NE(access(path_.c_str(), F_OK), 0);
}

TEST_F(FileTest, FormsTheGroupTwentyTimes) {
  const Ranks ranks = StartRanks(3, "again");
  ExpectLines(ranks, "formed 20 times");
  ExpectExits(ranks, 0);
}

TEST_F(FileTest, AKilledRankIsNamedByAllOthersAndTheFileCanBeUsedAgain) {
  Ranks ranks = StartRanks(3, "train");
  ExpectLines(ranks, "training");
  ranks[1]->Signal(SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_THAT(ranks[rank]->ReadLine(kSoon),
                AllOf(StartsWith("error DistNetworkError [1] "),
                      HasSubstr("rank 1 (")));
    EXPECT_EQ(ranks[rank]->ReadLine(kSoon), "same");
    EXPECT_EQ(ranks[rank]->Wait(kSoon).code, 3);
  }
  EXPECT_EQ(access(path_.c_str(), F_OK), 0);
  ExpectHello(StartRanks(3, "hello"));
}

TEST_F(FileTest, ARankThatReadOfADeadCoordinatorFindsTheNewOne) {
  const int port = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(listen(port, 1), 0);
  sockaddr_in address = {};
  socklen_t bytes = sizeof(address);
  getsockname(port, reinterpret_cast<sockaddr*>(&address), &bytes);
  FileStore(path_).Set(
      "muster/coordinator",
      "job 127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
  Ranks ranks(2);
  ranks[1] = StartRank(1, 2, "hello");
  close(accept(port, nullptr, nullptr));
  close(port);
  ranks[0] = StartRank(0, 2, "hello");
  ExpectHello(ranks);
}

TEST_F(FileTest, WhoWaitsForRankZeroSaysSo) {
  const auto rank =
      Start({"hello", "file://" + path_ + "?world_size=2&rank=1", "300"}, {});
  EXPECT_THAT(
      rank->ReadLine(kSoon),
      StartsWith("error DistError [] rank 1 waited for rank 0 to serve the "
                 "coordinator for 300ms (timeout: "
                 "InitProcessGroupOptions::timeout): wait timeout after "));
  EXPECT_EQ(rank->Wait(kSoon).code, 4);
}

TEST_F(DistributedTest, ExternalCoordinatorGivesOutTheRanks) {
  coordinator::ServerOptions options;
  options.listen = "127.0.0.1:" + std::to_string(port_.port());
  const auto server = coordinator::Server::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  // One group after the other, in one job.
  for (int i = 0; i < 2; ++i) {
    Ranks ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.push_back(
          Start({"hello", Url("muster", "/llama?world_size=2")}, {}));
    }
    std::string seen;
    for (const auto& rank : ranks) seen += rank->ReadLine(kSoon) + ";";
    EXPECT_THAT(seen,
                AllOf(HasSubstr("rank 0 of 2"), HasSubstr("rank 1 of 2")));
    ExpectExits(ranks, 0);
  }
}

TEST_F(DistributedTest, AnElasticGroupShrinksAndGrowsAndKeepsItsRanks) {
  coordinator::ServerOptions options;
  options.listen = "127.0.0.1:" + std::to_string(port_.port());
  const auto server = coordinator::Server::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  Ranks ranks;
  for (int i = 0; i < 3; ++i) {
    ranks.push_back(Start({"elastic", Url("muster", "/llama")}, {}));
  }
  std::map<std::string, Process*> by_rank;
  for (const auto& rank : ranks) {
    by_rank[rank->ReadLine(kSoon)] = rank.get();
  }
  ASSERT_EQ(by_rank.count("rank 0 of 3"), 1u);
  ASSERT_EQ(by_rank.count("rank 1 of 3"), 1u);
  ASSERT_EQ(by_rank.count("rank 2 of 3"), 1u);
  by_rank["rank 2 of 3"]->Signal(SIGKILL);
  EXPECT_EQ(by_rank["rank 0 of 3"]->ReadLine(kSoon), "rank 0 of 2");
  EXPECT_EQ(by_rank["rank 1 of 3"]->ReadLine(kSoon), "rank 1 of 2");
  // The newcomer waits for the end of the running group and then gets a seat.
  const auto newcomer =
      Start({"elastic_newcomer", Url("muster", "/llama")}, {});
  by_rank["rank 0 of 3"]->Signal(SIGKILL);
  EXPECT_EQ(by_rank["rank 1 of 3"]->ReadLine(kSoon), "rank 1 of 2");
  EXPECT_EQ(newcomer->ReadLine(kSoon), "rank 0 of 2");
}

TEST_F(DistributedTest, NothingOfDeadGroupsStaysInTheStore) {
  coordinator::ServerOptions options;
  options.listen = "127.0.0.1:" + std::to_string(port_.port());
  const auto server = coordinator::Server::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string url = Url("muster", "/llama?world_size=2");
  for (int i = 0; i < 2; ++i) {
    Ranks ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.push_back(Start({"train", url}, {}));
    }
    ExpectLines(ranks, "training");
    ranks[1]->Signal(SIGKILL);
    EXPECT_EQ(ranks[0]->Wait(kSoon).code, 3);
  }
  CoordinatorStore store(
      Session::Connect({.address = "127.0.0.1:" + std::to_string(port_.port()),
                        .job = "llama"}));
  // The dead rank of the second group left its keys; those of the first group's
  // rank were deleted.
  EXPECT_THAT(store.ListKeys("muster/"), Each(HasSubstr("/2/")));
  const Ranks ranks = [&] {
    Ranks last;
    for (int rank = 0; rank < 2; ++rank) {
      last.push_back(Start({"hello", url}, {}));
    }
    return last;
  }();
  ExpectExits(ranks, 0);
  EXPECT_THAT(store.ListKeys("muster/"), IsEmpty());
}

TEST_F(DistributedTest, TheLaunchersCoordinatorIsUsed) {
  coordinator::ServerOptions options;
  options.listen = "127.0.0.1:" + std::to_string(port_.port());
  const auto server = coordinator::Server::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  Ranks ranks;
  for (int rank = 0; rank < 2; ++rank) {
    auto environment = Env(rank, 2);
    environment["TORCHELASTIC_USE_AGENT_STORE"] = "True";
    ranks.push_back(Start({"hello"}, environment));
  }
  ExpectHello(ranks);
}

TEST_F(DistributedTest, FormsTheGroupTwentyTimes) {
  const Ranks ranks = StartAll(2, "again");
  ExpectLines(ranks, "formed 20 times");
  ExpectExits(ranks, 0);
}

TEST_F(DistributedTest, RanksMeetInAnyStore) {
  const Ranks ranks = StartAll(3, "again_in_store");
  ExpectLines(ranks, "formed 20 times");
  ExpectExits(ranks, 0);
}

TEST_F(DistributedTest, AThreadFindsTheGroupThatThereIs) {
  for (const char* const scenario : {"at_exit", "groups_of_another_thread"}) {
    const Ranks ranks = StartAll(2, scenario);
    ExpectLines(ranks, "sums 2 2");
    ExpectExits(ranks, 0);
  }
}

TEST_F(DistributedTest, NothingIsLeftOfADestroyedGroup) {
  const Ranks ranks = StartAll(2, "leftovers");
  for (const auto& rank : ranks) {
    std::string first;
    for (int i = 0; i < 3; ++i) {
      rank->ReadLine(kSoon);
      rank->ReadLine(kSoon);
      const std::string left = rank->ReadLine(kSoon);
      if (i == 0) first = left;
      EXPECT_THAT(left, StartsWith("left 1 threads, "));
      // gRPC's permanent threads exist after the first.
      EXPECT_EQ(left, first);
    }
  }
  ExpectExits(ranks, 0);
}

TEST_F(DistributedTest, MisuseIsAnErrorThatNamesIt) {
  const auto rank = Start({"misuse"}, {});
  const std::vector<std::string> expected = {
      "rank before init: DistError: Default process group has not been "
      "initialized, please make sure to call init_process_group. In C++: "
      "muster::InitProcessGroup()",
      "destroy before init: DistError: Default process group has not been "
      "initialized, please make sure to call init_process_group. In C++: "
      "muster::InitProcessGroup()",
      "backend: DistError: unknown backend \"carrier-pigeon\": this program "
      "has gloo, shm; others are registered (RegisterBackend), or loaded from "
      "a "
      "library (LoadBackend, MUSTER_BACKEND_LIBRARIES)",
      "timeout: DistError: InitProcessGroupOptions::timeout must be positive "
      "but was 0 ms",
      "scheme: DistError: No rendezvous handler for pigeon://: use env://, "
      "tcp://HOST:PORT?rank=R&world_size=N, "
      "file:///PATH?rank=R&world_size=N or muster://HOST:PORT/JOB",
      "store and method: DistError: Cannot specify both init_method and store.",
      "store without size: DistError: world_size must be positive if using "
      "store",
      "store without rank: DistError: rank must be non-negative if using "
      "store, and less than world_size 1, but was -1",
      "store: ok",
      "init: ok",
      "twice: DistError: trying to initialize the default process group twice!",
  };
  for (const std::string& line : expected) {
    EXPECT_EQ(rank->ReadLine(kSoon), line);
  }
  EXPECT_THAT(rank->ReadLine(kSoon),
              AllOf(StartsWith("root: DistError: broadcast #1 on group "),
                    HasSubstr("invalid root rank: 7")));
  EXPECT_THAT(rank->ReadLine(kSoon), StartsWith("negative timeout: DistError"));
  EXPECT_EQ(rank->ReadLine(kSoon), "good: ok");
  EXPECT_EQ(rank->ReadLine(kSoon), "destroy: ok");
  EXPECT_EQ(rank->Wait(kSoon).code, 0);
}

TEST_F(DistributedTest, MissingVariable) {
  auto environment = Env(0, 1);
  environment.erase("MASTER_PORT");
  const auto rank = Start({"hello"}, environment);
  EXPECT_THAT(
      rank->ReadLine(kSoon),
      StartsWith("error DistError [] Error initializing torch.distributed "
                 "using env:// rendezvous: environment variable MASTER_PORT "
                 "expected, but not set: start the program with "));
  EXPECT_EQ(rank->Wait(kSoon).code, 4);
}

TEST_F(DistributedTest, NoCoordinatorAtTheAddress) {
  const auto rank =
      Start({"hello", Url("tcp", "?rank=1&world_size=2"), "500"}, {});
  // On a busy machine the first refusal may come later.
  EXPECT_THAT(
      rank->ReadLine(kSoon),
      MatchesRegex("error DistNetworkError \\[\\] coordinator at 127.0.0.1:" +
                   std::to_string(port_.port()) +
                   " \\(embedded in rank 0\\): connection refused for "
                   "[0-9]+ms \\(timeout: InitProcessGroupOptions::timeout\\)"));
  EXPECT_EQ(rank->Wait(kSoon).code, 4);
}

TEST_F(DistributedTest, PortInUse) {
  coordinator::ServerOptions options;
  options.listen = "127.0.0.1:" + std::to_string(port_.port());
  const auto server = coordinator::Server::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto rank = Start({"hello"}, Env(0, 1));
  EXPECT_THAT(rank->ReadLine(kSoon),
              AllOf(StartsWith("error DistNetworkError [] rank 0 cannot serve "
                               "the coordinator at 127.0.0.1:" +
                               std::to_string(port_.port())),
                    HasSubstr("in use; it must be an address of rank 0's")));
  EXPECT_EQ(rank->Wait(kSoon).code, 4);
}

TEST_F(DistributedTest, ARankThatDoesNotComeIsNamed) {
  const auto rank =
      Start({"hello", Url("tcp", "?rank=0&world_size=2"), "500"}, {});
  // At most a tenth longer than its timeout.
  EXPECT_THAT(rank->ReadLine(kSoon),
              MatchesRegex("error DistError \\[1\\] rendezvous: 1 of 2 ranks "
                           "joined in [0-9]+ms; missing rank 1 \\(timeout: "
                           "InitProcessGroupOptions::timeout\\)"));
  EXPECT_EQ(rank->Wait(kSoon).code, 4);
}

TEST_F(DistributedTest, DuplicateRankNamesBothClaimants) {
  const auto zero = Start({"hello"}, Env(0, 3));
  const auto one = Start({"hello"}, Env(1, 3));
  const auto twin = Start({"hello"}, Env(1, 3));
  // The loser is the process that came second.
  Process* const loser = [&] {
    for (;;) {
      for (Process* each : {one.get(), twin.get()}) {
        const std::string line = each->ReadLine(seconds(1));
        if (line.empty()) continue;
        EXPECT_THAT(line, AllOf(StartsWith("error DistError"),
                                HasSubstr("rank 1 is claimed twice"),
                                HasSubstr(std::to_string(one->pid())),
                                HasSubstr(std::to_string(twin->pid()))));
        return each;
      }
    }
  }();
  EXPECT_EQ(loser->Wait(kSoon).code, 4);
}

TEST_F(DistributedTest, AnotherWorldSizeNamesBothClaimants) {
  const auto zero = Start({"hello"}, Env(0, 3));
  const auto one = Start({"hello"}, Env(1, 3));
  const auto two = Start({"hello"}, Env(2, 4));
  // The first rank is right; any other may be the one that disagrees.
  bool named = false;
  while (!named) {
    for (Process* each : {zero.get(), one.get(), two.get()}) {
      const std::string line = each->ReadLine(seconds(1));
      if (line.empty()) continue;
      EXPECT_THAT(line,
                  AnyOf(AllOf(HasSubstr("world size 4,"), HasSubstr("for 3")),
                        AllOf(HasSubstr("world size 3,"), HasSubstr("for 4"))));
      named = true;
      break;
    }
  }
}

TEST_F(DistributedTest, AKilledRankIsNamedByAllOthers) {
  const Ranks ranks = StartAll(4, "train");
  ExpectLines(ranks, "training");
  ranks[2]->Signal(SIGKILL);
  for (int rank : {0, 1, 3}) {
    EXPECT_THAT(ranks[rank]->ReadLine(seconds(10)),
                AllOf(StartsWith("error DistNetworkError [2] all_reduce #"),
                      HasSubstr("rank 2 ("),
                      HasSubstr("pid " + std::to_string(ranks[2]->pid())),
                      HasSubstr("was lost: connection closed"),
                      HasSubstr("last progress: ")));
    EXPECT_EQ(ranks[rank]->ReadLine(kSoon), "same");
    EXPECT_EQ(ranks[rank]->Wait(kSoon).code, 3);
  }
}

// An operator must see at a glance which rank was lost.
TEST_F(DistributedTest, WhoEndsBecauseOfAnotherIsNotAmongTheLost) {
  coordinator::ServerOptions options;
  options.listen = "127.0.0.1:" + std::to_string(port_.port());
  const auto server = coordinator::Server::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  Mutex mutex;
  CondVar changed;
  std::map<int64_t, MemberEvent> events;  // by pid
  SessionOptions observer;
  observer.address = options.listen;
  observer.job = "llama";
  observer.on_event = [&](const MemberEvent& event) {
    MutexLock lock(mutex);
    events[event.member.pid] = event;
    for (const MemberInfo& member : event.left_members) {
      events[member.pid] = event;
      events[member.pid].member = member;
    }
    changed.NotifyAll();
  };
  const auto session = Session::Connect(observer);
  Ranks ranks;
  for (const char* const scenario :
       {"train", "train", "train-without-destroy"}) {
    ranks.push_back(
        Start({scenario, Url("muster", "/llama?world_size=3")}, {}));
  }
  ExpectLines(ranks, "training");
  ranks[0]->Signal(SIGKILL);
  for (int i : {1, 2}) EXPECT_EQ(ranks[i]->Wait(kSoon).code, 3);
  const auto until = Clock::now() + kSoon;
  MutexLock lock(mutex);
  while (events.size() < 3 && changed.WaitUntil(mutex, until)) {
  }
  EXPECT_EQ(events[ranks[0]->pid()].kind, MemberEvent::Kind::kLost);
  for (int i : {1, 2}) {
    const MemberEvent& event = events[ranks[i]->pid()];
    EXPECT_EQ(event.kind, MemberEvent::Kind::kLeft);
    EXPECT_THAT(event.member.cause,
                AllOf(HasSubstr("its group failed: "),
                      HasSubstr("pid " + std::to_string(ranks[0]->pid()))));
  }
}

TEST_F(DistributedTest, RankZeroTakesItsCoordinatorWithIt) {
  const Ranks ranks = StartAll(3, "train");
  ExpectLines(ranks, "training");
  ranks[0]->Signal(SIGKILL);
  const auto before = std::chrono::steady_clock::now();
  for (int rank : {1, 2}) {
    EXPECT_THAT(
        ranks[rank]->ReadLine(kSoon),
        AllOf(
            StartsWith("error DistNetworkError [0] all_reduce #"),
            HasSubstr("was lost: connection to the coordinator that it served "
                      "lost and not restored; last progress: not known")));
    // Sooner than the lease.
    EXPECT_LT(std::chrono::steady_clock::now() - before, seconds(9));
    EXPECT_EQ(ranks[rank]->ReadLine(kSoon), "same");
    EXPECT_EQ(ranks[rank]->Wait(kSoon).code, 3);
  }
}

TEST_F(DistributedTest, ARankThatExitsInTheMiddleIsNamed) {
  Ranks ranks = StartAll(3, "collective");
  ranks[1] = nullptr;
  ranks[1] = Start({"deserter"}, Env(1, 3));
  ExpectLines(ranks, "formed");
  ranks[0]->WriteLine("go");
  ranks[2]->WriteLine("go");
  ranks[1]->WriteLine("go");
  EXPECT_EQ(ranks[1]->Wait(kSoon).code, 5);
  for (int rank : {0, 2}) {
    EXPECT_THAT(ranks[rank]->ReadLine(kSoon),
                StartsWith("error DistNetworkError [1] all_reduce #1"));
  }
}

TEST_F(DistributedTest, WhoLeftIsTheExplanation) {
  Ranks ranks = StartAll(2, "collective");
  ranks[1] = nullptr;
  ranks[1] = Start({"leave_early"}, Env(1, 2));
  ExpectLines(ranks, "formed");
  ranks[1]->WriteLine("go");
  EXPECT_EQ(ranks[1]->Wait(kSoon).code, 0);
  ranks[0]->WriteLine("go");
  EXPECT_THAT(ranks[0]->ReadLine(kSoon),
              AllOf(StartsWith("error DistNetworkError [1] all_reduce #1"),
                    HasSubstr("left: finished")));
}

TEST_F(DistributedTest, ACollectiveThatTimesOutNamesTheRankThatDidNotCome) {
  const Ranks ranks = StartAll(3, "collective");
  ExpectLines(ranks, "formed");
  ranks[0]->WriteLine("go");
  ranks[2]->WriteLine("go");
  for (int rank : {0, 2}) {
    EXPECT_THAT(ranks[rank]->ReadLine(kSoon),
                AllOf(StartsWith("error DistBackendError [1] all_reduce #1"),
                      HasSubstr("timed out after 2s")));
  }
}

TEST_F(DistributedTest, AStoppedRankIsNamedByTheMonitoredBarrier) {
  const Ranks ranks = StartAll(4, "monitored_barriers");
  ExpectLines(ranks, "formed");
  for (const auto& rank : ranks) rank->WriteLine("barrier");
  ExpectLines(ranks, "passed");
  ranks[2]->Signal(SIGSTOP);
  for (int rank : {0, 1, 3}) ranks[rank]->WriteLine("barrier");
  for (int rank : {0, 1, 3}) {
    EXPECT_THAT(ranks[rank]->ReadLine(kSoon),
                StartsWith("error DistError [2] [Rank " + std::to_string(rank) +
                           "]: Rank 2 failed to pass monitoredBarrier in 2000 "
                           "ms: "));
  }
  // The rank is late, not dead: the group goes on.
  ranks[2]->Signal(SIGCONT);
  ranks[2]->WriteLine("barrier");
  EXPECT_THAT(ranks[2]->ReadLine(kSoon), StartsWith("error DistError"));
  for (const auto& rank : ranks) rank->WriteLine("barrier");
  ExpectLines(ranks, "passed");
  for (const auto& rank : ranks) rank->WriteLine("end");
  ExpectExits(ranks, 0);
}

}  // namespace
}  // namespace muster
