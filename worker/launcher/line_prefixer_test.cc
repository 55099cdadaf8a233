#include "worker/launcher/line_prefixer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace muster::worker {
namespace {

using ::testing::ElementsAre;

TEST(LinePrefixerTest, EveryLineGetsThePrefix) {
  LinePrefixer lines("[3]: ");
  EXPECT_EQ(lines.Push("one\ntwo\n\n"), "[3]: one\n[3]: two\n[3]: \n");
  EXPECT_EQ(lines.Finish(), "");
}

TEST(LinePrefixerTest, LineThatArrivesInPiecesIsPrintedWhole) {
  LinePrefixer lines("[0]: ");
  EXPECT_EQ(lines.Push("lo"), "");
  EXPECT_EQ(lines.Push("ss 0"), "");
  EXPECT_EQ(lines.Push(".25\nacc"), "[0]: loss 0.25\n");
  EXPECT_EQ(lines.Finish(), "[0]: acc\n");
  EXPECT_EQ(lines.Finish(), "");
}

TEST(LinePrefixerTest, LongLineIsBroken) {
  LinePrefixer lines("> ", 4);
  EXPECT_EQ(lines.Push("abcdefghij"), "> abcd\n> efgh\n");
  EXPECT_EQ(lines.Push("\n"), "> ij\n");
}

TEST(LinePrefixerTest, LineOfExactlyTheLimitIsNotBroken) {
  LinePrefixer lines("> ", 4);
  EXPECT_EQ(lines.Push("abcd"), "");
  EXPECT_EQ(lines.Push("\n"), "> abcd\n");
  EXPECT_EQ(lines.Push("abcd\nx\n"), "> abcd\n> x\n");
}

TEST(LinePrefixerTest, OtherBytesPassUnchanged) {
  LinePrefixer lines("[0]: ");
  const std::string bytes("\0\xff\r\x1b[1m", 7);
  EXPECT_EQ(lines.Push(bytes + "\n"), "[0]: " + bytes + "\n");
}

TEST(LinePrefixerTest, TailHoldsTheLastTenLines) {
  LinePrefixer lines("[0]: ");
  for (int i = 0; i < 12; ++i) lines.Push(std::to_string(i) + "\n");
  lines.Push("unfinished");
  lines.Finish();
  EXPECT_THAT(lines.tail(), ElementsAre("3", "4", "5", "6", "7", "8", "9", "10",
                                        "11", "unfinished"));
}

}  // namespace
}  // namespace muster::worker
