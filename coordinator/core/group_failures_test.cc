#include "coordinator/core/group_failures.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fingerprint.h"
#include "coordinator/core/testing/core_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

using ::testing::HasSubstr;
using Kind = GroupFailureKind;

// A world of three ranks, all in group "g". More in
// testdata/group_failures.txt.
class GroupFailureTableTest : public testing::Test {
 protected:
  GroupFailureTableTest() {
    auto formation = std::make_shared<Formation>();
    formation->generation = Generation(3);
    for (int32_t rank = 0; rank < 3; ++rank) {
      const Call call = From(rank);
      std::vector<Event> departed;
      EXPECT_TRUE(
          members_.Register(call, {.host = "host"}, t0, departed, out_).ok());
      members_.AssignRank(call.member, Rank(rank), Generation(3));
      formation->world.push_back({call.member, Incarnation(1), "host", 1, ""});
    }
    groups_.Reset(formation);
    failures_.Reset(formation);
    for (int32_t rank = 0; rank < 3; ++rank) {
      groups_.Register(
          From(rank),
          {.groups = {{.name = "g", .ranks = {Rank(0), Rank(1), Rank(2)}}}}, t0,
          out_);
    }
    out_.Clear();
  }

  void TearDown() override {
    EXPECT_EQ(failures_.CheckInvariants(), OkStatus());
  }

  static Call From(int32_t rank) {
    return core::From(std::string(1, static_cast<char>('a' + rank)), 1, 1);
  }

  // Reports, and returns the text of the answered verdict; empty: none yet.
  std::string Report(int32_t rank, Kind kind, const std::string& text,
                     const std::string& instance = "",
                     const std::string& fingerprint = "") {
    GroupFailureReport report;
    report.group = instance == "world" ? "" : "g";
    report.instance = instance == "world" ? "" : instance;
    report.kind = kind;
    report.error = {.text = text, .verdict = AbortedError("")};
    report.fingerprint = fingerprint;
    report.wait = std::chrono::seconds(2);
    out_.Clear();
    failures_.Report(From(rank), std::move(report), t0, out_);
    const auto& verdict =
        std::get<GroupFailureReply>(out_.replies.at(0).payload);
    return verdict == nullptr ? "" : verdict->error.text;
  }

  Limits limits_{.group_failures = 2, .group_failure_bytes = 8 << 10};
  Journal journal_{true};
  Membership members_{MembershipOptions(), &limits_, &journal_};
  GroupTable groups_{&limits_, &members_, &journal_};
  GroupFailureTable failures_{&limits_, &members_, &groups_, &journal_};
  Outbox out_;
};

TEST_F(GroupFailureTableTest, TheOldestIsForgotten) {
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(Report(0, Kind::kDecision, "first", absl::StrCat("/", i)),
              "first");
  }
  EXPECT_EQ(failures_.size(), 2);
  EXPECT_EQ(Report(1, Kind::kDecision, "second", "/2"), "first");
  EXPECT_EQ(Report(1, Kind::kDecision, "second", "/1"), "second");
  EXPECT_TRUE(failures_.MakeRecord("g", "/2").erased);
  EXPECT_EQ(failures_.MakeRecord("g", "/1").verdict->error.text, "second");
}

TEST_F(GroupFailureTableTest, LongFingerprintsAreNotKept) {
  for (int32_t rank = 0; rank < 2; ++rank) {
    Report(rank, Kind::kMismatch, "differs", "", std::string(7 << 10, 'x'));
  }
  EXPECT_LT(failures_.bytes(), 8 << 10);
  EXPECT_EQ(Report(2, Kind::kMismatch, "differs"), "differs");
}

// The old failure is evicted, not the new one's fingerprints.
TEST_F(GroupFailureTableTest, OldFailuresLeaveRoomForFingerprints) {
  Report(0, Kind::kDecision, std::string(4000, 'x'), "/1");
  for (int32_t rank = 0; rank < 3; ++rank) {
    const base::Fingerprint print = {
        .common = {{"sequence", "5"}, {"shape", rank < 2 ? "8" : "4"}},
        .description = std::string(1100, 'x')};
    Report(rank, Kind::kMismatch, "differs", "", print.Serialize());
  }
  EXPECT_THAT(failures_.MakeRecord("g", "").verdict->error.text,
              HasSubstr("(different shape)"));
}

TEST_F(GroupFailureTableTest, FingerprintsOfAnyBytesMakeATextForPeople) {
  limits_.group_failure_bytes = 1 << 20;
  for (int32_t rank = 0; rank < 3; ++rank) {
    const base::Fingerprint print = {
        .common = {{"sequence", "5"}, {"shape", rank < 2 ? "8" : "4"}},
        .description = "\xff" + std::string(60 << 10, 'x')};
    Report(rank, Kind::kMismatch, "differs", "", print.Serialize());
  }
  const FailureReport& error = failures_.MakeRecord("g", "").verdict->error;
  EXPECT_THAT(error.text, HasSubstr("run \\xffxxx"));
  EXPECT_LE(error.text.size(), static_cast<size_t>(limits_.text_bytes));
  const std::string& cause = error.culprits->missing.at(0).cause_text;
  EXPECT_THAT(cause, HasSubstr("run \\xffxxx"));
  EXPECT_LE(cause.size(), static_cast<size_t>(limits_.text_bytes));
}

TEST_F(GroupFailureTableTest, AHeavierReportReplacesThatOfItsRank) {
  Report(0, Kind::kSymptom, "symptom");
  Report(1, Kind::kMismatch, "differs");
  Report(0, Kind::kTimeout, "timed out", "", std::string(100, 'x'));
  const int64_t bytes = failures_.bytes();
  Report(0, Kind::kTimeout, "timed out", "", std::string(100, 'x'));
  EXPECT_EQ(failures_.bytes(), bytes);
  EXPECT_EQ(failures_.CheckInvariants(), OkStatus());
}

TEST_F(GroupFailureTableTest, ALivingRankEndsTheGenerationWithTheBestReport) {
  Report(0, Kind::kTimeout, "best", "world");
  Report(1, Kind::kSymptom, "symptom", "world");
  std::vector<Event> departed;
  members_.Leave(*members_.Find(From(0).member), "", t0, departed, out_);
  failures_.MemberDeparted(departed.at(0), t0, out_);
  EXPECT_FALSE(failures_.TakeWorldVerdict().has_value());
  failures_.Expire(*failures_.NextDeadline(), out_);
  const auto verdict = failures_.TakeWorldVerdict();
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->member, From(1).member);
  EXPECT_THAT(verdict->error.text, HasSubstr("best; did not come to the end"));
  EXPECT_EQ(failures_.size(), 0);
}

TEST_F(GroupFailureTableTest, AnOpenFailureIsNoRecord) {
  Report(0, Kind::kTimeout, "timed out");
  EXPECT_TRUE(failures_.MakeRecord("g", "").erased);
  EXPECT_TRUE(journal_.group_failures.empty());
  Report(0, Kind::kDecision, "aborted");
  EXPECT_FALSE(failures_.MakeRecord("g", "").erased);
  EXPECT_EQ(journal_.group_failures.size(), 1u);
}

}  // namespace
}  // namespace muster::coordinator::core
