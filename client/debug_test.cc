// Debug levels, the flight recorder and breakpoints, between processes.

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/testing/processes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

using muster::testing::Process;
using muster::testing::ReservedPort;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::chrono::seconds kSoon(30);

class DebugTest : public ::testing::Test {
 protected:
  void Start(const std::string& scenario, int size,
             const std::map<std::string, std::string>& more) {
    for (int rank = 0; rank < size; ++rank) {
      std::map<std::string, std::string> environment = {
          {"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port_.port())}};
      for (const auto& [name, value] : more) {
        environment[name] =
            name == "REQUESTED" ? value + std::to_string(rank) : value;
      }
      ranks_.push_back(std::make_unique<Process>(
          std::vector<std::string>{"client/testing/debug_rank", scenario},
          environment));
    }
  }

  std::string Line(size_t rank) { return ranks_[rank]->ReadLine(kSoon); }

  void ExpectAll(const std::string& line) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      EXPECT_EQ(Line(rank), line) << "rank " << rank;
    }
  }

  void ExpectExits() {
    for (const auto& rank : ranks_) EXPECT_EQ(rank->Wait(kSoon).code, 0);
  }

  ReservedPort port_;
  std::vector<std::unique_ptr<Process>> ranks_;
};

TEST_F(DebugTest, TheLevelIsTheEnvironmentsUntilItIsSet) {
  Start("levels", 1, {{"TORCH_DISTRIBUTED_DEBUG", "LOUD"}});
  const std::string error =
      "error DistError [] The value of TORCH_DISTRIBUTED_DEBUG must be OFF, "
      "INFO, or DETAIL. It is \"LOUD\"";
  for (const std::string& line : std::vector<std::string>{
           error, error, "INFO", "no error", "INFO", "DETAIL", "OFF",
           "error DistError [] TORCH_FR_BUFFER_SIZE must be a number from 0 to "
           "1000000, but is \"many\""}) {
    EXPECT_EQ(Line(0), line);
  }
  ExpectExits();
}

TEST_F(DebugTest, DetailShowsOnEveryRankWhatMostRunAndWhoDiffers) {
  Start("mismatch", 3, {{"TORCH_DISTRIBUTED_DEBUG", "detail"}});
  EXPECT_EQ(Line(0), "good 3 243");
  EXPECT_EQ(Line(1), "good 3 486");
  EXPECT_EQ(Line(2), "good 3 486");
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(
        Line(rank),
        AllOf(StartsWith("error DistBackendError [1] all_reduce #13 on group "
                         "\"world\": "),
              HasSubstr("Detected mismatch between collectives on ranks. ranks "
                        "0, 2 of 3 run all_reduce #13 float32[6] max; rank 1 "
                        "runs all_reduce #13 float32[4] max (different "
                        "shape)")));
    EXPECT_EQ(Line(rank), "no error");
  }
  ExpectExits();
}

TEST_F(DebugTest, DetailTellsTheOthersWhatARankIsRefused) {
  Start("refusal", 3, {{"MUSTER_DEBUG", "DETAIL"}});
  const std::string why =
      ": argument inputs[0]: input tensor must be the same size as output size "
      "times world size, got float32[6] for float32[3] and 3 ranks";
  EXPECT_THAT(Line(1),
              AllOf(StartsWith("error DistError [] "), HasSubstr(why)));
  for (const size_t rank : {0, 2}) {
    EXPECT_THAT(
        Line(rank),
        AllOf(StartsWith("error DistBackendError [1] reduce_scatter_tensor #1 "
                         "on group \"world\": rank 1 refused "
                         "reduce_scatter_tensor #1 "),
              HasSubstr(why)));
  }
  for (const auto& rank : ranks_) rank->WriteLine("go");
  for (const size_t rank : {0, 2}) EXPECT_EQ(Line(rank), "no error");
  // Rank 1 may have learned of the end of the group already.
  EXPECT_THAT(Line(1), AnyOf("no error", HasSubstr(": rank 1 refused ")));
  ExpectExits();
}

TEST_F(DebugTest, DetailNamesWhoDoesNotCome) {
  Start("missing", 3, {{"MUSTER_DEBUG", "DETAIL"}});
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(Line(rank),
                AllOf(StartsWith("error DistBackendError [2] barrier #2 on "
                                 "group \"world\": "),
                      HasSubstr("timed out after 1s waiting for rank 2 to come "
                                "to it")));
  }
  for (const auto& rank : ranks_) rank->WriteLine("go");
  EXPECT_EQ(Line(0), "no error");
  EXPECT_EQ(Line(1), "no error");
  EXPECT_THAT(Line(2), StartsWith("error DistBackendError [2] "));
  EXPECT_EQ(Line(2), "no error");
  ExpectExits();
}

TEST_F(DebugTest, DetailShowsWhatThePeerOfATimeoutWaitsIn) {
  Start("peers", 3, {{"MUSTER_DEBUG", "DETAIL"}});
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(
        Line(rank),
        StartsWith("error DistBackendError [1] send #1 on group \"world\": "
                   "timed out after 5s waiting for rank 1 with tag 0; rank 1 "
                   "waits in recv #1 float32[1048576] from rank 2 tag 0, which "
                   "does not go with it; rank 1 is pid "));
  }
  for (const auto& rank : ranks_) rank->WriteLine("go");
  EXPECT_EQ(Line(0), "no error");
  EXPECT_EQ(Line(1), "no error");
  EXPECT_THAT(Line(2), StartsWith("error DistBackendError [1] send #1 "));
  EXPECT_EQ(Line(2), "no error");
  ExpectExits();
}

json Read(const std::string& path) {
  std::ifstream file(path);
  json dump = json::parse(file, nullptr, /*allow_exceptions=*/false);
  std::remove(path.c_str());
  return dump;
}

TEST_F(DebugTest, TheFlightRecorderIsWrittenOnRequestAndOnFailure) {
  const std::string prefix = ::testing::TempDir() + "/flight_";
  Start("flight", 2,
        {{"TORCH_FR_DUMP_TEMP_FILE", prefix}, {"REQUESTED", prefix + "r"}});
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(Line(rank), HasSubstr(": on purpose"));
    EXPECT_EQ(Line(rank), "no error");
    EXPECT_EQ(Line(rank), "recorded");
    EXPECT_EQ(Line(rank),
              "error DistError [] cannot write \"/nowhere/at/all\": No "
              "such file or directory");
  }
  ExpectExits();
  for (int rank = 0; rank < 2; ++rank) {
    const json requested = Read(prefix + "r" + std::to_string(rank));
    ASSERT_TRUE(requested.is_object());
    ASSERT_EQ(requested["entries"].size(), 1U);
    EXPECT_EQ(requested["entries"][0]["profiling_name"], "shm:all_reduce");
    EXPECT_EQ(requested["entries"][0]["state"], "completed");
    EXPECT_EQ(requested["entries"][0]["process_group"],
              json({"world", "default_pg"}));
    const json failed = Read(prefix + std::to_string(rank));
    ASSERT_TRUE(failed.is_object());
    EXPECT_EQ(failed["pg_config"]["0"]["ranks"], "[0, 1]");
    ASSERT_GE(failed["entries"].size(), 2U);
    EXPECT_EQ(failed["entries"][1]["profiling_name"], "shm:barrier");
  }
}

TEST_F(DebugTest, ABreakpointStopsOneRankInItsDebuggerAndHoldsTheOthers) {
  Start("break", 2, {});
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(Line(rank), HasSubstr("Global rank 2 is not part of group"));
  }
  EXPECT_THAT(Line(0), HasSubstr("breakpoint: no debugger came to rank 0 "
                                 "within 1ms (timeout: "
                                 "BreakpointOptions::timeout)"));
  EXPECT_EQ(Line(1), "no error");
  ExpectAll("now");
  for (const auto& rank : ranks_) rank->WriteLine("go");
  // This test acts as the debugger.
  const pid_t pid = ranks_[1]->pid();
  ASSERT_EQ(ptrace(PTRACE_SEIZE, pid, nullptr, nullptr), 0);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_EQ(WSTOPSIG(status), SIGTRAP);
  ASSERT_EQ(ptrace(PTRACE_DETACH, pid, nullptr, nullptr), 0);
  ExpectAll("after");
  ExpectExits();
}

}  // namespace
}  // namespace muster
