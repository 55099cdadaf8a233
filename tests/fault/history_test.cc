#include "tests/fault/history.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::fault {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

TEST(HistoryTest, AnHonestHistoryPasses) {
  History history;
  history.WriteBegins("r", 1);
  history.WriteAcknowledged("r", 1);
  history.WriteBegins("r", 2);
  history.ReadEnded("r", history.ReadBegins("r"), 2);
  history.WriteAcknowledged("r", 2);
  history.Added(0, 1);
  history.Added(1, 2);
  history.Added(0, 3);
  history.Appended(0, "a");
  history.Appended(1, "b");
  EXPECT_EQ(history.Check({{"r", 2}}, 3, "b,a,"), std::nullopt);
}

TEST(HistoryTest, ALostWriteIsFound) {
  History history;
  history.WriteBegins("r", 1);
  history.WriteAcknowledged("r", 1);
  EXPECT_THAT(history.Check({}, 0, ""), Optional(HasSubstr("holds 0")));
}

TEST(HistoryTest, AReadThatGoesBackIsFound) {
  History history;
  history.WriteBegins("r", 2);
  history.ReadEnded("r", history.ReadBegins("r"), 2);
  history.ReadEnded("r", history.ReadBegins("r"), 1);
  EXPECT_THAT(history.Check({{"r", 2}}, 0, ""),
              Optional(HasSubstr("a read saw 1 after 2")));
}

TEST(HistoryTest, AReadOfWhatNobodyWroteIsFound) {
  History history;
  history.ReadEnded("r", 0, 7);
  EXPECT_THAT(history.Check({{"r", 7}}, 0, ""),
              Optional(HasSubstr("only 0 was written")));
}

TEST(HistoryTest, AnAdditionThatIsLostOrAppliedTwiceIsFound) {
  History history;
  history.Added(0, 1);
  EXPECT_THAT(history.Check({}, 2, ""), Optional(HasSubstr("holds 2 after 1")));
  EXPECT_THAT(history.Check({}, 0, ""), Optional(HasSubstr("holds 0 after 1")));
  history.Added(1, 1);
  EXPECT_THAT(history.Check({}, 2, ""), Optional(HasSubstr("two calls got 1")));
}

TEST(HistoryTest, TokensThatAreLostDoubledOrDisorderedAreFound) {
  History history;
  history.Appended(0, "a");
  history.Appended(0, "b");
  EXPECT_THAT(history.Check({}, 0, "a,"), Optional(HasSubstr("\"b\"")));
  EXPECT_THAT(history.Check({}, 0, "a,b,a,"), Optional(HasSubstr("twice")));
  EXPECT_THAT(history.Check({}, 0, "b,a,"), Optional(HasSubstr("earlier")));
  EXPECT_THAT(history.Check({}, 0, "a,b,c,"),
              Optional(HasSubstr("holds 3 tokens")));
}

}  // namespace
}  // namespace muster::fault
