#include "worker/failure.h"

#include <gtest/gtest.h>

#include <csignal>

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

RankExit Blaming(int rank, int culprit) {
  return {rank, 100 + rank, {.code = 75}, false, {culprit}};
}

TEST(FirstFailureTest, IsTheRankThatEndedWithZeroBeforeTheOthersWereDone) {
  EXPECT_EQ(FirstFailure({Exit(1, 0), Blaming(0, 1), Exit(2, 75)}), 0u);
  EXPECT_EQ(FirstFailure({Exit(1, 0), Blaming(0, 1), Killed(2, SIGKILL, true)}),
            0u);
  // Another one is to blame, or has failed.
  EXPECT_EQ(FirstFailure({Exit(1, 0), Blaming(0, 2), Exit(2, 75)}), 1u);
  EXPECT_EQ(FirstFailure({Exit(1, 0), Blaming(0, 1), Exit(2, 3)}), 2u);
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
