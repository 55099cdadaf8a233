#include "muster/base/status.h"

#include <cerrno>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(StatusTest, OkHasNeitherTextNorPayloads) {
  Status status(StatusCode::kOk, "a text");
  status.SetPayload("name", "bytes");
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(status.GetPayload("name"), std::nullopt);
  EXPECT_EQ(status.ToString(), "OK");
  EXPECT_EQ(status, OkStatus());
}

TEST(StatusTest, OneThatWasMovedFromIsOk) {
  Status from = AbortedError("x");
  const Status to = std::move(from);
  EXPECT_EQ(to, AbortedError("x"));
  EXPECT_EQ(from, OkStatus());  // NOLINT(bugprone-use-after-move)
}

TEST(StatusTest, ItsTextEscapesPayloads) {
  Status status = NotFoundError("no key \"k\"");
  status.SetPayload("muster/a", std::string("\0\n\xff'x", 5));
  status.SetPayload("muster/b", "");
  EXPECT_EQ(status.ToString(),
            "NOT_FOUND: no key \"k\" [muster/a='\\x00\\n\\xff\\'x'] "
            "[muster/b='']");
  std::ostringstream out;
  out << status;
  EXPECT_EQ(out.str(), status.ToString());
}

TEST(StatusTest, ANumberThatIsNoCodeIsUnknown) {
  EXPECT_EQ(Status(static_cast<StatusCode>(17), "new").code(),
            StatusCode::kUnknown);
  EXPECT_EQ(Status(static_cast<StatusCode>(-1), "new").code(),
            StatusCode::kUnknown);
  EXPECT_STREQ(StatusCodeToString(static_cast<StatusCode>(17)), "");
  EXPECT_STREQ(StatusCodeToString(StatusCode::kUnauthenticated),
               "UNAUTHENTICATED");
}

TEST(StatusTest, AChangedCopyLeavesTheOriginal) {
  Status status = AbortedError("gone");
  status.SetPayload("rank", "1");
  Status copy = status;
  copy.SetPayload("rank", "2");
  copy.SetPayload("host", "a");
  EXPECT_EQ(status.GetPayload("rank"), "1");
  EXPECT_EQ(copy.GetPayload("rank"), "2");
  EXPECT_NE(copy, status);
  EXPECT_TRUE(copy.ErasePayload("host"));
  EXPECT_FALSE(copy.ErasePayload("host"));
  copy.SetPayload("rank", "1");
  EXPECT_EQ(copy, status);
}

TEST(StatusTest, PayloadsAreVisitedInOrderAndComparedWithout) {
  Status one = InternalError("x");
  one.SetPayload("b", "1");
  one.SetPayload("a", "2");
  std::vector<std::pair<std::string, std::string>> seen;
  one.ForEachPayload([&](const std::string& name, const std::string& bytes) {
    seen.emplace_back(name, bytes);
  });
  EXPECT_THAT(seen, ElementsAre(Pair("b", "1"), Pair("a", "2")));
  Status other = InternalError("x");
  other.SetPayload("a", "2");
  other.SetPayload("b", "1");
  EXPECT_EQ(one, other);
}

TEST(StatusTest, TheFirstFailureStays) {
  Status status;
  status.Update(OkStatus());
  EXPECT_TRUE(status.ok());
  status.Update(AbortedError("first"));
  status.Update(InternalError("second"));
  EXPECT_EQ(status, AbortedError("first"));
}

TEST(StatusTest, EveryCodeHasItsMakerAndItsQuestion) {
  EXPECT_TRUE(IsCancelled(CancelledError("")));
  EXPECT_EQ(DataLossError("x").ToString(), "DATA_LOSS: x");
  EXPECT_TRUE(IsUnauthenticated(UnauthenticatedError("x")));
  EXPECT_FALSE(IsUnauthenticated(PermissionDeniedError("x")));
  EXPECT_FALSE(IsUnknown(OkStatus()));
}

TEST(StatusTest, AnErrorNumberHasACodeAndATextOfTheSystem) {
  EXPECT_EQ(ErrnoToStatus(ENOENT, "file \"x\"").ToString(),
            "NOT_FOUND: file \"x\": No such file or directory");
  EXPECT_EQ(ErrnoToStatusCode(EPIPE), StatusCode::kFailedPrecondition);
}

TEST(StatusOrTest, HoldsAValueOrAFailure) {
  StatusOr<std::string> value = "text";
  EXPECT_TRUE(value.ok());
  EXPECT_EQ(value.status(), OkStatus());
  EXPECT_EQ(*value, "text");
  EXPECT_EQ(value->size(), 4U);
  StatusOr<std::string> none = NotFoundError("none");
  EXPECT_FALSE(none.ok());
  EXPECT_EQ(none.status(), NotFoundError("none"));
  EXPECT_EQ(none.value_or("other"), "other");
  EXPECT_NE(none, value);
  none = value;
  EXPECT_EQ(none, value);
}

TEST(StatusOrTest, MovesAndConvertsWhatItHolds) {
  struct Base {
    virtual ~Base() = default;
  };
  struct Derived : Base {};
  StatusOr<std::unique_ptr<Derived>> derived = std::make_unique<Derived>();
  StatusOr<std::unique_ptr<Base>> base = std::move(derived);
  ASSERT_TRUE(base.ok());
  const std::unique_ptr<Base> held = *std::move(base);
  EXPECT_NE(held, nullptr);
  base = StatusOr<std::unique_ptr<Derived>>(AbortedError("x"));
  EXPECT_EQ(base.status(), AbortedError("x"));
}

TEST(StatusOrTest, AnEmptyOptionalIsAValue) {
  const StatusOr<std::optional<int>> empty = std::nullopt;
  EXPECT_TRUE(empty.ok());
  EXPECT_EQ(*empty, std::nullopt);
  StatusOr<std::optional<int>> number = StatusOr<int>(7);
  EXPECT_EQ(*number, 7);
  number = std::nullopt;
  EXPECT_TRUE(number.ok());
}

TEST(StatusOrTest, OneWhoseStatusWasMovedAwayHasNoValueStill) {
  StatusOr<int> from = AbortedError("x");
  EXPECT_EQ(std::move(from).status(), AbortedError("x"));
  EXPECT_FALSE(from.ok());  // NOLINT(bugprone-use-after-move)
}

TEST(StatusOrTest, AnOkStatusIsNoValue) {
  EXPECT_EQ(StatusOr<int>(OkStatus()).status(),
            InternalError("an OK status without a value"));
}

TEST(StatusOrDeathTest, AMissingValueEndsTheProcessWithItsReason) {
  const StatusOr<int> none = NotFoundError("no such port");
  EXPECT_DEATH((void)*none,
               "a StatusOr without a value was read: NOT_FOUND: no such port");
}

}  // namespace
}  // namespace muster
