#include "proto/muster/v1/status_wire.h"

#include <cstdint>
#include <limits>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::v1 {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Status MissingRanks(int count) {
  Culprits culprits;
  for (int rank = 0; rank < count; ++rank) {
    MemberInfo* member = culprits.add_members();
    member->set_rank(rank);
    member->set_host("trainer-" + std::to_string(rank));
    member->set_cause("no heartbeat for 11.0s (lease 10s)");
  }
  Status status = DeadlineExceededError("ranks are missing");
  SetCulprits(culprits, &status);
  return status;
}

TEST(StatusWireTest, EveryCodeSurvivesBothWays) {
  for (int code = 1; code <= 16; ++code) {
    const Status status(static_cast<StatusCode>(code), "why");
    EXPECT_EQ(FromWire(ToWire(status)), status) << code;
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status) << code;
    EXPECT_EQ(ToGrpc(status).error_code(), code);
  }
}

TEST(StatusWireTest, OkIsEmpty) {
  EXPECT_EQ(ToWire(OkStatus()).ByteSizeLong(), 0u);
  EXPECT_TRUE(FromWire(WireStatus()).ok());
  EXPECT_TRUE(ToGrpc(OkStatus()).ok());
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
}

TEST(StatusWireTest, CulpritsSurviveBothWays) {
  const Status status = MissingRanks(3);
  for (const Status& arrived :
       {FromWire(ToWire(status)), FromGrpc(ToGrpc(status))}) {
    const absl::optional<Culprits> culprits = GetCulprits(arrived);
    ASSERT_TRUE(culprits.has_value());
    ASSERT_EQ(culprits->members_size(), 3);
    EXPECT_EQ(culprits->members(2).host(), "trainer-2");
    EXPECT_EQ(culprits->omitted(), 0);
  }
}

TEST(StatusWireTest, TheOwnerOfAJobSurvivesBothWays) {
  JobOwner owner;
  owner.set_address("node-b:7070");
  Status status = UnavailableError("node-b:7070 has the job");
  SetJobOwner(owner, &status);
  ASSERT_TRUE(GetJobOwner(FromGrpc(ToGrpc(status))).has_value());
  EXPECT_EQ(GetJobOwner(FromGrpc(ToGrpc(status)))->address(), "node-b:7070");
  EXPECT_FALSE(GetJobOwner(UnavailableError("drains")).has_value());
}

TEST(StatusWireTest, UnknownPayloadSurvives) {
  Status status = InternalError("why");
  status.SetPayload("type.googleapis.com/other", "bytes");
  EXPECT_EQ(FromWire(ToWire(status)), status);
  EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
}

TEST(StatusWireTest, NoPayloadMeansNoDetails) {
  EXPECT_EQ(ToGrpc(AbortedError("over")).error_details(), "");
}

TEST(StatusWireTest, TenThousandCulpritsFitTheTrailers) {
  const grpc::Status grpc_status = ToGrpc(MissingRanks(10'000));
  EXPECT_LE(grpc_status.error_details().size(), 4'000u);
  const absl::optional<Culprits> culprits = GetCulprits(FromGrpc(grpc_status));
  ASSERT_TRUE(culprits.has_value());
  const int described = culprits->members_size();
  EXPECT_GT(described, 40);
  EXPECT_EQ(culprits->members(0).rank(), 0);
  EXPECT_THAT(culprits->others(), ElementsAre(described, 10'000 - described));
  EXPECT_EQ(culprits->omitted(), 0);
  // A stream's result is not a trailer, so everything is sent.
  EXPECT_EQ(GetCulprits(FromWire(ToWire(MissingRanks(10'000))))->members_size(),
            10'000);
}

Culprits EveryOther(int count) {
  Culprits culprits;
  for (int i = 0; i < count; ++i) culprits.add_members()->set_rank(2 * i + 1);
  return culprits;
}

// The ranks of `culprits`.
std::set<int64_t> GetRanks(const Culprits& culprits) {
  std::set<int64_t> ranks;
  for (const MemberInfo& member : culprits.members()) {
    ranks.insert(member.rank());
  }
  int64_t rank = 0;
  for (int i = 0; i + 1 < culprits.others_size(); i += 2) {
    rank += culprits.others(i);
    for (uint32_t n = 0; n < culprits.others(i + 1); ++n) ranks.insert(rank++);
  }
  return ranks;
}

TEST(StatusWireTest, WhoeverIsNotDescribedHasARank) {
  Culprits culprits = EveryOther(30);
  for (MemberInfo& member : *culprits.mutable_members()) {
    member.set_cause(std::string(100, 'x'));
  }
  // Not in order with those of the members: 4, 5, 62, 63, 64.
  for (const uint32_t number : {4, 2, 56, 3}) culprits.add_others(number);
  const std::set<int64_t> all = GetRanks(culprits);
  for (const size_t bytes_max : {200u, 420u, 2000u, 4000u}) {
    const Culprits fitting = FitCulprits(culprits, bytes_max);
    EXPECT_LE(fitting.ByteSizeLong(), bytes_max);
    EXPECT_EQ(GetRanks(fitting), all) << bytes_max;
    EXPECT_EQ(fitting.omitted(), 0);
  }
  EXPECT_EQ(FitCulprits(culprits, 420).members_size(), 3);
}

TEST(StatusWireTest, RangesWithRoomAreNotLeftOut) {
  // 1,468 ranges take 2,936 bytes.
  const Culprits fitting = FitCulprits(EveryOther(1'500), 4'000);
  EXPECT_LE(fitting.ByteSizeLong(), 4'000u);
  EXPECT_EQ(fitting.omitted(), 0);
  EXPECT_EQ(GetRanks(fitting), GetRanks(EveryOther(1'500)));
}

TEST(StatusWireTest, RangesWithoutRoomAreCounted) {
  const Culprits fitting = FitCulprits(EveryOther(10'000), 4'000);
  EXPECT_LE(fitting.ByteSizeLong(), 4'000u);
  EXPECT_GT(fitting.members_size(), 100);
  EXPECT_GT(fitting.others_size(), 2'000);
  EXPECT_EQ(
      fitting.members_size() + fitting.others_size() / 2 + fitting.omitted(),
      10'000);
}

TEST(StatusWireTest, MoreThanAnyAnswerHoldsMakesLittleWork) {
  Culprits culprits;
  culprits.mutable_others()->Resize(20'000'000, 1);
  culprits.set_omitted(std::numeric_limits<int32_t>::max());
  const Culprits fitting = FitCulprits(culprits, 64 << 10);
  EXPECT_LE(fitting.ByteSizeLong(), size_t{64} << 10);
  EXPECT_GT(fitting.others_size(), 60'000);
  EXPECT_EQ(fitting.omitted(), std::numeric_limits<int32_t>::max());
  culprits.set_omitted(-7);
  EXPECT_EQ(FitCulprits(culprits, 64 << 10).omitted(),
            10'000'000 - fitting.others_size() / 2);
}

TEST(StatusWireTest, RangesOfNonsenseAreLeftOut) {
  Culprits culprits = EveryOther(100);
  for (const uint32_t number : {300u, 1u, 4'294'967'295u, 4'294'967'295u}) {
    culprits.add_others(number);
  }
  const Culprits fitting = FitCulprits(culprits, 64);
  EXPECT_LE(fitting.ByteSizeLong(), 64u);
  EXPECT_LE(fitting.omitted(), 101);
}

TEST(StatusWireTest, LongMessageIsCutBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += "\xC3\xA9";
  const grpc::Status status = ToGrpc(InternalError(text));
  EXPECT_LE(status.error_message().size(), 1'200u);
  EXPECT_EQ(status.error_message().substr(status.error_message().size() - 5),
            "\xC3\xA9...");
}

TEST(StatusWireTest, BytesThatAreNoUtf8AreEscaped) {
  const struct {
    std::string text;
    std::string want;
  } kCases[] = {
      {"key \"\xFF\x01\" missing", "key \"\\xff\x01\" missing"},
      {"\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80",
       "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"},
      {"cut \xE2\x82", "cut \\xe2\\x82"},
      {"overlong \xC0\xAF", "overlong \\xc0\\xaf"},
      {"surrogate \xED\xA0\x80", "surrogate \\xed\\xa0\\x80"},
      {"past \xF4\x90\x80\x80", "past \\xf4\\x90\\x80\\x80"},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(ToWire(InternalError(c.text)).message(), c.want);
  }
}

TEST(StatusWireTest, UnknownCodeBecomesUnknown) {
  WireStatus wire;
  wire.set_code(99);
  wire.set_message("from the future");
  EXPECT_EQ(FromWire(wire), UnknownError("from the future"));
}

TEST(StatusWireTest, DetailsOfAnotherKindAreIgnored) {
  const grpc::Status garbage(grpc::StatusCode::ABORTED, "why", "\xFF\xFF");
  EXPECT_EQ(FromGrpc(garbage), AbortedError("why"));
  // The details parse, but have another code.
  const grpc::Status other(grpc::StatusCode::ABORTED, "why",
                           ToWire(MissingRanks(1)).SerializeAsString());
  EXPECT_EQ(FromGrpc(other), AbortedError("why"));
}

TEST(StatusWireTest, CulpritsThatDoNotParseAreNone) {
  Status status = AbortedError("why");
  EXPECT_FALSE(GetCulprits(status).has_value());
  status.SetPayload("type.googleapis.com/muster.v1.Culprits", "\xFF\xFF");
  EXPECT_FALSE(GetCulprits(status).has_value());
}

}  // namespace
}  // namespace muster::v1
