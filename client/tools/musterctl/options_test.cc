#include "client/tools/musterctl/options.h"

#include <chrono>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

StatusOr<CtlOptions> Parse(const std::vector<std::string>& arguments,
                           const base::Environment& environment = {}) {
  return ParseCtlOptions(arguments, environment);
}

std::string GetError(const std::vector<std::string>& arguments) {
  const auto options = Parse(arguments);
  if (options.ok()) return "no error";
  EXPECT_TRUE(IsInvalidArgument(options.status()));
  return std::string(options.status().message());
}

TEST(CtlOptionsTest, OptionsStandAnywhereAndValuesWithEqualsOrApart) {
  for (const std::vector<std::string>& line :
       {std::vector<std::string>{"--json", "kv", "--wait=2s", "get", "k",
                                 "--timeout", "1500ms", "--job=j"},
        {"kv", "get", "k", "--json", "--wait", "2s", "--timeout=1500ms",
         "--job", "j"}}) {
    const auto options = Parse(line);
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->command, "kv get");
    EXPECT_THAT(options->arguments, ElementsAre("k"));
    EXPECT_TRUE(options->json);
    EXPECT_EQ(options->wait, std::chrono::seconds(2));
    EXPECT_EQ(options->timeout, std::chrono::milliseconds(1500));
    EXPECT_EQ(options->job, "j");
  }
}

TEST(CtlOptionsTest, TwoDashesEndTheOptions) {
  const auto options = Parse({"kv", "set", "--", "--key", "--value"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_THAT(options->arguments, ElementsAre("--key", "--value"));
  // A lone dash is an argument.
  EXPECT_THAT(Parse({"kv", "set", "k", "-"})->arguments, ElementsAre("k", "-"));
}

TEST(CtlOptionsTest, Defaults) {
  const auto options = Parse({"top"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->coordinator, "127.0.0.1:7070");
  EXPECT_EQ(options->job, "");
  EXPECT_EQ(options->timeout, std::chrono::seconds(10));
  EXPECT_EQ(options->interval, std::chrono::seconds(2));
  EXPECT_EQ(options->count, 0);
}

TEST(CtlOptionsTest, TheAddressComesFromTheFirstThatIsSet) {
  base::Environment variables = {{"MASTER_ADDR", "master"},
                                 {"MASTER_PORT", "29500"}};
  EXPECT_EQ(Parse({"jobs"}, variables)->coordinator, "master:29500");
  variables["MASTER_ADDR"] = "::1";
  EXPECT_EQ(Parse({"jobs"}, variables)->coordinator, "[::1]:29500");
  variables["PET_RDZV_ENDPOINT"] = "pet:1";
  EXPECT_EQ(Parse({"jobs"}, variables)->coordinator, "pet:1");
  // As muster-run does.
  variables["MUSTER_RDZV_ENDPOINT"] = "rdzv";
  EXPECT_EQ(Parse({"jobs"}, variables)->coordinator, "rdzv:7070");
  variables["MUSTER_COORDINATOR"] = "own:3";
  EXPECT_EQ(Parse({"jobs"}, variables)->coordinator, "own:3");
  EXPECT_EQ(Parse({"jobs", "--coordinator=x:4"}, variables)->coordinator,
            "x:4");
  EXPECT_EQ(
      Parse({"jobs", "--coordinator=x:4,y,[::1]:6"}, variables)->coordinator,
      "x:4,y:7070,[::1]:6");
  // A port without a host has no effect.
  EXPECT_EQ(Parse({"jobs"}, {{"MASTER_PORT", "1"}})->coordinator,
            "127.0.0.1:7070");
}

TEST(CtlOptionsTest, AWrongAddressIsAnErrorOfCommandsThatUseIt) {
  EXPECT_EQ(GetError({"jobs", "--coordinator=a,,b"}),
            "coordinator address \"a,,b\": address 2 is empty");
  const base::Environment variables = {{"MUSTER_COORDINATOR", "a:"}};
  EXPECT_EQ(Parse({"jobs"}, variables).status().message(),
            "coordinator address \"a:\": port number missing");
  for (const char* const command : {"help", "version"}) {
    EXPECT_TRUE(Parse({command}, variables).ok()) << command;
  }
}

TEST(CtlOptionsTest, TheJobComesFromTheEnvironmentAsTheSdksDoes) {
  base::Environment variables = {{"TORCHELASTIC_RUN_ID", "run"}};
  EXPECT_EQ(Parse({"members"}, variables)->job, "run");
  variables["MUSTER_JOB"] = "own";
  EXPECT_EQ(Parse({"members"}, variables)->job, "own");
  EXPECT_EQ(Parse({"members", "--job=x"}, variables)->job, "x");
}

TEST(CtlOptionsTest, MisuseIsNamed) {
  EXPECT_EQ(GetError({}), "no command; musterctl help lists them");
  EXPECT_EQ(GetError({"statsu"}),
            "unknown command \"statsu\"; musterctl help lists them");
  EXPECT_EQ(GetError({"kv"}), "kv needs one of get, set, list, watch, delete");
  EXPECT_EQ(GetError({"kv", "put"}),
            "unknown command \"kv put\"; musterctl help lists them");
  EXPECT_EQ(GetError({"jobs", "--bogus"}),
            "unknown option --bogus; what follows -- is never an option");
  EXPECT_EQ(GetError({"jobs", "--prefix"}), "jobs has no option --prefix");
  EXPECT_EQ(GetError({"jobs", "--json=yes"}), "--json takes no value");
  EXPECT_EQ(GetError({"jobs", "--timeout"}), "--timeout needs a value");
  EXPECT_EQ(GetError({"jobs", "--timeout=5"}),
            "--timeout must be a duration such as 500ms or 10s, got \"5\"");
  EXPECT_EQ(GetError({"jobs", "--timeout=0s"}),
            "--timeout must be above 0, got 0s");
  EXPECT_EQ(GetError({"kv", "watch", "k", "--after=-1"}),
            "--after must be a number from 0, got \"-1\"");
  EXPECT_EQ(GetError({"kv", "set", "k"}), "kv set needs KEY VALUE");
  EXPECT_EQ(GetError({"kv", "get", "a", "b"}),
            "kv get takes KEY alone, got \"b\"");
  EXPECT_EQ(GetError({"status", "x"}), "status takes no argument, got \"x\"");
}

TEST(CtlOptionsTest, HelpOfEverythingOfAFamilyAndOfACommand) {
  EXPECT_EQ(Parse({"--help"})->command, "help");
  EXPECT_THAT(Parse({"-h"})->arguments, IsEmpty());
  EXPECT_THAT(Parse({"kv", "--help"})->arguments, ElementsAre("kv"));
  EXPECT_THAT(Parse({"kv", "get", "--help"})->arguments, ElementsAre("kv get"));
  EXPECT_EQ(Parse({"--version"})->command, "version");

  const std::string all = *CtlHelp("");
  for (const char* const command :
       {"status", "jobs", "members", "groups", "barriers", "top", "kv get",
        "kv set", "kv list", "kv watch", "kv delete", "close", "drain",
        "completion"}) {
    EXPECT_THAT(all, HasSubstr(std::string("\n  ") + command));
  }
  EXPECT_THAT(*CtlHelp("kv"), Not(HasSubstr("\n  jobs")));
  EXPECT_THAT(*CtlHelp("kv get"), HasSubstr("usage: musterctl kv get KEY"));
  EXPECT_THAT(*CtlHelp("kv get"), HasSubstr("--wait=DURATION"));
  EXPECT_EQ(CtlHelp("nothing").status().message(),
            "unknown command \"nothing\"; musterctl help lists them");
}

TEST(CtlOptionsTest, CompletionIsForKnownShells) {
  EXPECT_EQ(CtlCompletion("fish").status().message(),
            "completion knows bash and zsh, got \"fish\"");
  EXPECT_THAT(*CtlCompletion("bash"), HasSubstr("complete -F _musterctl"));
  EXPECT_THAT(*CtlCompletion("zsh"), HasSubstr("bashcompinit"));
}

}  // namespace
}  // namespace muster::tools
