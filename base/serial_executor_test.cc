#include "base/serial_executor.h"

#include <stdexcept>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::base {
namespace {

using ::testing::ElementsAre;

TEST(SerialExecutorTest, AreRunInTheirOrder) {
  std::vector<int> ran;
  SerialExecutor executor;
  for (int i = 0; i < 3; ++i) {
    executor.Post([&ran, i] {
      ran.push_back(i);
      return OkStatus();
    });
  }
  EXPECT_EQ(executor.Await(3), OkStatus());
  EXPECT_THAT(ran, ElementsAre(0, 1, 2));
}

TEST(SerialExecutorTest, NoneRunsAfterOneThatFailed) {
  bool ran = false;
  Status failure = UnavailableError("gone");
  SerialExecutor executor;
  executor.Post([&failure] { return Status(failure); });
  executor.Post([&] {
    ran = true;
    return OkStatus();
  });
  EXPECT_EQ(executor.Await(1), failure);
  EXPECT_EQ(executor.Await(2), failure);
  EXPECT_FALSE(ran);
}

TEST(SerialExecutorTest, WhatOneThrowsIsItsFailure) {
  SerialExecutor executor;
  executor.Post([]() -> Status { throw std::runtime_error("enough"); });
  EXPECT_EQ(executor.Await(1), InternalError("threw: enough"));
}

TEST(SerialExecutorTest, WhatIsNotAwaitedNeedNotRun) {
  SerialExecutor executor;
  executor.Post([] { return OkStatus(); });
}

}  // namespace
}  // namespace muster::base
