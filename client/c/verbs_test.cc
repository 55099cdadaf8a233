// Every verb of the C interface, between processes of a C program, which checks
// the results itself.

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "client/testing/processes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::c {
namespace {

using muster::testing::Process;
using muster::testing::ReservedPort;
using ::testing::EndsWith;

constexpr std::chrono::seconds kSoon(60);

std::vector<std::unique_ptr<Process>> Start(const std::string& scenario,
                                            int size, int port) {
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<Process>(
        std::vector<std::string>{"client/c/testing/verb_rank", scenario},
        std::map<std::string, std::string>{
            {"RANK", std::to_string(rank)},
            {"WORLD_SIZE", std::to_string(size)},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", std::to_string(port)}}));
  }
  return ranks;
}

class VerbsTest : public ::testing::TestWithParam<int> {};

TEST_P(VerbsTest, EveryVerbDoesWhatItsNameSays) {
  ReservedPort port;
  for (const auto& rank : Start("every_verb", GetParam(), port.port())) {
    std::string line = rank->ReadLine(kSoon);
    EXPECT_THAT(line, EndsWith(" ok"));
    while (line.ends_with(" ok")) line = rank->ReadLine(kSoon);
    EXPECT_EQ(line, "bye");
    EXPECT_EQ(rank->Wait(kSoon).code, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, VerbsTest, ::testing::Values(1, 2, 4));

TEST(LostPeerTest, ErrorsAndCallbacksBlameTheRankThatDied) {
  ReservedPort port;
  auto ranks = Start("lost_peer", 2, port.port());
  EXPECT_EQ(ranks[1]->Wait(kSoon).code, 9);
  EXPECT_EQ(ranks[0]->ReadLine(kSoon), "lost peer ok");
  EXPECT_EQ(ranks[0]->ReadLine(kSoon), "callback ok");
  EXPECT_EQ(ranks[0]->ReadLine(kSoon), "bye");
  EXPECT_EQ(ranks[0]->Wait(kSoon).code, 0);
}

TEST(RefusedCallTest, TheNextCallDoesNotMeetThePeersInItsPlace) {
  ReservedPort port;
  for (const auto& rank : Start("refused_call", 2, port.port())) {
    EXPECT_EQ(rank->ReadLine(kSoon), "refused call ok");
    EXPECT_EQ(rank->ReadLine(kSoon), "bye");
    EXPECT_EQ(rank->Wait(kSoon).code, 0);
  }
}

}  // namespace
}  // namespace muster::c
