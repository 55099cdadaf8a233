#include "client/groups/init_method.h"

#include <map>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::internal {
namespace {

using ::testing::HasSubstr;

class InitMethodTest : public ::testing::Test {
 protected:
  StatusOr<InitPlan> Plan(const InitRequest& request) {
    return PlanInit(request, [this](const char* name) -> const char* {
      const auto found = environment_.find(name);
      return found == environment_.end() ? nullptr : found->second.c_str();
    });
  }

  std::string Error(const InitRequest& request) {
    const Status status = Plan(request).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }

  void SetEnv() {
    environment_ = {{"RANK", "1"},
                    {"WORLD_SIZE", "4"},
                    {"MASTER_ADDR", "10.0.0.1"},
                    {"MASTER_PORT", "29500"}};
  }

  std::map<std::string, std::string> environment_;
};

TEST_F(InitMethodTest, EnvironmentIsTheDefault) {
  SetEnv();
  const auto plan = Plan({});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->rank, 1);
  EXPECT_EQ(plan->world_size, 4);
  EXPECT_EQ(plan->endpoint.ToString(), "10.0.0.1:29500");
  EXPECT_EQ(plan->job, "default");
  EXPECT_TRUE(plan->embedded);
}

TEST_F(InitMethodTest, NamesTheMissingVariable) {
  for (const char* name :
       {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    SetEnv();
    environment_.erase(name);
    EXPECT_EQ(Error({}),
              std::string("Error initializing torch.distributed using env:// "
                          "rendezvous: environment variable ") +
                  name +
                  " expected, but not set: start the program with `muster-run "
                  "--standalone --nproc-per-node=N -- PROGRAM`, or set RANK, "
                  "WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
  }
}

TEST_F(InitMethodTest, TheAttemptIsTheLaunchersThatServesTheStore) {
  SetEnv();
  environment_["MUSTER_ATTEMPT"] = "1764000000000";
  EXPECT_EQ(Plan({})->attempt, 0);
  environment_["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(Plan({})->attempt, 1764000000000);
  EXPECT_EQ(Plan({.init_method = "muster://10.0.0.1:7070/job"})->attempt, 0);
  environment_["MUSTER_ATTEMPT"] = "0";
  EXPECT_THAT(Error({}), HasSubstr("environment variable MUSTER_ATTEMPT must "
                                   "be a positive number but was \"0\""));
}

TEST_F(InitMethodTest, UrlOverridesTheEnvironmentAndOptionsOverrideTheUrl) {
  SetEnv();
  auto plan = Plan({.init_method = "env://?rank=2&world_size=3"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->rank, 2);
  EXPECT_EQ(plan->world_size, 3);
  plan = Plan({.init_method = "env://?rank=2&world_size=3", .rank = 0});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->rank, 0);
}

TEST_F(InitMethodTest, TheLaunchersStoreIsNotEmbedded) {
  SetEnv();
  environment_["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  const auto plan = Plan({});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_FALSE(plan->embedded);
  environment_["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_TRUE(Plan({})->embedded);
  environment_["TORCHELASTIC_USE_AGENT_STORE"] = "true";
  EXPECT_THAT(Error({}),
              HasSubstr("environment variable TORCHELASTIC_USE_AGENT_STORE "
                        "must be True or False but was \"true\""));
}

TEST_F(InitMethodTest, NamesAVariableThatIsNoNumber) {
  SetEnv();
  environment_["RANK"] = "one";
  EXPECT_THAT(Error({}), HasSubstr("environment variable RANK must be a number "
                                   "but was \"one\""));
  SetEnv();
  environment_["MASTER_PORT"] = "70000";
  EXPECT_THAT(Error({}),
              HasSubstr("port must have value from 0 to 65535 but was 70000."));
}

TEST_F(InitMethodTest, TcpTakesAllFromTheUrl) {
  const auto plan =
      Plan({.init_method = "tcp://[::1]:29500?rank=0&world_size=2"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->endpoint.host, "::1");
  EXPECT_EQ(plan->rank, 0);
  EXPECT_EQ(plan->world_size, 2);
  EXPECT_TRUE(plan->embedded);
}

TEST_F(InitMethodTest, MusterTakesSeveralCoordinators) {
  SetEnv();
  const auto plan = Plan({.init_method = "muster://a:7070,b:7070,[::1]:1/j"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->endpoint.ToString(), "a:7070");
  EXPECT_EQ(JoinEndpoints(plan->Addresses()), "a:7070,b:7070,[::1]:1");
  EXPECT_EQ(plan->job, "j");
  EXPECT_FALSE(plan->embedded);
  EXPECT_EQ(Error({.init_method = "muster://a:1,,b:2/j"}),
            "Error initializing torch.distributed using muster:// rendezvous: "
            "address \"a:1,,b:2\": address 2 is empty");
  EXPECT_THAT(Error({.init_method = "muster://a:1,b:0/j"}),
              HasSubstr("port 0 stands for any free one"));
}

TEST_F(InitMethodTest, ARankServesTheCoordinatorAtOneAddress) {
  EXPECT_EQ(Error({.init_method = "tcp://a:1,b:2?rank=0&world_size=1"}),
            "Error initializing torch.distributed using tcp:// rendezvous: "
            "address \"a:1,b:2\": must be one HOST:PORT, not a list");
  SetEnv();
  environment_["MASTER_ADDR"] = "a,b";
  EXPECT_THAT(Error({}), HasSubstr("must be one HOST:PORT, not a list"));
}

TEST_F(InitMethodTest, ALauncherTellsOfFurtherCoordinators) {
  SetEnv();
  environment_["MUSTER_COORDINATOR"] = "b:7070,10.0.0.1:29500";
  // Rank 0 serves the only one.
  EXPECT_EQ(JoinEndpoints(Plan({})->Addresses()), "10.0.0.1:29500");
  environment_["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(JoinEndpoints(Plan({})->Addresses()), "b:7070,10.0.0.1:29500");
  // The variable of tools means another coordinator.
  environment_["MUSTER_COORDINATOR"] = "b:7070,c:7070";
  EXPECT_EQ(JoinEndpoints(Plan({})->Addresses()), "10.0.0.1:29500");
}

TEST_F(InitMethodTest, TcpNamesWhatIsMissing) {
  EXPECT_THAT(Error({.init_method = "tcp://localhost?rank=0&world_size=1"}),
              HasSubstr("port number missing"));
  EXPECT_THAT(Error({.init_method = "tcp://localhost:1?world_size=1"}),
              HasSubstr("rank parameter missing"));
  EXPECT_THAT(Error({.init_method = "tcp://localhost:1?rank=0"}),
              HasSubstr("world size parameter missing"));
}

TEST_F(InitMethodTest, FileTakesThePathAndThePlaceFromTheUrl) {
  SetEnv();
  const auto plan =
      Plan({.init_method = "file:///a/folder/f?rank=0&world_size=2"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->file, "/a/folder/f");
  EXPECT_EQ(plan->rank, 0);
  EXPECT_EQ(plan->world_size, 2);
  EXPECT_FALSE(plan->embedded);
  const auto by_options =
      Plan({.init_method = "file:///f", .world_size = 3, .rank = 2});
  ASSERT_TRUE(by_options.ok()) << by_options.status();
  EXPECT_EQ(by_options->rank, 2);
}

TEST_F(InitMethodTest, FileNamesWhatIsMissing) {
  const std::string prefix =
      "Error initializing torch.distributed using file:// rendezvous: ";
  EXPECT_EQ(Error({.init_method = "file://?rank=0&world_size=1"}),
            prefix + "path missing");
  EXPECT_EQ(Error({.init_method = "file:///"}), prefix + "path missing");
  EXPECT_EQ(Error({.init_method = "file:///f?world_size=1"}),
            prefix + "rank parameter missing");
  EXPECT_EQ(Error({.init_method = "file:///f?rank=0"}),
            prefix + "world size parameter missing");
  EXPECT_THAT(Error({.init_method = "file://tmp/f?rank=0&world_size=1"}),
              HasSubstr("\"tmp/f\" is no absolute path"));
  EXPECT_THAT(Error({.init_method = "file:///f?rank=1&world_size=1"}),
              HasSubstr("rank must be in [0, 1) but was 1"));
}

TEST_F(InitMethodTest, RejectsRanksOutsideOfTheWorld) {
  EXPECT_THAT(Error({.init_method = "tcp://localhost:1?rank=2&world_size=2"}),
              HasSubstr("rank must be in [0, 2) but was 2"));
  EXPECT_THAT(Error({.init_method = "tcp://localhost:1?rank=0&world_size=0"}),
              HasSubstr("world size must be at least 1 but was 0"));
  EXPECT_THAT(Error({.init_method = "tcp://localhost:1?rank=0&world_size=-1"}),
              HasSubstr("world size must be at least 1 but was -1"));
  EXPECT_THAT(Error({.init_method = "tcp://localhost:1?rank=-1&world_size=2"}),
              HasSubstr("rank must be in [0, 2) but was -1"));
}

TEST_F(InitMethodTest, NothingIsIgnored) {
  SetEnv();
  EXPECT_THAT(Error({.init_method = "env://10.0.0.1"}),
              HasSubstr("\"env://10.0.0.1\" has a host or path, which env:// "
                        "does not take"));
  EXPECT_THAT(
      Error({.init_method = "tcp://10.0.0.1:29500/job?rank=0&world_size=1"}),
      HasSubstr("has a path, which tcp:// does not take"));
  EXPECT_THAT(Error({.world_size = -2}),
              HasSubstr("world_size must not be negative but was -2"));
  EXPECT_THAT(Error({.rank = -7}),
              HasSubstr("rank must not be negative but was -7"));
}

TEST_F(InitMethodTest, UnknownSchemeAndUnknownParameter) {
  EXPECT_EQ(Error({.init_method = "carrier-pigeon://x"}),
            "No rendezvous handler for carrier-pigeon://: use env://, "
            "tcp://HOST:PORT?rank=R&world_size=N, "
            "file:///PATH?rank=R&world_size=N or muster://HOST:PORT/JOB");
  EXPECT_THAT(Error({.init_method = "tcp://localhost:1?ranks=1"}),
              HasSubstr("unknown parameter \"ranks\""));
  EXPECT_THAT(Error({.init_method = "localhost:1"}), HasSubstr("not a URL"));
}

TEST_F(InitMethodTest, MusterTakesTheJobFromThePathAndLetsTheRankBeAssigned) {
  const auto plan =
      Plan({.init_method = "muster://c:7070/llama", .world_size = 8});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->job, "llama");
  EXPECT_EQ(plan->rank, -1);
  EXPECT_EQ(plan->world_size, 8);
  EXPECT_FALSE(plan->embedded);
  EXPECT_THAT(Error({.init_method = "muster://c:7070/llama"}),
              HasSubstr("world size missing"));
}

TEST_F(InitMethodTest, TheMostExplicitJobNameWins) {
  const InitRequest bare{.init_method = "muster://c:7070", .world_size = 1};
  EXPECT_EQ(Plan(bare)->job, "default");
  environment_["TORCHELASTIC_RUN_ID"] = "run";
  EXPECT_EQ(Plan(bare)->job, "run");
  environment_["MUSTER_JOB"] = "ours";
  EXPECT_EQ(Plan(bare)->job, "ours");
  InitRequest request = bare;
  request.init_method = "muster://c:7070/url";
  EXPECT_EQ(Plan(request)->job, "url");
  request.job = "option";
  EXPECT_EQ(Plan(request)->job, "option");
}

TEST_F(InitMethodTest, ARangeOfWorldSizesGoesBeforeTheEnvironment) {
  SetEnv();
  const auto plan = Plan({.init_method = "muster://10.0.0.2:7070/train",
                          .min_world_size = 2,
                          .max_world_size = 4});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->min_world_size, 2);
  EXPECT_EQ(plan->max_world_size, 4);
  EXPECT_EQ(plan->world_size, -1);
  EXPECT_EQ(plan->rank, -1);
  EXPECT_EQ(plan->job, "train");
}

TEST_F(InitMethodTest, ARangeOfWorldSizesStandsAlone) {
  SetEnv();
  const std::string muster = "muster://10.0.0.2:7070/train";
  EXPECT_THAT(Error({.min_world_size = 2, .max_world_size = 4}),
              HasSubstr("using env:// rendezvous: min_world_size 2 and "
                        "max_world_size 4 need a muster:// coordinator"));
  EXPECT_THAT(Error({.init_method = muster,
                     .world_size = 4,
                     .min_world_size = 2,
                     .max_world_size = 4}),
              HasSubstr("leave no room for a world_size"));
  EXPECT_THAT(Error({.init_method = muster + "?world_size=3",
                     .min_world_size = 2,
                     .max_world_size = 4}),
              HasSubstr("leave no room for a world_size"));
  EXPECT_THAT(Error({.init_method = muster,
                     .rank = 1,
                     .min_world_size = 2,
                     .max_world_size = 4}),
              HasSubstr("leave no room for a rank"));
  EXPECT_THAT(Error({.init_method = muster + "?rank=1",
                     .min_world_size = 2,
                     .max_world_size = 4}),
              HasSubstr("leave no room for a rank"));
  for (const auto& [least, most] :
       {std::pair(2, -1), std::pair(-1, 4), std::pair(0, 4), std::pair(4, 2)}) {
    EXPECT_THAT(Error({.init_method = muster,
                       .min_world_size = least,
                       .max_world_size = most}),
                HasSubstr("are no range of sizes"));
  }
  EXPECT_THAT(Error({.init_method = muster, .has_last_call = true}),
              HasSubstr("last_call needs min_world_size and max_world_size"));
}

TEST_F(InitMethodTest, AnyFreePortIsForOneRankAlone) {
  EXPECT_TRUE(
      Plan({.init_method = "tcp://127.0.0.1:0?rank=0&world_size=1"}).ok());
  EXPECT_THAT(Error({.init_method = "tcp://127.0.0.1:0?rank=0&world_size=2"}),
              HasSubstr("port 0"));
}

}  // namespace
}  // namespace muster::internal
