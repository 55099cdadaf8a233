// A rank that was stopped in a collective and goes on after the timeout, but
// before the others have found the culprit: it is the culprit, not a rank that
// waited for it.

#include <signal.h>

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/testing/processes.h"
#include "coordinator/server/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using coordinator::Server;
using coordinator::ServerOptions;
using muster::testing::Process;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::chrono::seconds kSoon(30);

// A job of two ranks, with its own coordinator.
class Job {
 public:
  explicit Job(const std::string& debug_level) {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    server_ = *Server::Start(options);
    for (int rank = 0; rank < 2; ++rank) {
      ranks[rank] = std::make_unique<Process>(
          std::vector<std::string>{"client/testing/rank", "long_collective"},
          std::map<std::string, std::string>{
              {"RANK", std::to_string(rank)},
              {"WORLD_SIZE", "2"},
              {"MUSTER_DEBUG", debug_level},
              {"TORCHELASTIC_USE_AGENT_STORE", "True"},
              {"MASTER_ADDR", "127.0.0.1"},
              {"MASTER_PORT", std::to_string(server_->port())}});
    }
    for (const auto& rank : ranks) EXPECT_EQ(rank->ReadLine(kSoon), "formed");
  }

  std::array<std::unique_ptr<Process>, 2> ranks;

 private:
  std::unique_ptr<Server> server_;
};

class StoppedRankTest : public ::testing::TestWithParam<const char*> {};

// Several jobs, because a wrong result would be rare.
TEST_P(StoppedRankTest, IsToBlameAlsoWhenItGoesOn) {
  std::array<Job, 3> jobs = {Job(GetParam()), Job(GetParam()), Job(GetParam())};
  for (Job& job : jobs) {
    job.ranks[0]->WriteLine("go");
    ASSERT_EQ(job.ranks[0]->ReadLine(kSoon), "begun");
    job.ranks[0]->Signal(SIGSTOP);
    job.ranks[1]->WriteLine("go");
    ASSERT_EQ(job.ranks[1]->ReadLine(kSoon), "begun");
  }
  // Rank 1 timed out a second ago, and looks for the culprit for two seconds.
  EXPECT_EQ(jobs[0].ranks[1]->ReadLine(std::chrono::seconds(5)), "");
  for (Job& job : jobs) job.ranks[0]->Signal(SIGCONT);
  for (Job& job : jobs) {
    for (const auto& rank : job.ranks) {
      const std::string line = rank->ReadLine(kSoon);
      EXPECT_THAT(line, StartsWith("error DistBackendError [0] all_reduce #1"));
      EXPECT_THAT(line, HasSubstr("timed out after 4s"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AtLevel, StoppedRankTest,
                         ::testing::Values("OFF", "DETAIL"));

}  // namespace
}  // namespace muster
