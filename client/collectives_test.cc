// Every verb of a process group between processes. Tests that its arguments
// reach the data plane, whose own tests check the results.

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/testing/processes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using muster::testing::Process;
using muster::testing::ReservedPort;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kSoon(30);

class CollectivesTest : public ::testing::Test {
 protected:
  void Start(const std::string& scenario, int size) {
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<Process>(
          std::vector<std::string>{"client/testing/rank", scenario},
          std::map<std::string, std::string>{
              {"RANK", std::to_string(rank)},
              {"WORLD_SIZE", std::to_string(size)},
              {"MASTER_ADDR", "127.0.0.1"},
              {"MASTER_PORT", std::to_string(port_.port())}}));
    }
  }

  ReservedPort port_;
  std::vector<std::unique_ptr<Process>> ranks_;
};

TEST_F(CollectivesTest, EveryVerbDoesWhatItsNameSays) {
  Start("every_verb", 3);
  for (const auto& rank : ranks_) {
    std::string line = rank->ReadLine(kSoon);
    EXPECT_THAT(line, EndsWith(" ok"));
    while (line.ends_with(" ok")) line = rank->ReadLine(kSoon);
    EXPECT_EQ(line, "bye");
    EXPECT_EQ(rank->Wait(kSoon).code, 0);
  }
}

TEST_F(CollectivesTest, BadArgumentsAndUnfinishedWorksSaySo) {
  Start("verb_errors", 2);
  for (int rank = 0; rank < 2; ++rank) {
    Process& process = *ranks_[rank];
    EXPECT_EQ(process.ReadLine(kSoon),
              "error DistError [] send on group \"world\": argument dst: "
              "Invalid destination rank: destination rank should not be the "
              "same as the rank of the current process, got " +
                  std::to_string(rank) + "; Isend may send to it");
    EXPECT_EQ(process.ReadLine(kSoon),
              "error DistError [] recv on group \"world\": Invalid source "
              "rank: -1");
    EXPECT_EQ(process.ReadLine(kSoon),
              "error DistError [] p2p_op_list must not be empty");
    EXPECT_EQ(process.ReadLine(kSoon),
              "error DistError [] reduce #1 on group \"world\": argument "
              "reduce_op: Cannot use ReduceOp.BAND with non-integral dtype, "
              "got float32[2]");
    EXPECT_EQ(process.ReadLine(kSoon),
              "error DistError [] Work needs to be completed before calling "
              "result(). Should call wait() before result().");
    EXPECT_EQ(process.ReadLine(kSoon), "no exception");
    const std::string timeout = process.ReadLine(kSoon);
    EXPECT_THAT(timeout, HasSubstr("error DistBackendError ["));
    EXPECT_THAT(timeout, HasSubstr("recv #1 on group \"world\": timed out "
                                   "after 1s waiting for rank "));
    EXPECT_EQ(process.ReadLine(kSoon), "exception");
    EXPECT_EQ(process.Wait(kSoon).code, 0);
  }
}

}  // namespace
}  // namespace muster
