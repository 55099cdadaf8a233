#include "client/control/error_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace muster::internal {
namespace {

std::string Path() {
  return ::testing::TempDir() + "/" +
         ::testing::UnitTest::GetInstance()->current_test_info()->name() +
         ".json";
}

std::string Read(const std::string& text) {
  std::ofstream(Path()) << text;
  return ReadErrorFile(Path());
}

TEST(ErrorFileTest, WhatIsWrittenIsRead) {
  WriteErrorFile(Path(), "no space \"left\" \xff");
  EXPECT_EQ(ReadErrorFile(Path()), "no space \"left\" \xEF\xBF\xBD");
}

TEST(ErrorFileTest, OfALongFileTheBeginningOfTheMessageIsKept) {
  WriteErrorFile(Path(), std::string(5 << 20, 'x'), {});
  EXPECT_EQ(ReadErrorFile(Path()), std::string(400, 'x'));
  std::filesystem::resize_file(Path(), (64 << 20) + 1);
  EXPECT_EQ(ReadErrorFile(Path()),
            "its error file has 67108865 bytes, of which 67108864 would be "
            "read");
}

TEST(ErrorFileTest, WhoIsToBlameIsReadToo) {
  const std::vector<Culprit> culprits = {{.rank = 1, .pid = 77}, {.rank = 4}};
  WriteErrorFile(Path(), "rank 1 left", culprits);
  EXPECT_EQ(ReadErrorFile(Path()), "rank 1 left");
  EXPECT_EQ(ReadErrorFileCulprits(Path()), culprits);
  WriteErrorFile(Path(), "no space left");
  EXPECT_TRUE(ReadErrorFileCulprits(Path()).empty());
  for (const char* text :
       {"", "[]", R"({"message": "plain"})", R"({"message": {"message": "x"}})",
        R"({"message": {"extraInfo": 3}})",
        R"({"message": {"extraInfo": {"culprits": "x"}}})",
        R"({"message": {"extraInfo": {"culprits": [1, {"rank": "x"}]}}})",
        R"({"message": {"extraInfo": {"culprits": [{"rank": 1e30}]}}})"}) {
    Read(text);
    EXPECT_TRUE(ReadErrorFileCulprits(Path()).empty()) << text;
  }
  const std::vector<Culprit> many(5000, Culprit{.rank = 7});
  WriteErrorFile(Path(), "all", many);
  EXPECT_EQ(ReadErrorFileCulprits(Path()).size(), 1000u);
}

TEST(ErrorFileTest, BothFormsOfTorchelasticsMessagesAreRead) {
  EXPECT_EQ(Read(R"({"message": {"message": "ValueError: x\nmore",
                     "extraInfo": {"py_callstack": "..."}}})"),
            "ValueError: x");
  EXPECT_EQ(Read(R"({"message": "plain"})"), "plain");
}

TEST(ErrorFileTest, AFifoIsNotWaitedFor) {
  std::remove(Path().c_str());
  ASSERT_EQ(mkfifo(Path().c_str(), 0600), 0);
  EXPECT_EQ(ReadErrorFile(Path()), "");
  std::remove(Path().c_str());
}

TEST(ErrorFileTest, NonsenseSaysNothing) {
  for (const char* text : {"", "{", "[]", "{}", R"({"message": 3})",
                           R"({"message": {"message": []}})", "\xff"}) {
    EXPECT_EQ(Read(text), "") << text;
  }
  EXPECT_EQ(ReadErrorFile("/no/such/file"), "");
  EXPECT_EQ(ReadErrorFile(""), "");
  EXPECT_EQ(Read("{\"message\": \"" + std::string(2000, 'x') + "\"}").size(),
            400u);
}

TEST(ErrorFileTest, AFileThatCannotBeWrittenIsNoError) {
  WriteErrorFile("/no/such/folder/error.json", "x");
  WriteErrorFile("", "x");
}

}  // namespace
}  // namespace muster::internal
