#include "client/tools/missing_recorder.h"

#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::tools {
namespace {

using ::testing::EndsWith;

v1::MemberInfo Rank(int rank) {
  v1::MemberInfo member;
  member.set_rank(rank);
  member.set_host("here");
  member.set_state(v1::MEMBER_STATE_LOST);
  member.set_cause("connection closed");
  return member;
}

TEST(MissingRecorderTest, OfOneThatIsGoneTheFileIsNamedIfThereIsOne) {
  const std::string prefix = ::testing::TempDir() + "recorder";
  std::ofstream(absl::StrCat(prefix, 1)) << "{}";
  EXPECT_EQ(WhyNoRecorder(Rank(1), "no answer", prefix, "here"),
            absl::StrCat("is gone: it was lost: connection closed; one of it "
                         "is in ",
                         prefix, "1"));
  EXPECT_EQ(WhyNoRecorder(Rank(2), "no answer", prefix, "here"),
            absl::StrCat("is gone: it was lost: connection closed; it has not "
                         "written ",
                         prefix, "2, as one that is killed does not"));
}

TEST(MissingRecorderTest, WhatIsOnAnotherHostIsNotKnown) {
  EXPECT_EQ(WhyNoRecorder(Rank(1), "no answer", "/tmp/recorder", "elsewhere"),
            "is gone: it was lost: connection closed; if it has written one, "
            "it is /tmp/recorder1 on here");
}

TEST(MissingRecorderTest, WhatWouldHaveWrittenOneIsNamed) {
  EXPECT_EQ(WhyNoRecorder(Rank(1), "no answer", "", "here"),
            "is gone: it was lost: connection closed; it has left no file, for "
            "which TORCH_FR_DUMP_TEMP_FILE is to be set");
}

TEST(MissingRecorderTest, OneThatIsThereAndDoesNotAnswerIsNotCalledGone) {
  v1::MemberInfo member = Rank(1);
  member.set_state(v1::MEMBER_STATE_ALIVE);
  EXPECT_EQ(WhyNoRecorder(member, "no answer", "", "here"), "no answer");
}

TEST(MissingRecorderTest, OfManyTheFirstAreTold) {
  std::map<int, std::string> missing;
  EXPECT_EQ(MissingText(missing, 3), "");
  missing[2] = "gone\033";
  EXPECT_EQ(MissingText(missing, 3),
            "musterctl: 1 of 3 ranks did not answer\n  rank 2: gone\\033\n");
  for (int rank = 3; rank < 12; ++rank) missing[rank] = "gone";
  EXPECT_THAT(MissingText(missing, 12),
              EndsWith("  rank 9: gone\n  and 2 more\n"));
}

TEST(MissingRecorderTest, TheFilesAreWhereTheOthersHaveThem) {
  EXPECT_EQ(DumpPrefixIn(R"({"PATH": "/bin",
                             "TORCH_FR_DUMP_TEMP_FILE": "/x/r"})"),
            "/x/r");
  EXPECT_EQ(DumpPrefixIn(R"({"TORCH_FR_DUMP_TEMP_FILE": 3})"), "");
  EXPECT_EQ(DumpPrefixIn("{}"), "");
  EXPECT_EQ(DumpPrefixIn("no JSON"), "");
}

}  // namespace
}  // namespace muster::tools
