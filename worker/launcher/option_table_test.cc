#include "worker/launcher/option_table.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"

ABSL_FLAG(int, test_sheaves, 3, "how many sheaves");
ABSL_FLAG(bool, test_thresh, false, "thresh them");

namespace muster::worker {
namespace {

class OptionTableTest : public ::testing::Test {
 protected:
  // The text of the error; empty for none.
  std::string Read(const std::vector<std::string>& arguments) {
    size_t next = 0;
    while (next < arguments.size()) {
      const auto read = table_.ReadArgument(arguments, next);
      if (!read.ok()) return std::string(read.status().message());
      if (*read != OptionTable::Argument::kOption) break;
    }
    return "";
  }

  // The flags are the process's: they begin anew in each test.
  absl::FlagSaver saver_;
  OptionTable table_ =
      OptionTable({{"test_sheaves", "N", 's', "test_sh"}, {"test_thresh", ""}},
                  {.variables = {"A_", "B_"}, .hint = "that is chaff"});
};

TEST_F(OptionTableTest, EverySpellingIsRead) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--test-sheaves=7"},
                                             {"--test_sheaves", "7"},
                                             {"-test-sheaves=7"},
                                             {"--test-sh=7"},
                                             {"-s", "7"},
                                             {"-s=7"},
                                             {"-s7"}}) {
    absl::SetFlag(&FLAGS_test_sheaves, 3);
    EXPECT_EQ(Read(arguments), "");
    EXPECT_EQ(absl::GetFlag(FLAGS_test_sheaves), 7) << arguments[0];
  }
  EXPECT_EQ(Read({"--test-thresh", "--test-sheaves=1"}), "");
  EXPECT_TRUE(absl::GetFlag(FLAGS_test_thresh));
}

TEST_F(OptionTableTest, AnOptionIsCalledWhatItWasGivenBy) {
  EXPECT_EQ(table_.Name("test_sheaves"), "--test-sheaves");
  EXPECT_FALSE(table_.IsGiven("test_sheaves"));
  EXPECT_TRUE(
      table_.ReadEnvironment({{"B_TEST_SHEAVES", "5"}, {"A_TEST_THRESH", ""}})
          .ok());
  EXPECT_EQ(table_.Name("test_sheaves"), "B_TEST_SHEAVES");
  EXPECT_EQ(absl::GetFlag(FLAGS_test_sheaves), 5);
  EXPECT_TRUE(table_.IsGiven("test_sheaves"));
  EXPECT_FALSE(table_.IsGiven("test_thresh"));
  EXPECT_EQ(Read({"-s", "5"}), "");
  EXPECT_EQ(table_.Name("test_sheaves"), "--test-sheaves");
}

TEST_F(OptionTableTest, WhatIsWrongIsNamed) {
  EXPECT_EQ(Read({"--oats"}), "unknown option \"--oats\" (that is chaff)");
  EXPECT_EQ(Read({"--s7"}), "unknown option \"--s7\" (that is chaff)");
  EXPECT_EQ(Read({"-s"}), "--test-sheaves needs a value");
  EXPECT_EQ(Read({"-s", "x"}), "--test-sheaves must be a number, got \"x\"");
  EXPECT_EQ(Read({"--test-thresh=x"}),
            "--test-thresh must be true or false, got \"x\"");
  EXPECT_EQ(table_.ReadEnvironment({{"A_TEST_SHEAVES", "x"}}).message(),
            "A_TEST_SHEAVES must be a number, got \"x\"");
}

TEST_F(OptionTableTest, HelpHasEveryOption) {
  EXPECT_EQ(table_.Help(),
            "\n  --test-sheaves=N, --test-sh=N, -s N\n      how many sheaves; "
            "default 3\n"
            "\n  --test-thresh\n      thresh them\n");
}

}  // namespace
}  // namespace muster::worker
