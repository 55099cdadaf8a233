// Tests the format of token files, and what each token allows.

#include "coordinator/server/auth/tokens.h"

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

std::string Hex(absl::string_view token) {
  const TokenDigest digest = ComputeDigest(token);
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(digest.data()), digest.size()));
}

TokenTable Table(const std::string& text) {
  const StatusOr<TokenTable> table = TokenTable::Parse(text);
  EXPECT_TRUE(table.ok()) << table.status();
  return table.ok() ? *table : TokenTable();
}

std::string ParseError(const std::string& text) {
  const Status status = TokenTable::Parse(text).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  return std::string(status.message());
}

Status Allow(const TokenTable& table, absl::string_view token, Role role,
             absl::string_view job, absl::Time now = kNow) {
  return table.Allow(ComputeDigest(token), role, job, "Set", now).status();
}

TEST(TokensTest, TheDigestIsWhatSha256sumPrints) {
  EXPECT_EQ(Hex("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(TokensTest, ARoleAllowsWhatThoseBelowItDo) {
  const TokenTable table =
      Table(absl::StrCat("# who\n\n", Hex("r"), " read j\n", Hex("m"),
                         "\tmember  j # a comment\r\n", Hex("a"), " admin j"));
  EXPECT_EQ(table.size(), 3);
  const Role roles[] = {Role::kRead, Role::kMember, Role::kAdmin};
  const char* const tokens[] = {"r", "m", "a"};
  for (int has = 0; has < 3; ++has) {
    for (int needs = 0; needs < 3; ++needs) {
      EXPECT_EQ(Allow(table, tokens[has], roles[needs], "j").code(),
                has >= needs ? StatusCode::kOk : StatusCode::kPermissionDenied)
          << has << " " << needs;
    }
  }
}

TEST(TokensTest, ATokenCountsInItsJobsAlone) {
  const TokenTable table =
      Table(absl::StrCat(Hex("one"), " member a.b\n", Hex("some"),
                         " member team-*\n", Hex("all"), " member *\n"));
  EXPECT_TRUE(Allow(table, "one", Role::kMember, "a.b").ok());
  for (const char* const job : {"a.bc", "a", "axb", ""}) {
    EXPECT_TRUE(IsPermissionDenied(Allow(table, "one", Role::kMember, job)))
        << job;
  }
  EXPECT_TRUE(Allow(table, "some", Role::kMember, "team-").ok());
  EXPECT_TRUE(Allow(table, "some", Role::kMember, "team-x").ok());
  EXPECT_FALSE(Allow(table, "some", Role::kMember, "team").ok());
  EXPECT_FALSE(Allow(table, "some", Role::kMember, "xteam-").ok());
  EXPECT_TRUE(Allow(table, "all", Role::kMember, "anything").ok());
}

TEST(TokensTest, ARefusalNamesCallRoleAndJob) {
  const TokenTable table = Table(Hex("t") + " read mine");
  EXPECT_EQ(Allow(table, "t", Role::kMember, "mine").message(),
            "Set needs role member in job \"mine\", the token has role read "
            "there");
  EXPECT_EQ(Allow(table, "t", Role::kRead, "theirs").message(),
            "Set needs role read in job \"theirs\", the token has no role "
            "there");
}

TEST(TokensTest, UnknownAndExpiredTokensAreToldApartAndNotShown) {
  const TokenTable table = Table(
      absl::StrCat(Hex("secret"), " member j expires=2023-11-14T22:13:20Z"));
  EXPECT_TRUE(
      Allow(table, "secret", Role::kMember, "j", kNow - absl::Nanoseconds(1))
          .ok());
  const Status expired = Allow(table, "secret", Role::kMember, "j");
  EXPECT_EQ(expired,
            UnauthenticatedError("the token expired at 2023-11-14T22:13:20Z"));
  const Status unknown = Allow(table, "Secret", Role::kMember, "j");
  EXPECT_EQ(unknown, UnauthenticatedError("the token is not known here"));
  EXPECT_EQ(Allow(TokenTable(), "", Role::kRead, "j").code(),
            StatusCode::kUnauthenticated);
}

TEST(TokensTest, EachLineOfATokenCountsForItself) {
  const TokenTable table =
      Table(absl::StrCat(Hex("t"), " read *\n", Hex("t"),
                         " member j expires=2023-11-14T22:13:20Z\n", Hex("t"),
                         " member k expires=2031-01-01T02:00:00+02:00\n"));
  EXPECT_TRUE(Allow(table, "t", Role::kRead, "j").ok());
  EXPECT_TRUE(IsPermissionDenied(Allow(table, "t", Role::kMember, "j")));
  const StatusOr<absl::Time> until =
      table.Allow(ComputeDigest("t"), Role::kMember, "k", "Set", kNow);
  ASSERT_TRUE(until.ok());
  EXPECT_EQ(*until, absl::FromUnixSeconds(1'924'992'000));
}

TEST(TokensTest, MalformedLinesAreNamedByTheirNumber) {
  const std::string good = Hex("t");
  EXPECT_THAT(ParseError("# x\nhunter2hunter2 member j"),
              AllOf(HasSubstr("line 2: "), HasSubstr("14 characters"),
                    Not(HasSubstr("hunter2"))));
  EXPECT_THAT(ParseError(good.substr(1) + "g member j"), HasSubstr("line 1"));
  EXPECT_EQ(ParseError(good + " owner j"),
            "line 1: role \"owner\" is not read, member or admin");
  EXPECT_THAT(ParseError(good + " read"), HasSubstr("line 1: 2 fields"));
  EXPECT_THAT(ParseError(good + " read a b c"), HasSubstr("5 fields"));
  EXPECT_THAT(ParseError(good + " read a*b"), HasSubstr("\"a*b\""));
  EXPECT_THAT(ParseError(good + " read **"), HasSubstr("malformed"));
  EXPECT_THAT(ParseError(good + " read j expires=tomorrow"),
              HasSubstr("\"expires=tomorrow\""));
  EXPECT_THAT(ParseError(good + " read j until=2031-01-01T00:00:00Z"),
              HasSubstr("\"until="));
}

}  // namespace
}  // namespace muster::coordinator
