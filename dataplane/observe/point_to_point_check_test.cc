#include "dataplane/observe/point_to_point_check.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dataplane/culprit.h"
#include "dataplane/testing/fake_backend.h"
#include "dataplane/testing/in_memory_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/mutex.h"

namespace muster::dataplane {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::EndsWith;
using testing::FakeBackend;
using ::testing::IsEmpty;

// Locked, because the check's own thread may call Abort.
class LockedBackend : public FakeBackend {
 public:
  std::shared_ptr<Work> Start(const Collective& collective) override {
    MutexLock lock(mutex_);
    return FakeBackend::Start(collective);
  }
  void Abort(Status cause) override {
    MutexLock lock(mutex_);
    FakeBackend::Abort(std::move(cause));
  }

 private:
  Mutex mutex_;
};

class PointToPointCheckTest : public ::testing::Test {
 protected:
  static constexpr int kRanks = 3;

  PointToPointCheckTest() {
    for (int rank = 0; rank < kRanks; ++rank) {
      auto fake = std::make_unique<LockedBackend>();
      fakes_.push_back(fake.get());
      checks_.push_back(std::make_unique<PointToPointCheck>(
          std::move(fake),
          PointToPointCheckOptions{.group_name = "world",
                                   .rank = rank,
                                   .store = store_,
                                   .patience = milliseconds(10)}));
    }
  }

  std::shared_ptr<Work> Start(CollectiveKind kind, int rank, int peer, int tag,
                              milliseconds timeout) {
    Collective collective;
    collective.kind = kind;
    const bool sends = kind == CollectiveKind::kSend;
    (sends ? collective.inputs : collective.outputs).push_back(Tensor(values_));
    collective.peer = peer;
    collective.tag = tag;
    collective.sequence = ++sequence_;
    collective.timeout = timeout;
    collective.deadline = Clock::now() + timeout;
    return checks_[static_cast<size_t>(rank)]->Start(collective);
  }

  // Waits until the rank has published `count` operations.
  void AwaitTold(int rank, size_t count) {
    const std::string key = "check/point_to_point/" + std::to_string(rank);
    size_t told = count + 1;
    const Instant until = Clock::now() + seconds(60);
    while (told != count && Clock::now() < until) {
      std::this_thread::yield();
      const auto value = store_->Get({key}, until);
      ASSERT_TRUE(value.ok());
      told = static_cast<size_t>(
          std::count(value->front().begin(), value->front().end(), '\n'));
    }
    ASSERT_EQ(told, count);
  }

  const std::shared_ptr<testing::InMemoryStore> store_ =
      std::make_shared<testing::InMemoryStore>();
  std::vector<float> values_ = std::vector<float>(5);
  uint64_t sequence_ = 0;
  std::vector<FakeBackend*> fakes_;
  std::vector<std::unique_ptr<PointToPointCheck>> checks_;
};

TEST_F(PointToPointCheckTest, ATimeoutSaysWhatThePeerWaitsInInstead) {
  const auto other = Start(CollectiveKind::kRecv, 1, 2, 0, hours(1));
  AwaitTold(1, 1);
  const auto work = Start(CollectiveKind::kSend, 0, 1, 0, milliseconds(20));
  const Status status = work->Wait();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            "send #2 on group \"world\": timed out after 20ms waiting for rank "
            "1 with tag 0; rank 1 waits in recv #1 float32[5] from rank 2 tag "
            "0, which does not go with it");
  EXPECT_EQ(CulpritRank(status), 1);
  // The check ends the group with that error.
  EXPECT_EQ(fakes_[0]->aborts, std::vector<Status>{status});
  EXPECT_FALSE(other->IsCompleted());
}

TEST_F(PointToPointCheckTest, WhatGoesWithItIsNoMismatch) {
  const auto tag = Start(CollectiveKind::kRecv, 1, 0, 7, hours(1));
  const auto any = Start(CollectiveKind::kRecv, 1, kAnyPeer, 0, hours(1));
  AwaitTold(1, 2);
  EXPECT_THAT(std::string(Start(CollectiveKind::kSend, 0, 1, 0, milliseconds(8))
                              ->Wait()
                              .message()),
              EndsWith("; rank 1 waits in recv #1 float32[5] from rank 0 tag "
                       "7, recv #2 float32[5] from any rank tag 0"));
  // A send matches neither a send nor another tag.
  const auto send = Start(CollectiveKind::kSend, 2, 1, 0, hours(1));
  AwaitTold(2, 1);
  EXPECT_THAT(std::string(Start(CollectiveKind::kSend, 1, 2, 0, milliseconds(8))
                              ->Wait()
                              .message()),
              EndsWith("; rank 2 waits in send #4 float32[5] to rank 1 tag 0, "
                       "which does not go with it"));
}

TEST_F(PointToPointCheckTest, OfAPeerThatWaitsInNothingNothingIsSaid) {
  const auto work = Start(CollectiveKind::kRecv, 1, 2, 0, milliseconds(4));
  EXPECT_EQ(work->Wait().message(),
            "recv #1 on group \"world\": timed out after 4ms waiting for rank "
            "2 with tag 0");
  const auto any =
      Start(CollectiveKind::kRecv, 0, kAnyPeer, 3, milliseconds(4));
  EXPECT_EQ(any->Wait().message(),
            "recv #2 on group \"world\": timed out after 4ms waiting for any "
            "rank with tag 3");
  EXPECT_EQ(CulpritRank(any->status()), std::nullopt);
}

TEST_F(PointToPointCheckTest, WhatIsCompleteIsNotTold) {
  const auto first = Start(CollectiveKind::kRecv, 1, 2, 0, hours(1));
  const auto second = Start(CollectiveKind::kRecv, 1, 2, 1, hours(1));
  AwaitTold(1, 2);
  fakes_[1]->works.at(0)->Complete(OkStatus());
  EXPECT_TRUE(first->Wait().ok());
  AwaitTold(1, 1);
  fakes_[1]->works.at(1)->Complete(OkStatus());
  AwaitTold(1, 0);
  EXPECT_THAT(fakes_[1]->aborts, IsEmpty());
}

TEST_F(PointToPointCheckTest, CollectivesAndWhatDoesNotWaitPass) {
  Collective barrier;
  checks_[0]->Start(barrier)->OnCompletion([](const Status&) {});
  EXPECT_EQ(fakes_[0]->started.at(0).deadline, Instant::max());
  const Instant before = Clock::now();
  const auto work = Start(CollectiveKind::kSend, 0, 1, 0, hours(1));
  // The backend's own deadline is later, but not infinite.
  EXPECT_GE(fakes_[0]->started.at(1).deadline, before + hours(1) + seconds(1));
  fakes_[0]->works.at(1)->Complete(InternalError("broken"));
  EXPECT_EQ(work->Wait(), InternalError("broken"));
  EXPECT_EQ(store_->sets(), 0);
}

}  // namespace
}  // namespace muster::dataplane
