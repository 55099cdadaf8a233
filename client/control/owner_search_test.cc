#include "client/control/owner_search.h"

#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/v1/common.pb.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

const milliseconds kNoPause{0};

Status NoAnswer() { return UnavailableError("connection refused"); }

Status Names(const std::string& owner) {
  Status status = UnavailableError("another coordinator has the job");
  v1::JobOwner payload;
  payload.set_address(owner);
  v1::SetJobOwner(payload, &status);
  return status;
}

OwnerSearch Search(const std::string& addresses) {
  return OwnerSearch(*ParseEndpoints("address", addresses), /*seed=*/1);
}

// Asks until there is a pause; returns whom it asks before it, and after it.
std::vector<std::string> Round(OwnerSearch& search, const Status& answer) {
  std::vector<std::string> asked;
  do {
    asked.push_back(search.current().ToString());
  } while (search.Next(answer) == kNoPause);
  asked.push_back(search.current().ToString());
  return asked;
}

TEST(OwnerSearchTest, WithoutAnAnswerItGoesAroundTheListAndThenPauses) {
  OwnerSearch search = Search("a:1,b:2,c:3");
  EXPECT_THAT(Round(search, NoAnswer()),
              ElementsAre("a:1", "b:2", "c:3", "a:1"));
  EXPECT_THAT(Round(search, NoAnswer()),
              ElementsAre("a:1", "b:2", "c:3", "a:1"));
}

TEST(OwnerSearchTest, OneAddressIsAskedAgainAfterAPause) {
  OwnerSearch search = Search("a:1");
  EXPECT_GT(search.Next(NoAnswer()), kNoPause);
  EXPECT_EQ(search.current().ToString(), "a:1");
  EXPECT_GT(search.Next(NoAnswer()), kNoPause);
}

TEST(OwnerSearchTest, AnOwnerIsAskedAtOnce) {
  OwnerSearch search = Search("a:1,b:2,c:3");
  EXPECT_EQ(search.Next(Names("c:3")), kNoPause);
  EXPECT_EQ(search.current().ToString(), "c:3");
  search.Found();
  EXPECT_EQ(search.Next(Names("elsewhere:9")), kNoPause);
  EXPECT_EQ(search.current().ToString(), "elsewhere:9");
}

TEST(OwnerSearchTest, AnOwnerThatLoadsIsAskedAgainAfterAPause) {
  OwnerSearch search = Search("a:1,b:2");
  EXPECT_GT(search.Next(Names("a:1")), kNoPause);
  EXPECT_EQ(search.current().ToString(), "a:1");
}

TEST(OwnerSearchTest, WithoutAnOwnerAnyOtherIsAsked) {
  OwnerSearch search = Search("a:1,b:2");
  EXPECT_THAT(Round(search, Names("")), ElementsAre("a:1", "b:2", "a:1"));
  // A text that is no address says no more than none.
  EXPECT_THAT(Round(search, Names("nonsense")),
              ElementsAre("a:1", "b:2", "a:1"));
  EXPECT_THAT(Round(search, Names("a:0")), ElementsAre("a:1", "b:2", "a:1"));
}

TEST(OwnerSearchTest, TwoThatNameEachOtherDoNotSpin) {
  OwnerSearch search = Search("a:1,b:2");
  milliseconds pauses{0};
  int asked = 0;
  for (; asked < 100; ++asked) {
    const bool at_a = search.current().ToString() == "a:1";
    pauses += search.Next(Names(at_a ? "b:2" : "a:1"));
  }
  EXPECT_GT(pauses, std::chrono::seconds(10));
}

TEST(OwnerSearchTest, AChainOfOwnersThatNeverEndsDoesNotSpin) {
  OwnerSearch search = Search("a:1");
  milliseconds pauses{0};
  for (int i = 0; i < 200; ++i) {
    pauses += search.Next(Names(absl::StrCat("b", i, ":1")));
  }
  EXPECT_GT(pauses, std::chrono::seconds(5));
}

// Every other coordinator still names it.
TEST(OwnerSearchTest, ADeadOwnerDoesNotKeepItFromAskingEveryOther) {
  OwnerSearch search = Search("a:1,b:2,c:3");
  EXPECT_GT(search.Next(Names("a:1")), kNoPause);
  std::vector<std::string> asked;
  for (int i = 0; i < 6; ++i) {
    asked.push_back(search.current().ToString());
    search.Next(asked.back() == "a:1" ? NoAnswer() : Names("a:1"));
  }
  EXPECT_THAT(asked, ElementsAre("a:1", "b:2", "a:1", "c:3", "a:1", "b:2"));
}

TEST(OwnerSearchTest, TheLastOwnerIsAskedAfterTheList) {
  OwnerSearch search = Search("a:1,b:2");
  search.Next(Names("old:8"));
  search.Next(Names("new:9"));
  search.Found();
  EXPECT_TRUE(search.has_others());
  EXPECT_THAT(Round(search, NoAnswer()),
              ElementsAre("new:9", "b:2", "a:1", "b:2"));
  EXPECT_THAT(Round(search, NoAnswer()),
              ElementsAre("b:2", "new:9", "a:1", "b:2"));
}

TEST(OwnerSearchTest, PausesBeginAnewAfterTheJobWasFound) {
  OwnerSearch search = Search("a:1");
  EXPECT_FALSE(search.has_others());
  for (int i = 0; i < 30; ++i) search.Next(NoAnswer());
  EXPECT_GT(search.Next(NoAnswer()), milliseconds(100));
  search.Found();
  EXPECT_LT(search.Next(NoAnswer()), milliseconds(10));
}

}  // namespace
}  // namespace muster::internal
