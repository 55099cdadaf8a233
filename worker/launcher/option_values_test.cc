#include "worker/launcher/option_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>

#include "absl/status/status.h"

namespace muster::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

template <typename T>
std::string ErrorOf(const absl::StatusOr<T>& parsed) {
  if (parsed.ok()) return "no error";
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(parsed.status().message());
}

TEST(OptionValuesTest, NodeCountIsANumberOrARange) {
  EXPECT_EQ(ParseNodeCount("--n", "3")->min, 3);
  EXPECT_EQ(ParseNodeCount("--n", "3")->max, 3);
  EXPECT_EQ(ParseNodeCount("--n", "1:4")->min, 1);
  EXPECT_EQ(ParseNodeCount("--n", "1:4")->max, 4);
  for (const char* value :
       {"", "0", "x", "2:1", "0:3", "1:2:3", ":", "1:", "65537", "1:65537"}) {
    EXPECT_THAT(ErrorOf(ParseNodeCount("--nnodes", value)),
                HasSubstr("--nnodes must be N or MIN:MAX, of 1 to 65536 hosts, "
                          "got \"" +
                          std::string(value) + "\""));
  }
}

TEST(OptionValuesTest, NprocCountsWhatTheHostHas) {
  const Devices with = {.cpus = 16, .gpus = 8};
  const Devices without = {.cpus = 16};
  EXPECT_EQ(*ParseNproc("--n", "4", without), 4);
  EXPECT_EQ(*ParseNproc("--n", "cpu", with), 16);
  EXPECT_EQ(*ParseNproc("--n", "gpu", with), 8);
  EXPECT_EQ(*ParseNproc("--n", "auto", with), 8);
  EXPECT_EQ(*ParseNproc("--n", "auto", without), 16);
  EXPECT_EQ(ErrorOf(ParseNproc("--n", "gpu", without)),
            "--n=gpu: this host has no GPU, or CUDA_VISIBLE_DEVICES hides it");
  EXPECT_EQ(ErrorOf(ParseNproc("--n", "four", with)),
            "--n must be 1 to 1024, auto, cpu or gpu, got \"four\"");
  EXPECT_THAT(ErrorOf(ParseNproc("--n", "0", with)), HasSubstr("got \"0\""));
}

TEST(OptionValuesTest, ThisHostHasACpu) {
  EXPECT_GE(DevicesOfHost({}).cpus, 1);
  EXPECT_EQ(DevicesOfHost({{"CUDA_VISIBLE_DEVICES", ""}}).gpus, 0);
  EXPECT_EQ(DevicesOfHost({{"CUDA_VISIBLE_DEVICES", "-1"}}).gpus, 0);
}

TEST(OptionValuesTest, StreamsAreOfAllRanksOrByRank) {
  const Streams none = *Streams::Parse("--tee", "0");
  EXPECT_TRUE(none.empty());
  const Streams err = *Streams::Parse("--tee", "2");
  EXPECT_FALSE(err.HasOut(5));
  EXPECT_TRUE(err.HasErr(5));
  const Streams mixed = *Streams::Parse("--tee", "0:3,1:1");
  EXPECT_TRUE(mixed.HasOut(0) && mixed.HasErr(0));
  EXPECT_TRUE(mixed.HasOut(1) && !mixed.HasErr(1));
  EXPECT_TRUE(!mixed.HasOut(2) && !mixed.HasErr(2));
  for (const char* value : {"", "4", "-1", "0:4", "0:", "a:1", "1,2"}) {
    EXPECT_THAT(ErrorOf(Streams::Parse("--tee", value)),
                HasSubstr("--tee must be 0 to 3"))
        << value;
  }
}

TEST(OptionValuesTest, LocalRanks) {
  EXPECT_THAT(*ParseLocalRanks("--f", ""), IsEmpty());
  EXPECT_THAT(*ParseLocalRanks("--f", "2,0,2"), ElementsAre(0, 2));
  for (const char* value : {"a", "1,", "-1"}) {
    EXPECT_THAT(ErrorOf(ParseLocalRanks("--f", value)), HasSubstr("--f must"));
  }
}

TEST(OptionValuesTest, SignalsHaveNames) {
  EXPECT_THAT(*ParseSignals("--s", "SIGTERM, usr1"),
              ElementsAre(SIGTERM, SIGUSR1));
  for (const char* value :
       {"", "SIGKILL", "SIGCHLD", "SIGSEGV", "SIGNONE", "15"}) {
    EXPECT_THAT(ErrorOf(ParseSignals("--s", value)),
                HasSubstr("--s must be names of signals"))
        << value;
  }
}

TEST(OptionValuesTest, RendezvousConf) {
  using std::chrono::milliseconds;
  RendezvousTimes times = *ParseRendezvousConf("--c", "");
  EXPECT_EQ(times.join_timeout, std::chrono::seconds(600));
  EXPECT_EQ(times.last_call, std::chrono::seconds(30));
  times = *ParseRendezvousConf("--c", "timeout=900,last_call_timeout=0.5");
  EXPECT_EQ(times.join_timeout, std::chrono::seconds(900));
  EXPECT_EQ(times.last_call, milliseconds(500));
  EXPECT_EQ(ErrorOf(ParseRendezvousConf("--c", "is_host=1")),
            "--c has no \"is_host\"; it has join_timeout (or timeout) and "
            "last_call_timeout, in seconds");
  EXPECT_EQ(ErrorOf(ParseRendezvousConf("--c", "join_timeout=soon")),
            "--c: join_timeout must be 0 to 86400 seconds, got \"soon\"");
  for (const char* value :
       {"timeout=-1", "timeout=nan", "timeout", "timeout="}) {
    EXPECT_THAT(ErrorOf(ParseRendezvousConf("--c", value)),
                HasSubstr("must be 0 to 86400 seconds"))
        << value;
  }
}

}  // namespace
}  // namespace muster::worker
