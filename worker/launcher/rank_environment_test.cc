#include "worker/launcher/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::worker {
namespace {

using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

LaunchOptions ThreeRanks() {
  LaunchOptions options;
  options.nproc_per_node = 3;
  options.role = "trainer";
  return options;
}

// The other host has two ranks.
const Assignment kSecondOfTwo = {.group_rank = 1,
                                 .first_rank = 2,
                                 .group_world_size = 2,
                                 .world_size = 5,
                                 .restarts = 1,
                                 .max_restarts = 4,
                                 .attempt = 7};
const CoordinatorAddress kCoordinator = {"10.0.0.7", 7070, "job7"};

TEST(RankEnvironmentTest, HoldsTorchrunsVariables) {
  EXPECT_THAT(
      RankEnvironment(ThreeRanks(), kSecondOfTwo, kCoordinator, 2, "/e.json",
                      {}),
      UnorderedElementsAre(
          Pair("RANK", "4"), Pair("LOCAL_RANK", "2"), Pair("WORLD_SIZE", "5"),
          Pair("LOCAL_WORLD_SIZE", "3"), Pair("GROUP_RANK", "1"),
          Pair("GROUP_WORLD_SIZE", "2"), Pair("ROLE_RANK", "4"),
          Pair("ROLE_NAME", "trainer"), Pair("ROLE_WORLD_SIZE", "5"),
          Pair("MASTER_ADDR", "10.0.0.7"), Pair("MASTER_PORT", "7070"),
          Pair("TORCHELASTIC_RUN_ID", "job7"),
          Pair("TORCHELASTIC_USE_AGENT_STORE", "True"),
          Pair("TORCHELASTIC_RESTART_COUNT", "1"),
          Pair("TORCHELASTIC_MAX_RESTARTS", "4"),
          Pair("TORCHELASTIC_ERROR_FILE", "/e.json"),
          Pair("MUSTER_ATTEMPT", "7"), Pair("OMP_NUM_THREADS", "1"),
          Pair("MUSTER_HTTP_PORT", "0")));
}

TEST(RankEnvironmentTest, NamesAllCoordinators) {
  CoordinatorAddress coordinator = {"::1", 7070, "job7"};
  EXPECT_EQ(coordinator.HostPort(), "[::1]:7070");
  coordinator.others = {{"b", 1}};
  const Environment env =
      RankEnvironment(ThreeRanks(), kSecondOfTwo, coordinator, 0, "",
                      {{"MUSTER_COORDINATOR", "another"}});
  EXPECT_THAT(env, Contains(Pair("MASTER_ADDR", "::1")));
  EXPECT_THAT(env, Contains(Pair("MASTER_PORT", "7070")));
  EXPECT_THAT(env, Contains(Pair("MUSTER_COORDINATOR", "[::1]:7070,b:1")));
}

TEST(RankEnvironmentTest, OverridesAnOuterLaunchAndKeepsTheRest) {
  const Environment env =
      RankEnvironment(ThreeRanks(), kSecondOfTwo, kCoordinator, 0, "",
                      {{"RANK", "77"},
                       {"MUSTER_JOB", "outer"},
                       {"GLOO_SOCKET_IFNAME", "eth0"}});
  EXPECT_THAT(env, Contains(Pair("RANK", "2")));
  EXPECT_THAT(env, Contains(Pair("GLOO_SOCKET_IFNAME", "eth0")));
  EXPECT_THAT(env, Not(Contains(Key("MUSTER_JOB"))));
}

TEST(RankEnvironmentTest, NamesTheRelayAndForgetsThatOfAnOuterLaunch) {
  const Environment outer = {{"MUSTER_HOST_RELAY", "outer"}};
  EXPECT_THAT(
      RankEnvironment(ThreeRanks(), kSecondOfTwo, kCoordinator, 0, "", outer),
      Not(Contains(Key("MUSTER_HOST_RELAY"))));
  CoordinatorAddress relayed = kCoordinator;
  relayed.relay = "10.0.0.7:7070@/tmp/r";
  EXPECT_THAT(
      RankEnvironment(ThreeRanks(), kSecondOfTwo, relayed, 0, "", outer),
      Contains(Pair("MUSTER_HOST_RELAY", "10.0.0.7:7070@/tmp/r")));
}

TEST(RankEnvironmentTest, ThreadsAndHttpPortOfTheUserStay) {
  const Environment env =
      RankEnvironment(ThreeRanks(), kSecondOfTwo, kCoordinator, 0, "",
                      {{"OMP_NUM_THREADS", "8"}, {"MUSTER_HTTP_PORT", ""}});
  EXPECT_THAT(env, Contains(Pair("OMP_NUM_THREADS", "8")));
  EXPECT_THAT(env, Contains(Pair("MUSTER_HTTP_PORT", "")));
}

TEST(RankEnvironmentTest, EachLocalRankHasAMetricsPortOfItsOwn) {
  LaunchOptions options = ThreeRanks();
  options.metrics_port_base = 9400;
  const Environment env =
      RankEnvironment(options, kSecondOfTwo, kCoordinator, 2, "",
                      {{"MUSTER_HTTP_PORT", "1234"}});
  EXPECT_THAT(env, Contains(Pair("MUSTER_HTTP_PORT", "9402")));
}

TEST(RankEnvironmentTest, ASingleRankMayUseEveryCore) {
  LaunchOptions options;
  EXPECT_THAT(RankEnvironment(options, {}, kCoordinator, 0, "", {}),
              Not(Contains(Key("OMP_NUM_THREADS"))));
}

}  // namespace
}  // namespace muster::worker
