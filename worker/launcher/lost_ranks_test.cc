#include "worker/launcher/lost_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/endpoint.h"
#include "client/control/host_members.h"
#include "client/testing/cutting_proxy.h"
#include "client/testing/processes.h"
#include "coordinator/server/auth/test_certificates.h"
#include "muster/session.h"

namespace muster::worker {
namespace {

using internal::HostMember;
using muster::testing::CuttingProxy;
using muster::testing::Process;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

// With a coordinator that requires certificates and tokens, which all take from
// their environment.
class LostRanksTest : public ::testing::Test {
 protected:
  LostRanksTest() : coordinator_(Command(protection_), {}) {
    protection_.SetEnvironment();
    const std::string line = coordinator_.ReadLine(seconds(60));
    port_ = std::stoi(line.substr(line.find("127.0.0.1:") + 10));
    SessionOptions options;
    options.address = "127.0.0.1:" + std::to_string(port_);
    options.job = "job";
    reader_ = *internal::HostMembersReader::Open(options);
  }

  static std::vector<std::string> Command(
      const coordinator::TestProtection& protection) {
    std::vector<std::string> command = {"coordinator/muster-coordinator",
                                        "--listen=127.0.0.1:0",
                                        "--http_listen=", "--lease=1s"};
    for (const std::string& flag : protection.flags()) command.push_back(flag);
    return command;
  }

  // Starts a rank of a job of `world_size`.
  std::unique_ptr<Process> StartRank(int world_size) {
    std::map<std::string, std::string> environment = protection_.environment();
    environment["RANK"] = "0";
    environment["WORLD_SIZE"] = std::to_string(world_size);
    return std::make_unique<Process>(
        std::vector<std::string>{
            "client/testing/rank", "collective",
            "muster://127.0.0.1:" + std::to_string(port_) + "/job"},
        environment);
  }

  void AwaitState(const Process& rank, HostMember::State state) {
    while (true) {
      const auto answer = reader_->Read(internal::HostName());
      ASSERT_TRUE(answer.ok()) << answer.status();
      for (const HostMember& member : answer->members) {
        if (member.pid == rank.pid() && member.state == state) return;
      }
    }
  }

  std::unique_ptr<LostRanks> Listen(int port) {
    return std::make_unique<LostRanks>(
        CoordinatorAddress{"127.0.0.1", port, "job"},
        LostRanks::Ranks{.rank_count = 2, .world_size = 2}, milliseconds(0),
        [this] {
          MutexLock lock(mutex_);
          woken_ = true;
          changed_.NotifyAll();
        });
  }

  // Returns the next processes that are found. `wake` is called for other news,
  // too.
  std::vector<pid_t> Await(LostRanks& lost_ranks) {
    const auto until = Clock::now() + seconds(60);
    std::vector<pid_t> pids;
    while (pids.empty() && Clock::now() < until) {
      {
        MutexLock lock(mutex_);
        while (!woken_ && Clock::now() < until) {
          changed_.WaitUntil(mutex_, until);
        }
        woken_ = false;
      }
      for (const LostRanks::Hung& lost : lost_ranks.Take()) {
        pids.push_back(lost.pid);
      }
    }
    return pids;
  }

  const coordinator::TestProtection protection_{"job"};
  Process coordinator_;
  int port_ = 0;
  std::unique_ptr<internal::HostMembersReader> reader_;
  Mutex mutex_;
  CondVar changed_;
  bool woken_ MUSTER_GUARDED_BY(mutex_) = false;
};

TEST_F(LostRanksTest, TheEndDoesNotWaitForACoordinatorThatIsNotThere) {
  const auto start = std::chrono::steady_clock::now();
  // Nothing listens on port 1.
  Listen(1).reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(30));
}

// Only the members of its rendezvous know of it.
TEST_F(LostRanksTest, ARankThatHangsBeforeItHasANumberIsTold) {
  const auto lost_ranks = Listen(port_);
  const auto rank = StartRank(/*world_size=*/2);
  AwaitState(*rank, HostMember::State::kLive);
  rank->Signal(SIGSTOP);
  EXPECT_THAT(Await(*lost_ranks), ElementsAre(rank->pid()));
}

TEST_F(LostRanksTest, ARankThatHasNotJoinedAndACoordinatorThatIsGoneAreTold) {
  CuttingProxy proxy(port_);
  const auto lost_ranks = Listen(proxy.port());
  const auto rank = StartRank(/*world_size=*/2);
  std::optional<LostRanks::Rendezvous> rendezvous;
  while (!rendezvous.has_value()) rendezvous = lost_ranks->TakeRendezvous();
  EXPECT_THAT(rendezvous->missing, ElementsAre(1));
  EXPECT_EQ(rendezvous->joined, 1);
  EXPECT_FALSE(rendezvous->none_came);
  proxy.HoldAnswers(true);
  std::string silence;
  while (silence.empty()) silence = lost_ranks->DescribeSilence();
  EXPECT_THAT(silence, MatchesRegex(absl::StrCat(
                           "the coordinator at 127.0.0.1:", proxy.port(),
                           " has not answered for "
                           "[0-9]+\\.[0-9]s")));
  proxy.HoldAnswers(false);
}

TEST_F(LostRanksTest, ARankThatHungWhileNobodyAnsweredIsToldLater) {
  CuttingProxy proxy(port_);
  const auto lost_ranks = Listen(proxy.port());
  const auto rank = StartRank(/*world_size=*/1);
  ASSERT_EQ(rank->ReadLine(seconds(60)), "formed");
  proxy.HoldAnswers(true);
  const int connections = proxy.connections();
  rank->Signal(SIGSTOP);
  AwaitState(*rank, HostMember::State::kLost);
  // It has given up a call.
  while (proxy.connections() == connections) {
  }
  EXPECT_THAT(lost_ranks->Take(), IsEmpty());
  proxy.HoldAnswers(false);
  EXPECT_THAT(Await(*lost_ranks), ElementsAre(rank->pid()));
}

}  // namespace
}  // namespace muster::worker
