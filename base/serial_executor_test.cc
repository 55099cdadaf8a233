#include "base/serial_executor.h"

#include <stdexcept>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::base {
namespace {

using ::testing::ElementsAre;

TEST(ErrandsTest, AreRunInTheirOrder) {
  std::vector<int> ran;
  Errands errands;
  for (int i = 0; i < 3; ++i) {
    errands.Post([&ran, i] {
      ran.push_back(i);
      return absl::OkStatus();
    });
  }
  EXPECT_EQ(errands.Await(3), absl::OkStatus());
  EXPECT_THAT(ran, ElementsAre(0, 1, 2));
}

TEST(ErrandsTest, NoneRunsAfterOneThatFailed) {
  bool ran = false;
  absl::Status failure = absl::UnavailableError("gone");
  Errands errands;
  errands.Post([&failure] { return absl::Status(failure); });
  errands.Post([&] {
    ran = true;
    return absl::OkStatus();
  });
  EXPECT_EQ(errands.Await(1), failure);
  EXPECT_EQ(errands.Await(2), failure);
  EXPECT_FALSE(ran);
}

TEST(ErrandsTest, WhatOneThrowsIsItsFailure) {
  Errands errands;
  errands.Post([]() -> absl::Status { throw std::runtime_error("enough"); });
  EXPECT_EQ(errands.Await(1), absl::InternalError("threw: enough"));
}

TEST(ErrandsTest, WhatIsNotAwaitedNeedNotRun) {
  Errands errands;
  errands.Post([] { return absl::OkStatus(); });
}

}  // namespace
}  // namespace muster::base
