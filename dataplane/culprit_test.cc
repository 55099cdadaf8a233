#include "dataplane/culprit.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(CulpritTest, RankTravelsWithTheStatus) {
  Status status = UnavailableError("gone");
  EXPECT_EQ(CulpritRank(status), std::nullopt);
  SetCulpritRank(status, 12);
  EXPECT_EQ(CulpritRank(status), 12);
  const Status copy = status;
  EXPECT_EQ(CulpritRank(copy), 12);
}

TEST(CulpritTest, SeveralRanksTravelWithTheStatusAndTheFirstStandsForThem) {
  Status status = UnavailableError("gone");
  EXPECT_THAT(CulpritRanks(status), IsEmpty());
  SetCulpritRanks(status, {3, 7, 12});
  EXPECT_THAT(CulpritRanks(status), ElementsAre(3, 7, 12));
  EXPECT_EQ(CulpritRank(status), 3);
  SetCulpritRanks(status, {});
  EXPECT_THAT(CulpritRanks(status), IsEmpty());
  EXPECT_EQ(CulpritRank(status), std::nullopt);
}

TEST(CulpritTest, UnreadablePayloadIsNoRank) {
  Status status = UnavailableError("gone");
  status.SetPayload(kCulpritRanksUrl, "1,twelve");
  EXPECT_EQ(CulpritRank(status), std::nullopt);
  EXPECT_THAT(CulpritRanks(status), IsEmpty());
}

TEST(CulpritTest, AVerdictTravelsWithTheStatus) {
  Status status = AbortedError("enough");
  EXPECT_EQ(Verdict(status), std::nullopt);
  SetVerdict(status, "");
  EXPECT_EQ(Verdict(status), "");
  SetVerdict(status, std::string(kVerdictBytesMax + 1, 'x'));
  EXPECT_EQ(Verdict(status), std::string(kVerdictBytesMax, 'x'));
}

}  // namespace
}  // namespace muster::dataplane
