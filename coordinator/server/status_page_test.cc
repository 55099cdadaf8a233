#include "coordinator/server/status_page.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

core::BarrierSnapshot Barrier(int32_t expected, int32_t missing_named) {
  core::BarrierSnapshot barrier;
  barrier.barrier = "b";
  barrier.expected = expected;
  barrier.arrived = 1;
  for (int32_t i = 1; i <= missing_named; ++i) {
    core::MissingRank& missing = barrier.missing.emplace_back();
    missing.rank = core::Rank(i);
    missing.host = absl::StrCat("host-", i);
  }
  return barrier;
}

std::string Page(core::JobSnapshot job) {
  StatusPageInput input;
  input.jobs.push_back({"demo", std::move(job), 0});
  return RenderStatusPage(input);
}

TEST(StatusPageTest, WhatASnapshotLeavesOutIsCounted) {
  core::JobSnapshot job;
  job.barriers = {Barrier(100, 64)};
  job.open_barriers = 300;
  const std::string page = Page(job);
  EXPECT_THAT(page, HasSubstr("8 (host-8) and 91 more<"));
  EXPECT_THAT(page, HasSubstr("and 299 more barriers"));
}

TEST(StatusPageTest, WhereAllAreShownNothingIsCounted) {
  core::JobSnapshot job;
  job.barriers = {Barrier(3, 2)};
  job.open_barriers = 1;
  const std::string page = Page(job);
  EXPECT_THAT(page, HasSubstr("2 (host-2)<"));
  EXPECT_THAT(page, Not(HasSubstr("more")));
}

TEST(StatusPageTest, NamesAreNoMarkup) {
  core::JobSnapshot job;
  job.rendezvous_closed = "<script>\x1b[2J";
  EXPECT_THAT(Page(job), HasSubstr("closed by &lt;script&gt; [2J"));
}

}  // namespace
}  // namespace muster::coordinator
