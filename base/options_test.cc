#include "base/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::base {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Arguments = std::vector<std::string>;
using Asked = Options::Asked;
using Style = Options::Style;

class OptionsTest : public ::testing::Test {
 protected:
  Options Table(Options::Form form) {
    const auto at_most_9 = [this](absl::string_view name, int value) {
      sheaves_ = value;
      if (value <= 9) return OkStatus();
      return OutOfRangeError(absl::StrCat(name, " is ", value));
    };
    const auto length = [](absl::string_view name,
                           absl::string_view text) -> StatusOr<int64_t> {
      if (text.empty()) return OutOfRangeError(std::string(name));
      return static_cast<int64_t>(text.size());
    };
    return Options(
        {
            {"how_many", "N", {3, at_most_9}, "how many sheaves", 's', "sh"},
            {"thresh", "", &thresh_, "thresh them"},
            {"grain", "GRAIN", Parsed("", length, &grain_), "which grain"},
            {"dry_for", "TIME", absl::Seconds(5), "dry them"},
        },
        form);
  }

  // Returns the error's text, or "". Stores the words in words_.
  std::string Read(const Arguments& arguments, Options& table) {
    words_.clear();
    const auto asked = table.Read(arguments, words_);
    if (!asked.ok()) return std::string(asked.status().message());
    return std::string(table.Finish().message());
  }
  std::string Read(const Arguments& arguments, Options::Form form = {}) {
    Options table = Table(form);
    return Read(arguments, table);
  }

  int sheaves_ = 0;
  bool thresh_ = false;
  std::optional<int64_t> grain_;
  Arguments words_;
};

TEST_F(OptionsTest, TorchrunsSpellingsAreRead) {
  for (const Arguments& arguments :
       std::vector<Arguments>{{"--how-many=7"},
                              {"--how_many", "7"},
                              {"-how-many=7"},
                              {"--sh=7"},
                              {"-s", "7"},
                              {"-s=7"},
                              {"-s7"},
                              {"--how-many=1", "--how-many=7"}}) {
    EXPECT_EQ(Read(arguments), "");
    EXPECT_EQ(sheaves_, 7) << arguments[0];
  }
  EXPECT_EQ(Read({"--thresh", "--how-many=1"}), "");
  EXPECT_TRUE(thresh_);
  EXPECT_EQ(Read({"--thresh=false"}), "");
  EXPECT_FALSE(thresh_);
}

TEST_F(OptionsTest, AbseilsSpellingsAreRead) {
  const Options::Form form = {.style = Style::kAbseil, .separator = '_'};
  EXPECT_EQ(Read({"-how_many=7", "--thresh"}, form), "");
  EXPECT_EQ(sheaves_, 7);
  EXPECT_TRUE(thresh_);
  EXPECT_EQ(Read({"--nothresh"}, form), "");
  EXPECT_FALSE(thresh_);
  for (const char* argument :
       {"--how-many=7", "-s7", "--nograin", "--nooats"}) {
    EXPECT_EQ(Read({argument}, form),
              absl::StrCat("unknown option \"", argument, "\""));
  }
}

TEST_F(OptionsTest, GnusSpellingsAreRead) {
  const Options::Form form = {.style = Style::kGnu};
  EXPECT_EQ(Read({"--how-many=7", "-s", "8", "--thresh"}, form), "");
  EXPECT_EQ(sheaves_, 8);
  EXPECT_TRUE(thresh_);
  for (const char* argument : {"--how_many=7", "-thresh", "-s7", "--s=7"}) {
    EXPECT_EQ(Read({argument}, form),
              absl::StrCat("unknown option \"", argument, "\""));
  }
  EXPECT_EQ(Read({"--thresh=true"}, form), "--thresh takes no value");
}

TEST_F(OptionsTest, WordsStandBetweenOptionsOrBehindThem) {
  EXPECT_EQ(Read({"a", "-s", "1", "-", "--", "-s", "2"}), "");
  EXPECT_THAT(words_, ElementsAre("a", "-", "-s", "2"));
  EXPECT_EQ(sheaves_, 1);
  const Options::Form last = {.words_last = true};
  EXPECT_EQ(Read({"-s", "1", "a", "-s", "2", "--"}, last), "");
  EXPECT_THAT(words_, ElementsAre("a", "-s", "2", "--"));
  EXPECT_EQ(Read({"-s", "1", "--", "--", "-s"}, last), "");
  EXPECT_THAT(words_, ElementsAre("--", "-s"));
}

TEST_F(OptionsTest, HelpAndVersionEndTheReading) {
  for (const char* help : {"--help", "-help", "-h"}) {
    EXPECT_EQ(*Table({}).Read({"a", help, "--oats"}, words_), Asked::kHelp);
  }
  EXPECT_EQ(*Table({}).Read({"-version", "--oats"}, words_), Asked::kVersion);
  EXPECT_EQ(*Table({.style = Style::kGnu}).Read({"--version"}, words_),
            Asked::kVersion);
  for (const char* argument : {"-version", "-h", "--h"}) {
    EXPECT_FALSE(Table({.style = Style::kGnu}).Read({argument}, words_).ok());
  }
}

TEST_F(OptionsTest, AnOptionIsCalledWhatItWasGivenBy) {
  Options table = Table({.variables = {"A_", "B_"}});
  EXPECT_EQ(table.Name("how_many"), "--how-many");
  EXPECT_FALSE(table.IsGiven("how_many"));
  EXPECT_TRUE(table
                  .ReadEnvironment({{"B_HOW_MANY", "5"},
                                    {"A_GRAIN", "oats"},
                                    {"B_GRAIN", "rye"},
                                    {"A_THRESH", ""}})
                  .ok());
  EXPECT_EQ(table.NameAndValue("how_many"), "B_HOW_MANY=5");
  EXPECT_EQ(table.Get<int>("how_many"), 5);
  EXPECT_EQ(table.Get<std::string>("grain"), "oats");
  EXPECT_TRUE(table.IsFromEnvironment("how_many"));
  EXPECT_FALSE(table.IsGiven("thresh"));
  EXPECT_EQ(Read({"-s", "10"}, table), "--how-many is 10");
  EXPECT_EQ(table.NameAndValue("how_many"), "--how-many=10");
  EXPECT_FALSE(table.IsFromEnvironment("how_many"));
}

TEST_F(OptionsTest, AVariableInSmallLettersIsReadWhereAbseilsFlagsWere) {
  Options table = Table({.style = Style::kAbseil, .variables = {"A_"}});
  EXPECT_TRUE(table.ReadEnvironment({{"A_how_Many", "5"}}).ok());
  EXPECT_EQ(table.Get<int>("how_many"), 5);
  Options other = Table({.variables = {"A_"}});
  EXPECT_TRUE(other.ReadEnvironment({{"A_how_Many", "5"}}).ok());
  EXPECT_FALSE(other.IsFromEnvironment("how_many"));
}

TEST_F(OptionsTest, WhatIsWrongIsNamed) {
  EXPECT_EQ(Read({"--oats"}), "unknown option \"--oats\"");
  EXPECT_EQ(Read({"--s7"}), "unknown option \"--s7\"");
  EXPECT_EQ(Read({"-s"}), "--how-many needs a value");
  EXPECT_EQ(Read({"-s", "x"}), "--how-many must be a number, got \"x\"");
  EXPECT_EQ(Read({"--thresh=x"}), "--thresh must be true or false, got \"x\"");
  EXPECT_EQ(Read({"--dry-for=5"}),
            "--dry-for must be a duration such as 500ms or 5s, got \"5\"");
  EXPECT_EQ(Table({.variables = {"A_"}})
                .ReadEnvironment({{"A_HOW_MANY", "x"}})
                .message(),
            "A_HOW_MANY must be a number, got \"x\"");
}

TEST_F(OptionsTest, AnEmptyDefaultGoesNowhereAndAnEmptyValueIsTaken) {
  EXPECT_EQ(Read({}), "");
  EXPECT_EQ(sheaves_, 3);
  EXPECT_EQ(grain_, std::nullopt);
  EXPECT_EQ(Read({"--grain=oats"}), "");
  EXPECT_EQ(grain_, 4);
  EXPECT_EQ(Read({"--grain="}), "--grain");
  EXPECT_THAT(words_, IsEmpty());
}

TEST_F(OptionsTest, HelpHasEveryOption) {
  EXPECT_EQ(
      Table({}).Help(),
      "\n  --how-many=N, --sh=N, -s N\n      how many sheaves; default 3\n"
      "\n  --thresh\n      thresh them\n"
      "\n  --grain=GRAIN\n      which grain; default none\n"
      "\n  --dry-for=TIME\n      dry them; default 5s\n");
}

TEST(FillLinesTest, LinesBreakBetweenWords) {
  EXPECT_EQ(FillLines("a bb ccc dddd", 2, 8), "a bb\n  ccc\n  dddd\n");
  EXPECT_EQ(FillLines("a bb ccc dddd", 2, 10), "a bb ccc\n  dddd\n");
  EXPECT_EQ(FillLines("default ", 2, 80), "default \n");
}

}  // namespace
}  // namespace muster::base
