#include "coordinator/core/progress.h"

#include <chrono>

#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

using namespace std::chrono_literals;  // NOLINT(build/namespaces)

TEST(ProgressTest, NothingIsKnown) { EXPECT_EQ(DescribeProgress({}, 3s), ""); }

TEST(ProgressTest, AnAgeBeyondTheRangeDoesNotOverflow) {
  EXPECT_EQ(DescribeProgress({{.group = "g",
                               .current = "barrier",
                               .current_age = Duration::max()}},
                             3s),
            "group \"g\": 0 of 0 done, in barrier for 9223372036.8s");
}

TEST(ProgressTest, AGroupBetweenCollectives) {
  EXPECT_EQ(
      DescribeProgress(
          {{.group = "world", .last_enqueued = 7, .last_completed = 7}}, 3s),
      "group \"world\": 7 of 7 done");
}

TEST(ProgressTest, TheGroupThatIsInItsCollectiveForLongestIsShown) {
  EXPECT_EQ(DescribeProgress({{.group = "idle"},
                              {.group = "tp",
                               .last_enqueued = 5,
                               .last_completed = 4,
                               .current = "broadcast int64[1]",
                               .current_age = 1s},
                              {.group = "dp",
                               .last_enqueued = 418,
                               .last_completed = 417,
                               .current = "all_reduce float32[1024]",
                               .current_age = 9s}},
                             3s),
            "group \"dp\": 417 of 418 done, in all_reduce float32[1024] for "
            "12s (2 more groups)");
}

TEST(ProgressTest, TheGroupThatTheTextIsAboutIsShown) {
  const std::vector<GroupProgress> progress = {
      {.group = "world", .current = "barrier", .current_age = 9s},
      {.group = "tp", .last_enqueued = 7, .last_completed = 6}};
  EXPECT_EQ(DescribeProgress(progress, 3s, "tp"),
            "group \"tp\": 6 of 7 done; in barrier on group \"world\" for "
            "12s");
  EXPECT_EQ(DescribeProgress(progress, 3s, "dp"),
            "group \"world\": 0 of 0 done, in barrier for 12s (1 more group)");
}

}  // namespace
}  // namespace muster::coordinator::core
