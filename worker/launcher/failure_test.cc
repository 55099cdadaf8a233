#include "worker/launcher/failure.h"

#include <gtest/gtest.h>

#include <csignal>
#include <vector>

#include "client/control/error_file.h"

namespace muster::worker {
namespace {

RankExit Exit(int rank, int code, bool told = false) {
  return {rank, 100 + rank, {.code = code}, told};
}
RankExit Killed(int rank, int signal, bool told = false) {
  return {rank, 100 + rank, {.signal = signal}, told};
}

TEST(FirstFailureTest, NoneWhenEveryRankSucceeded) {
  EXPECT_EQ(FirstFailure({}), 0u);
  EXPECT_EQ(FirstFailure({Exit(0, 0), Exit(1, 0)}), 2u);
}

TEST(FirstFailureTest, IsTheFirstToEndAmongEquals) {
  EXPECT_EQ(FirstFailure({Exit(3, 0), Exit(2, 1), Exit(0, 1)}), 1u);
  EXPECT_EQ(FirstFailure({Exit(2, 3), Killed(1, SIGABRT)}), 0u);
}

TEST(FirstFailureTest, IsNotARankThatLostItsPeer) {
  EXPECT_EQ(FirstFailure({Exit(0, 75), Exit(2, 1), Exit(1, 75)}), 1u);
}

TEST(FirstFailureTest, IsARankThatLostItsPeerWhenThatIsAllWeKnow) {
  EXPECT_EQ(FirstFailure({Exit(1, 75), Exit(0, 75)}), 0u);
}

TEST(FirstFailureTest, IsTheRankThatSomebodyKilled) {
  EXPECT_EQ(FirstFailure({Exit(0, 1), Killed(2, SIGKILL), Exit(1, 1)}), 1u);
}

TEST(FirstFailureTest, IsNotARankThatWasToldToStop) {
  EXPECT_EQ(FirstFailure({Exit(0, 75), Killed(1, SIGTERM, true)}), 0u);
  EXPECT_EQ(FirstFailure({Exit(0, 1), Killed(1, SIGKILL, true)}), 0u);
  EXPECT_EQ(FirstFailure({Killed(1, SIGTERM, true)}), 0u);
}

TEST(FirstFailureTest, IsTheRankThatHungWhenAllOthersLostAPeer) {
  EXPECT_EQ(FirstFailure({Exit(0, 75), Exit(1, 75), Killed(2, SIGKILL, true)}),
            2u);
}

RankExit Blaming(int rank, int culprit, int64_t pid = 0) {
  RankExit exit = Exit(rank, 75);
  exit.blames = {{.rank = culprit, .pid = pid}};
  return exit;
}
RankExit Restarted(RankExit exit) {
  exit.restarted = true;
  return exit;
}

TEST(FirstFailureTest, IsTheRankThatEndedWithZeroBeforeTheOthersWereDone) {
  EXPECT_EQ(FirstFailure({Exit(1, 0), Blaming(0, 1), Exit(2, 75)}), 0u);
  EXPECT_EQ(FirstFailure({Exit(1, 0), Blaming(0, 1), Killed(2, SIGKILL, true)}),
            0u);
  // Another rank is blamed, or has failed.
  EXPECT_EQ(FirstFailure({Exit(1, 0), Blaming(0, 2), Exit(2, 75)}), 1u);
  EXPECT_EQ(FirstFailure({Exit(1, 0), Blaming(0, 1), Exit(2, 3)}), 2u);
}

TEST(FirstFailureTest, IsTheRankThatHungUntilItWasToldToStopIfItIsBlamed) {
  EXPECT_EQ(FirstFailure({Exit(2, 75), Blaming(0, 1), Killed(3, SIGTERM, true),
                          Killed(1, SIGTERM, true)}),
            3u);
  EXPECT_EQ(FirstFailure({Blaming(0, 1), Exit(1, 0, true)}), 1u);
  // A rank that is not blamed did not even end when it was told to.
  EXPECT_EQ(FirstFailure({Blaming(0, 1), Killed(1, SIGTERM, true),
                          Killed(2, SIGKILL, true)}),
            1u);
  // The rank that blames it had been told to stop, too.
  RankExit told = Blaming(0, 1);
  told.told_to_stop = true;
  EXPECT_EQ(FirstFailure({Exit(2, 75), told, Killed(1, SIGTERM, true)}), 0u);
  // A failure of a rank's own comes first.
  EXPECT_EQ(FirstFailure({Blaming(0, 1), Exit(2, 3), Killed(1, SIGTERM, true)}),
            1u);
}

TEST(FirstFailureTest, IsTheRankThatWasStartedAgainIfThatProcessIsBlamed) {
  // Both are rank 1; the blamed process is pid 101.
  const RankExit failed = Restarted(Exit(1, 3));
  EXPECT_EQ(FirstFailure({failed, Blaming(0, 1, 101)}), 0u);
  EXPECT_EQ(FirstFailure({failed, Blaming(0, 1, 999)}), 1u);
  EXPECT_EQ(FirstFailure({failed, Blaming(0, 1)}), 1u);
  EXPECT_EQ(FirstFailure({failed, Exit(2, 5)}), 1u);
  EXPECT_EQ(FirstFailure({failed, Exit(2, 0)}), 2u);
  EXPECT_EQ(FirstFailure({Restarted(Blaming(2, 1, 101)), failed, Exit(0, 75)}),
            2u);
}

TEST(FirstFailureTest, IsARankThatRanksOfAnotherHostBlame) {
  const std::vector<internal::Culprit> elsewhere = {{.rank = 1}};
  EXPECT_EQ(FirstFailure({Exit(0, 0), Exit(1, 0)}, elsewhere), 1u);
  EXPECT_EQ(
      FirstFailure({Exit(0, 75, true), Killed(1, SIGTERM, true)}, elsewhere),
      1u);
  EXPECT_EQ(FirstFailure({Exit(0, 75), Exit(2, 0)}, elsewhere), 0u);
}

TEST(BlamedBesideTest, NamesThoseOfOtherHostsOnce) {
  EXPECT_EQ(BlamedBeside({Blaming(0, 3, 7), Blaming(1, 0), Blaming(2, 3, 7),
                          Restarted(Blaming(1, 4))},
                         0, 3),
            (std::vector<internal::Culprit>{{.rank = 3, .pid = 7}}));
}

TEST(FirstWitnessTest, IsTheFirstThatLostItsPeer) {
  EXPECT_EQ(FirstWitness({Killed(2, SIGKILL), Exit(1, 75), Exit(0, 75)}), 1u);
  EXPECT_EQ(FirstWitness({Killed(2, SIGKILL), Exit(1, 0)}), 2u);
}

TEST(DescribeOthersTest, NamesTheOtherFailures) {
  EXPECT_EQ(
      DescribeOthers(
          {Exit(0, 1), Exit(1, 0), Exit(2, 75), Killed(3, SIGTERM, true)}, 0),
      "rank 2 exited with status 75; rank 3 was killed by signal 15 "
      "(SIGTERM) when told to stop");
  EXPECT_EQ(DescribeOthers({Exit(0, 1)}, 0), "");
}

TEST(DescribeOthersTest, NamesAtMostEight) {
  std::vector<RankExit> exits;
  exits.reserve(130);
  for (int rank = 0; rank < 130; ++rank) exits.push_back(Exit(rank, 1));
  const std::string text = DescribeOthers(exits, 0);
  EXPECT_NE(text.find("rank 8 exited with status 1; and 121 more"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace muster::worker
