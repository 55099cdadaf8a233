// A rank is killed or stopped in the middle of each verb. Every other rank gets
// an error that names it, its host and its last progress: 2 s after a death,
// otherwise a second after the end of its lease, although the group's timeout
// is 30 minutes. Another group goes on. tests/laboratory covers a rank that is
// cut off from the network.

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/control/admin_client.h"
#include "client/control/endpoint.h"
#include "client/testing/processes.h"
#include "coordinator/server/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/v1/admin.pb.h"

namespace muster {
namespace {

using coordinator::Server;
using coordinator::ServerOptions;
using internal::AdminClient;
using internal::HostName;
using muster::testing::Process;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kSoon(30);

// Longer than the second in which a broken connection may come back.
constexpr std::chrono::seconds kLease(2);
constexpr std::chrono::seconds kOfTheDead(2);
constexpr std::chrono::seconds kOfTheSilent = kLease + std::chrono::seconds(1);
// Thirty processes may run at the same time; alone the test takes 1.3 s and 2.3
// s.
constexpr std::chrono::seconds kReserve(20);

class VerbFailuresTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.lease = kLease;
    server_ = *Server::Start(options);
    for (int rank = 0; rank < 3; ++rank) {
      ranks_.push_back(std::make_unique<Process>(
          std::vector<std::string>{"client/testing/verb_rank", GetParam()},
          std::map<std::string, std::string>{
              {"RANK", std::to_string(rank)},
              {"WORLD_SIZE", "3"},
              {"TORCHELASTIC_USE_AGENT_STORE", "True"},
              {"MASTER_ADDR", "127.0.0.1"},
              {"MASTER_PORT", std::to_string(server_->port())}}));
    }
    for (const auto& rank : ranks_) {
      ASSERT_EQ(rank->ReadLine(kSoon), "running");
    }
    AwaitProgress();
  }

  // Waits until the coordinator has every rank's progress.
  void AwaitProgress() {
    const auto control = *AdminClient::Open(
        {.address = "127.0.0.1:" + std::to_string(server_->port())});
    v1::GetJobRequest request;
    request.set_job("default");
    int known = 0;
    while (known < 3) {
      v1::GetJobResponse job;
      ASSERT_TRUE(control->GetJob(request, &job).ok());
      known = static_cast<int>(std::count_if(
          job.members().begin(), job.members().end(),
          [](const auto& member) { return !member.last_progress().empty(); }));
    }
  }

  // Sends the signal to rank 1.
  void ExpectTheOthersToNameIt(int signal, const std::string& cause,
                               std::chrono::seconds bound) {
    const Clock::time_point before = Clock::now();
    ranks_[1]->Signal(signal);
    for (const size_t rank : {0, 2}) {
      EXPECT_THAT(
          ranks_[rank]->ReadLine(kSoon),
          AllOf(AnyOf(StartsWith("error DistNetworkError [1] "),
                      StartsWith("error DistBackendError [1] ")),
                HasSubstr("rank 1 (" + HostName() + ", pid " +
                          std::to_string(ranks_[1]->pid()) + ") " + cause),
                HasSubstr("; last progress: group \"world\": ")))
          << "rank " << rank;
      EXPECT_LT(Clock::now() - before, bound + kReserve) << "rank " << rank;
    }
    for (const size_t rank : {0, 2}) {
      EXPECT_EQ(ranks_[rank]->ReadLine(kSoon), "pair sum 4");
      EXPECT_EQ(ranks_[rank]->Wait(kSoon).code, 0);
    }
  }

  std::unique_ptr<Server> server_;
  std::vector<std::unique_ptr<Process>> ranks_;
};

TEST_P(VerbFailuresTest, AKilledRankIsNamed) {
  ExpectTheOthersToNameIt(SIGKILL, "was lost: connection closed", kOfTheDead);
}

TEST_P(VerbFailuresTest, AStoppedRankIsNamed) {
  ExpectTheOthersToNameIt(SIGSTOP, "was lost: no heartbeat for ", kOfTheSilent);
}

INSTANTIATE_TEST_SUITE_P(
    Verbs, VerbFailuresTest,
    ::testing::Values("all_reduce", "broadcast", "reduce", "all_gather",
                      "all_gather_into_tensor", "gather", "scatter",
                      "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
                      "all_to_all_single", "barrier", "all_reduce_coalesced",
                      "all_gather_into_tensor_coalesced",
                      "reduce_scatter_tensor_coalesced", "all_gather_object",
                      "broadcast_object_list", "gather_object",
                      "scatter_object_list", "send_and_recv",
                      "send_and_recv_object_list", "batch_isend_irecv"),
    [](const auto& info) { return info.param; });

}  // namespace
}  // namespace muster
