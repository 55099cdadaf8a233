#include "dataplane/timeout_watchdog.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "dataplane/failed_call.h"
#include "dataplane/testing/fake_backend.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using testing::FakeBackend;

// Ignores Abort.
class DeafBackend : public FakeBackend {
 public:
  void Abort(Status cause) override { aborts.push_back(cause); }
};

class TimeoutWatchdogTest : public ::testing::Test {
 protected:
  template <typename BackendType>
  BackendType& Make(milliseconds grace) {
    auto backend = std::make_unique<BackendType>();
    BackendType& inner = *backend;
    timekeeping_ = std::make_unique<TimeoutWatchdog>(
        std::move(backend),
        WatchdogOptions{.group_name = "tp0", .rank = 1, .grace = grace});
    return inner;
  }

  std::shared_ptr<Work> Start(CollectiveKind kind, milliseconds timeout) {
    Collective collective;
    collective.kind = kind;
    collective.sequence = 3;
    collective.timeout = timeout;
    collective.deadline = Clock::now() + timeout;
    return timekeeping_->Start(collective);
  }

  std::unique_ptr<TimeoutWatchdog> timekeeping_;
};

TEST_F(TimeoutWatchdogTest, WhatIsNotCompleteInTimeFails) {
  FakeBackend& inner = Make<FakeBackend>(milliseconds(20));
  const auto later = Start(CollectiveKind::kBarrier, hours(1));
  // The thread already waits for another one, or will soon.
  const auto work = Start(CollectiveKind::kBarrier, milliseconds(10));
  EXPECT_EQ(
      work->Wait(),
      Labelled({"barrier #3"}, "tp0",
               DeadlineExceededError(
                   "backend \"fake\" of rank 1 did "
                   "not complete it within 10ms, nor in the 20ms after that")));
  EXPECT_FALSE(later->IsCompleted());
  // A later completion changes nothing.
  inner.works.at(1)->Complete(OkStatus());
  EXPECT_TRUE(IsDeadlineExceeded(work->status()));
}

TEST_F(TimeoutWatchdogTest, WhatIsCompletePasses) {
  FakeBackend& inner = Make<FakeBackend>(hours(1));
  const auto good = Start(CollectiveKind::kRecv, hours(1));
  const auto bad = Start(CollectiveKind::kRecv, hours(1));
  inner.works.at(0)->SetSourceRank(2);
  inner.works.at(0)->Complete(OkStatus());
  inner.works.at(1)->Complete(InternalError("broken"));
  EXPECT_TRUE(good->Wait().ok());
  EXPECT_EQ(good->source_rank(), 2);
  EXPECT_EQ(good->description(), inner.works.at(0)->description());
  EXPECT_EQ(bad->Wait(), InternalError("broken"));
}

TEST_F(TimeoutWatchdogTest, AnAbortIsNotWaitedForLonger) {
  DeafBackend& inner = Make<DeafBackend>(milliseconds(20));
  const auto work = Start(CollectiveKind::kBarrier, hours(1));
  timekeeping_->Abort(AbortedError("enough"));
  EXPECT_EQ(inner.aborts.size(), 1U);
  EXPECT_EQ(work->Wait(), AbortedError("enough"));
  // The same for a collective that starts after it.
  EXPECT_EQ(Start(CollectiveKind::kBarrier, hours(1))->Wait(),
            AbortedError("enough"));
}

TEST_F(TimeoutWatchdogTest, NothingIsLeftWhenItIsDestroyed) {
  Make<DeafBackend>(hours(1));
  const auto work = Start(CollectiveKind::kBarrier, hours(1));
  timekeeping_ = nullptr;
  EXPECT_EQ(work->status(), CancelledError("group \"tp0\" was destroyed"));
}

}  // namespace
}  // namespace muster::dataplane
