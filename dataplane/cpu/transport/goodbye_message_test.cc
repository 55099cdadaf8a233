#include "dataplane/cpu/transport/goodbye_message.h"

#include <string>

#include "dataplane/culprit.h"
#include "gtest/gtest.h"

namespace muster::dataplane::cpu {
namespace {

TEST(GoodbyeMessageTest, SilenceMeansThatThePeerDied) {
  const Status status =
      InterpretGoodbye(3, GoodbyeBytes{}, "Connection reset by peer");
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(std::string(status.message()),
            "rank 3 closed its connection without leaving the group; its "
            "process may have died (Connection reset by peer)");
  EXPECT_EQ(CulpritRank(status), 3);
}

TEST(GoodbyeMessageTest, LeavingInPeaceIsSaid) {
  const Status status =
      InterpretGoodbye(3, EncodeGoodbye(CancelledError("destroyed")), "");
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(std::string(status.message()), "rank 3 left the group");
  EXPECT_EQ(CulpritRank(status), 3);
}

TEST(GoodbyeMessageTest, ErrorKeepsCodeTextAndCulprit) {
  Status cause = DeadlineExceededError("timed out");
  SetCulpritRank(cause, 5);
  const Status status = InterpretGoodbye(3, EncodeGoodbye(cause), "");
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(status.message()), "rank 3 failed: timed out");
  EXPECT_EQ(CulpritRank(status), 5);
}

TEST(GoodbyeMessageTest, ErrorWithoutCulpritIsItsSenders) {
  EXPECT_EQ(
      CulpritRank(InterpretGoodbye(3, EncodeGoodbye(InternalError("bug")), "")),
      3);
}

TEST(GoodbyeMessageTest, TextDoesNotGrowFromRankToRank) {
  Status status = AbortedError("original");
  for (int rank = 1; rank < 4; ++rank) {
    status = InterpretGoodbye(rank, EncodeGoodbye(status), "");
  }
  EXPECT_EQ(std::string(status.message()), "rank 1 failed: original");
  EXPECT_EQ(CulpritRank(status), 1);
}

TEST(GoodbyeMessageTest, AVerdictIsPassedOnWordForWord) {
  Status status = AbortedError("aborted by rank 1: enough");
  SetVerdict(status, "1,4");
  SetCulpritRank(status, 4);
  for (int rank = 1; rank < 4; ++rank) {
    status = InterpretGoodbye(rank, EncodeGoodbye(status), "");
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_EQ(std::string(status.message()), "aborted by rank 1: enough");
    EXPECT_EQ(Verdict(status), "1,4");
    EXPECT_EQ(CulpritRank(status), 4);
  }
  EXPECT_EQ(Verdict(InterpretGoodbye(
                3, EncodeGoodbye(AbortedError("no verdict")), "")),
            std::nullopt);
}

TEST(GoodbyeMessageTest, LongTextIsCutAndRubbishIsNoGoodbye) {
  const Status status = InterpretGoodbye(
      3, EncodeGoodbye(AbortedError(std::string(5000, 'x'))), "");
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_LT(status.message().size(), 600u);
  GoodbyeBytes rubbish;
  rubbish.fill('\x5a');
  EXPECT_EQ(InterpretGoodbye(3, rubbish, "").code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace muster::dataplane::cpu
