#include "dataplane/communicator.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/failed_call.h"
#include "dataplane/testing/fake_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using testing::FakeBackend;

class CommunicatorTest : public ::testing::Test {
 protected:
  std::shared_ptr<Work> StartAllReduce() {
    return communicator_.Start(
        {.kind = CollectiveKind::kAllReduce, .tensors = {Tensor(values_)}});
  }

  // The backend's next run sets run_begins_, and ends when run_may_end_ is set.
  void HoldRun() {
    backend_->run = [this] {
      run_begins_.set_value();
      run_may_end_.get_future().wait();
      return OkStatus();
    };
  }

  std::promise<void> run_begins_;
  std::promise<void> run_may_end_;
  std::vector<float> values_ = std::vector<float>(4);
  FakeBackend* backend_ = new FakeBackend;  // Owned by the communicator.
  Communicator communicator_{{.group_name = "g",
                              .rank = 1,
                              .world_size = 2,
                              .default_timeout = seconds(7)},
                             std::unique_ptr<Backend>(backend_)};
};

TEST_F(CommunicatorTest, NumbersCollectivesFromOneAndFillsInDeadlines) {
  const Instant before = Clock::now();
  (void)StartAllReduce();
  (void)communicator_.Start(
      {.kind = CollectiveKind::kBarrier, .timeout = seconds(3)});
  ASSERT_EQ(backend_->started.size(), 2u);
  EXPECT_EQ(backend_->started[0].sequence, 1u);
  EXPECT_EQ(backend_->started[0].timeout, seconds(7));
  EXPECT_GE(backend_->started[0].deadline, before + seconds(7));
  EXPECT_EQ(backend_->started[1].sequence, 2u);
  EXPECT_EQ(backend_->started[1].timeout, seconds(3));
  EXPECT_LT(backend_->started[1].deadline, before + seconds(7));
}

// Shutdown would wait for it if it did not count as complete.
TEST_F(CommunicatorTest, WhatARunHasEndedIsComplete) {
  const Collective barrier = {.kind = CollectiveKind::kBarrier};
  EXPECT_TRUE(communicator_.Run(Collective(barrier)).ok());
  EXPECT_TRUE(communicator_.Run(Collective(barrier)).ok());
  const Progress progress = communicator_.progress();
  EXPECT_EQ(progress.last_completed, 2u);
  EXPECT_EQ(progress.current, "");
  backend_->run = [] { return DataLossError("lost"); };
  EXPECT_EQ(communicator_.Run(Collective(barrier)).code(),
            StatusCode::kDataLoss);
  EXPECT_EQ(communicator_.status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(communicator_.progress().last_completed, 2u);
  communicator_.Shutdown();
}

TEST_F(CommunicatorTest, EndlessTimeoutHasNoDeadline) {
  (void)communicator_.Start({.kind = CollectiveKind::kBarrier,
                             .timeout = std::chrono::milliseconds::max()});
  EXPECT_EQ(backend_->started[0].deadline, Instant::max());
}

TEST_F(CommunicatorTest, BadArgumentsTakeANumberButDoNotReachTheBackend) {
  const auto bad =
      communicator_.Start({.kind = CollectiveKind::kAllReduce, .tensors = {}});
  EXPECT_TRUE(bad->IsCompleted());
  EXPECT_EQ(bad->status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(bad->status().message()),
            "all_reduce #1 on group \"g\": argument tensors: all_reduce takes "
            "1 tensor, got 0");
  EXPECT_TRUE(backend_->started.empty());
  // The backend is told, for the sake of ranks that have started theirs.
  ASSERT_EQ(backend_->refused.size(), 1u);
  EXPECT_EQ(backend_->refused[0].sequence, 1u);
  (void)StartAllReduce();
  EXPECT_EQ(backend_->started[0].sequence, 2u);
  (void)communicator_.Start({.kind = CollectiveKind::kSend});
  EXPECT_EQ(backend_->refused.size(), 1u);
  EXPECT_TRUE(communicator_.status().ok());
}

TEST_F(CommunicatorTest, WhatTheBackendLacksIsAnErrorOfTheCallAlone) {
  backend_->supports = UnimplementedError("no such type");
  const auto work = StartAllReduce();
  EXPECT_EQ(work->status(),
            UnimplementedError("all_reduce #1 on group \"g\": no such type"));
  EXPECT_TRUE(communicator_.status().ok());
}

// Computed apart, by FNV-1a over the numbers of the fields. A client of another
// version must come to the same hash: numbers of enums never change.
TEST(ArgumentsHashTest, IsTheSameInEveryVersion) {
  float values[6] = {};
  Collective collective;
  collective.kind = CollectiveKind::kReduce;
  collective.tensors = {Tensor(values, DataType::kFloat32, {2, 3})};
  collective.reduce_op = ReduceOp::kMax;
  collective.root = 5;
  collective.sequence = 12;
  EXPECT_EQ(ArgumentsHash(collective), 0x9d0b20c8477c3b88u);
}

TEST_F(CommunicatorTest, ProgressFollowsTheOldestRunningCollective) {
  EXPECT_EQ(communicator_.progress().last_enqueued, 0u);
  EXPECT_EQ(communicator_.progress().current, "");
  (void)StartAllReduce();
  (void)communicator_.Start({.kind = CollectiveKind::kBarrier});
  Progress progress = communicator_.progress();
  EXPECT_EQ(progress.group_name, "g");
  EXPECT_EQ(progress.last_enqueued, 2u);
  EXPECT_EQ(progress.last_completed, 0u);
  EXPECT_EQ(progress.current, "all_reduce #1 float32[4] sum");
  EXPECT_EQ(progress.arguments_hash, ArgumentsHash(backend_->started[0]));
  backend_->works[0]->Complete(OkStatus());
  progress = communicator_.progress();
  EXPECT_EQ(progress.last_completed, 1u);
  EXPECT_EQ(progress.current, "barrier #2");
  EXPECT_EQ(progress.arguments_hash, ArgumentsHash(backend_->started[1]));
  backend_->works[1]->Complete(OkStatus());
  EXPECT_EQ(communicator_.progress().current, "");
  EXPECT_EQ(communicator_.progress().arguments_hash, std::nullopt);
  EXPECT_EQ(communicator_.progress().last_completed, 2u);
}

TEST_F(CommunicatorTest, ProgressTellsSinceWhenTheOldestIsTheOldest) {
  const Instant before = Clock::now();
  (void)StartAllReduce();
  const Instant began = communicator_.progress().since;
  EXPECT_GE(began, before);
  EXPECT_LE(began, Clock::now());
  // Collectives behind the oldest one change nothing.
  (void)StartAllReduce();
  (void)StartAllReduce();
  backend_->works[1]->Complete(OkStatus());
  EXPECT_EQ(communicator_.progress().since, began);
  EXPECT_EQ(communicator_.progress().last_completed, 2u);
  for (const int oldest : {0, 2}) {
    const Instant completing = Clock::now();
    backend_->works[oldest]->Complete(OkStatus());
    EXPECT_GE(communicator_.progress().since, completing);
  }
  EXPECT_EQ(communicator_.progress().current, "");
}

// progress() may be called between its completion and the callback that records
// the time.
TEST_F(CommunicatorTest, WhatIsCompleteWhenItHasStartedSetsNoTimeBack) {
  const Instant before = Clock::now();
  Progress seen;
  class Complete : public PromisedWork {
   public:
    explicit Complete(std::function<void()> look)
        : PromisedWork(""), look_(std::move(look)) {}
    void OnCompletion(Callback callback) override {
      PromisedWork::Complete(OkStatus());
      look_();
      PromisedWork::OnCompletion(std::move(callback));
    }

   private:
    const std::function<void()> look_;
  };
  backend_->start = [&] {
    return std::make_shared<Complete>([&] { seen = communicator_.progress(); });
  };
  (void)StartAllReduce();
  EXPECT_EQ(seen.last_completed, 1u);
  EXPECT_GE(seen.since, before);
}

TEST_F(CommunicatorTest, RunEndsWithTheCollectiveAndHoldsUpNobody) {
  const auto run = [this] {
    return communicator_.Run(
        {.kind = CollectiveKind::kAllReduce, .tensors = {Tensor(values_)}});
  };
  backend_->run = [this] {
    EXPECT_EQ(communicator_.progress().current, "all_reduce #1 float32[4] sum");
    EXPECT_EQ(communicator_.progress().arguments_hash,
              ArgumentsHash(backend_->started[0]));
    (void)StartAllReduce();
    EXPECT_EQ(backend_->started[1].sequence, 2u);
    EXPECT_EQ(communicator_.progress().last_completed, 0u);
    return OkStatus();
  };
  EXPECT_TRUE(run().ok());
  EXPECT_THAT(backend_->tickets, ElementsAre(1));
  EXPECT_EQ(backend_->started[0].timeout, seconds(7));
  EXPECT_EQ(communicator_.progress().last_completed, 1u);
  EXPECT_EQ(communicator_.progress().current, "all_reduce #2 float32[4] sum");

  EXPECT_EQ(communicator_.Run({.kind = CollectiveKind::kAllReduce}),
            InvalidArgumentError(
                "all_reduce #3 on group \"g\": argument tensors: all_reduce "
                "takes 1 tensor, got 0"));
  EXPECT_TRUE(communicator_.status().ok());

  const Status cause = UnavailableError("rank 0 is gone");
  backend_->run = [&] { return cause; };
  EXPECT_EQ(run(), cause);
  EXPECT_EQ(communicator_.status(), cause);
  EXPECT_EQ(run(), cause);
  EXPECT_EQ(backend_->started.size(), 3u);
}

// The backend sees collectives in the order of their numbers.
TEST_F(CommunicatorTest, ARunHasItsPlaceBeforeAnyOtherIsNumbered) {
  HoldRun();
  auto first = std::async(std::launch::async, [&] {
    return communicator_.Run({.kind = CollectiveKind::kBarrier});
  });
  run_begins_.get_future().wait();
  backend_->run = nullptr;
  EXPECT_TRUE(communicator_.Run({.kind = CollectiveKind::kBarrier}).ok());
  EXPECT_THAT(backend_->tickets, ElementsAre(1, 2));
  EXPECT_EQ(communicator_.progress().current, "barrier #1");
  run_may_end_.set_value();
  EXPECT_TRUE(first.get().ok());
}

TEST_F(CommunicatorTest, WhatIsThrownOutOfEnterLeavesNothing) {
  backend_->enter = [] { throw std::bad_alloc(); };
  EXPECT_THROW((void)communicator_.Run({.kind = CollectiveKind::kBarrier}),
               std::bad_alloc);
  EXPECT_EQ(communicator_.progress().current, "");
  EXPECT_TRUE(communicator_.status().ok());
  communicator_.Shutdown();
}

TEST_F(CommunicatorTest, WhatIsThrownOutOfRunEndsTheGroup) {
  backend_->run = []() -> Status { throw std::bad_alloc(); };
  EXPECT_THROW((void)communicator_.Run({.kind = CollectiveKind::kBarrier}),
               std::bad_alloc);
  EXPECT_EQ(communicator_.status(),
            Labelled({"barrier #1"}, "g", InternalError("threw")));
  EXPECT_EQ(communicator_.progress().current, "");
}

class PreparedTest : public CommunicatorTest {
 protected:
  std::shared_ptr<PreparedCollective> PrepareAllReduce(
      std::chrono::milliseconds timeout = {}) {
    auto prepared = communicator_.Prepare({.kind = CollectiveKind::kAllReduce,
                                           .tensors = {Tensor(values_)},
                                           .timeout = timeout});
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    return *std::move(prepared);
  }
};

TEST_F(PreparedTest, ARunIsNumberedAndTimedAsAnyOther) {
  const auto usual = PrepareAllReduce();
  const auto timed = PrepareAllReduce(seconds(3));
  EXPECT_EQ(backend_->prepared.size(), 2u);
  EXPECT_EQ(communicator_.last_enqueued(), 0u);
  for (const bool is_usual : {true, true, false, true}) {
    PreparedCollective& prepared = is_usual ? *usual : *timed;
    EXPECT_TRUE(communicator_.Run(prepared).ok());
    const Collective& started = backend_->started.back();
    EXPECT_EQ(started.sequence, backend_->started.size());
    EXPECT_EQ(started.sequence, prepared.last_run().sequence);
    const seconds timeout(is_usual ? 7 : 3);
    EXPECT_EQ(started.timeout, timeout);
    EXPECT_EQ(started.deadline, started.started + timeout);
    EXPECT_EQ(started.tensors[0].data(), values_.data());
  }
  ASSERT_EQ(backend_->run_with.size(), 4u);
  EXPECT_NE(backend_->run_with[0], nullptr);
  EXPECT_EQ(backend_->run_with[1], backend_->run_with[0]);
  EXPECT_NE(backend_->run_with[2], backend_->run_with[0]);
  EXPECT_EQ(communicator_.progress().last_completed, 4u);
  EXPECT_EQ(communicator_.progress().current, "");
}

TEST_F(PreparedTest, AStartedOneIsNumberedToo) {
  const auto prepared = PrepareAllReduce();
  EXPECT_TRUE(communicator_.Run(*prepared).ok());
  for (size_t i = 0; i < 2; ++i) {
    const auto work = communicator_.Start(prepared);
    EXPECT_EQ(backend_->started.back().sequence, i + 2);
    EXPECT_EQ(backend_->started.back().timeout, seconds(7));
    backend_->works[i]->Complete(OkStatus());
    EXPECT_TRUE(work->Wait().ok());
  }
  EXPECT_TRUE(communicator_.Run(*prepared).ok());
  EXPECT_EQ(communicator_.progress().last_completed, 4u);
}

// It uses up a number, like any refused call.
TEST_F(PreparedTest, ASecondRunIsRefusedWhileOneRuns) {
  const auto prepared = PrepareAllReduce();
  const auto expect_refused = [&](int number, int running) {
    for (const bool waits : {true, false}) {
      const Status status = waits ? communicator_.Run(*prepared)
                                  : communicator_.Start(prepared)->status();
      EXPECT_EQ(status, InvalidArgumentError(absl::StrCat(
                            "all_reduce #", number++,
                            " on group \"g\": this prepared "
                            "collective still runs, as all_reduce #",
                            running, ", and has one run at a time")));
    }
  };
  backend_->run = [&] {
    expect_refused(2, 1);
    EXPECT_EQ(communicator_.progress().current, "all_reduce #1 float32[4] sum");
    return OkStatus();
  };
  EXPECT_TRUE(communicator_.Run(*prepared).ok());
  EXPECT_EQ(backend_->refused.size(), 2u);
  backend_->run = nullptr;
  const auto work = communicator_.Start(prepared);
  expect_refused(5, 4);
  backend_->works[0]->Complete(OkStatus());
  EXPECT_TRUE(communicator_.Run(*prepared).ok());
  EXPECT_EQ(backend_->started.size(), 3u);
  EXPECT_EQ(backend_->started.back().sequence, 7u);
  EXPECT_TRUE(communicator_.status().ok());
}

// A collective behind another one; either ends first.
TEST_F(PreparedTest, ProgressNamesTheOldestThatRuns) {
  const auto prepared = PrepareAllReduce();
  for (const bool ends_first : {true, false}) {
    const size_t first = backend_->works.size();
    (void)communicator_.Start({.kind = CollectiveKind::kBarrier});
    const Instant began = communicator_.progress().since;
    Instant ended;
    backend_->run = [&] {
      EXPECT_EQ(communicator_.progress().since, began);
      if (!ends_first) {
        ended = Clock::now();
        backend_->works[first]->Complete(OkStatus());
        EXPECT_THAT(communicator_.progress().current,
                    ::testing::StartsWith("all_reduce"));
        EXPECT_GE(communicator_.progress().since, ended);
      }
      return OkStatus();
    };
    EXPECT_TRUE(communicator_.Run(*prepared).ok());
    backend_->run = nullptr;
    if (ends_first) {
      EXPECT_EQ(communicator_.progress().since, began);
      EXPECT_THAT(communicator_.progress().current,
                  ::testing::StartsWith("barrier"));
      backend_->works[first]->Complete(OkStatus());
    }
    EXPECT_EQ(communicator_.progress().current, "");
  }
}

// The same for a collective behind a prepared one, and for `since`.
TEST_F(PreparedTest, WhatComesBehindItIsTheNextToBeFirst) {
  const auto prepared = PrepareAllReduce();
  Instant inside;
  backend_->run = [&] {
    (void)communicator_.Start({.kind = CollectiveKind::kBarrier});
    // Collectives behind the first one change nothing.
    const Instant since = communicator_.progress().since;
    backend_->works.back()->Complete(OkStatus());
    EXPECT_EQ(communicator_.progress().since, since);
    (void)communicator_.Start({.kind = CollectiveKind::kBarrier});
    inside = Clock::now();
    return OkStatus();
  };
  EXPECT_TRUE(communicator_.Run(*prepared).ok());
  EXPECT_GE(communicator_.progress().since, inside);
  EXPECT_EQ(communicator_.progress().current, "barrier #3");
}

TEST_F(PreparedTest, BadArgumentsAreRefusedAtOnce) {
  const Collective overlaps = {.kind = CollectiveKind::kAllGatherIntoTensor,
                               .inputs = {Tensor(values_.data() + 1, {2})},
                               .outputs = {Tensor(values_)}};
  EXPECT_EQ(communicator_.Prepare(overlaps).status().code(),
            StatusCode::kInvalidArgument);
  backend_->supports = UnimplementedError("not that");
  EXPECT_EQ(communicator_.Prepare({.kind = CollectiveKind::kBarrier}).status(),
            UnimplementedError("barrier on group \"g\": not that"));
  EXPECT_TRUE(backend_->prepared.empty());
  EXPECT_TRUE(backend_->refused.empty());
  EXPECT_EQ(communicator_.last_enqueued(), 0u);
  EXPECT_TRUE(communicator_.status().ok());
}

TEST_F(PreparedTest, AFailureEndsTheGroup) {
  const auto prepared = PrepareAllReduce();
  EXPECT_TRUE(communicator_.Run(*prepared).ok());
  const Status cause = UnavailableError("rank 0 is gone");
  backend_->run = [&] { return cause; };
  EXPECT_EQ(communicator_.Run(*prepared), cause);
  EXPECT_EQ(communicator_.status(), cause);
  EXPECT_EQ(communicator_.Run(*prepared), cause);
  EXPECT_EQ(communicator_.Start(prepared)->status(), cause);
  EXPECT_EQ(communicator_.Prepare({.kind = CollectiveKind::kBarrier}).status(),
            cause);
  EXPECT_EQ(backend_->started.size(), 2u);
  EXPECT_EQ(communicator_.progress().last_enqueued, 4u);
  communicator_.Shutdown();
  EXPECT_EQ(communicator_.Run(*prepared), cause);
}

TEST_F(PreparedTest, WhatIsThrownOutOfARunEndsTheGroup) {
  const auto prepared = PrepareAllReduce();
  backend_->run = []() -> Status { throw std::bad_alloc(); };
  EXPECT_THROW((void)communicator_.Run(*prepared), std::bad_alloc);
  EXPECT_EQ(communicator_.status(),
            Labelled({"all_reduce #1"}, "g", InternalError("threw")));
  EXPECT_EQ(communicator_.Run(*prepared), communicator_.status());
}

TEST_F(PreparedTest, AGroupThatWasDestroyedSaysSo) {
  const auto prepared = PrepareAllReduce();
  communicator_.Shutdown();
  EXPECT_EQ(communicator_.Run(*prepared).code(), StatusCode::kCancelled);
  EXPECT_EQ(communicator_.Start(prepared)->status().code(),
            StatusCode::kCancelled);
  EXPECT_EQ(communicator_.Prepare(prepared->arguments()).status().code(),
            StatusCode::kCancelled);
}

TEST_F(PreparedTest, AnotherThreadIsRefusedWhileOneRuns) {
  const auto prepared = PrepareAllReduce();
  HoldRun();
  auto running = std::async(std::launch::async,
                            [&] { return communicator_.Run(*prepared); });
  run_begins_.get_future().wait();
  EXPECT_EQ(communicator_.Run(*prepared).code(), StatusCode::kInvalidArgument);
  run_may_end_.set_value();
  EXPECT_TRUE(running.get().ok());
  backend_->run = nullptr;
  EXPECT_TRUE(communicator_.Run(*prepared).ok());
}

TEST_F(CommunicatorTest, SendsAndReceivesHaveNumbersAndProgressOfTheirOwn) {
  const Collective receive = {
      .kind = CollectiveKind::kRecv, .outputs = {Tensor(values_)}, .peer = 0};
  (void)communicator_.Start(receive);
  (void)communicator_.Start(receive);
  (void)StartAllReduce();
  EXPECT_EQ(backend_->started[1].sequence, 2u);
  EXPECT_EQ(backend_->started[2].sequence, 1u);
  // Collectives take precedence.
  EXPECT_EQ(communicator_.progress().current, "all_reduce #1 float32[4] sum");
  EXPECT_FALSE(communicator_.progress().peer_call.has_value());
  EXPECT_EQ(communicator_.progress().last_enqueued, 1u);
  backend_->works[2]->Complete(OkStatus());
  backend_->works[0]->Complete(OkStatus());
  EXPECT_EQ(communicator_.progress().current,
            "recv #2 float32[4] from rank 0 tag 0");
  EXPECT_EQ(communicator_.progress().arguments_hash, std::nullopt);
  const std::optional<PeerCall> call = communicator_.progress().peer_call;
  ASSERT_TRUE(call.has_value());
  EXPECT_FALSE(call->sends);
  EXPECT_EQ(call->number, 2u);
  EXPECT_EQ(call->peer, 0);
  EXPECT_EQ(communicator_.progress().last_completed, 1u);
  const Status cause = UnavailableError("rank 0 is gone");
  backend_->works[1]->Complete(cause);
  EXPECT_EQ(communicator_.status(), cause);
}

TEST_F(CommunicatorTest, FirstFailurePoisonsTheGroupWaitedForOrNot) {
  const Status cause = UnavailableError("rank 0 is gone");
  const auto first = StartAllReduce();
  const auto second = StartAllReduce();
  backend_->works[0]->Complete(cause);
  EXPECT_EQ(communicator_.status(), cause);
  EXPECT_THAT(backend_->aborts, ElementsAre(cause));
  EXPECT_EQ(second->status(), cause);
  const auto later = StartAllReduce();
  EXPECT_TRUE(later->IsCompleted());
  EXPECT_EQ(later->status(), cause);
  EXPECT_EQ(backend_->started.size(), 2u);
  EXPECT_EQ(communicator_.progress().last_enqueued, 3u);
}

TEST_F(CommunicatorTest, OnlyTheFirstAbortCounts) {
  communicator_.Abort(AbortedError("first"));
  communicator_.Abort(AbortedError("second"));
  EXPECT_EQ(communicator_.status(), AbortedError("first"));
  EXPECT_THAT(backend_->aborts, ElementsAre(AbortedError("first")));
}

TEST_F(CommunicatorTest, ShutdownEndsWhoRunsAndWaitsForHim) {
  HoldRun();
  Status status = UnknownError("has not ended");
  std::thread caller(
      [&] { status = communicator_.Run({.kind = CollectiveKind::kBarrier}); });
  run_begins_.get_future().wait();
  std::thread ending([&] { communicator_.Shutdown(); });
  // The backend is aborted, and lives until the caller has left it.
  while (communicator_.status().ok()) std::this_thread::yield();
  EXPECT_EQ(communicator_.progress().current, "barrier #1");
  run_may_end_.set_value();
  caller.join();
  ending.join();
  EXPECT_TRUE(status.ok()) << status;

  const Status over = CancelledError("group \"g\" was destroyed");
  EXPECT_EQ(communicator_.Run({.kind = CollectiveKind::kBarrier}), over);
  EXPECT_EQ(StartAllReduce()->status(), over);
  EXPECT_EQ(communicator_.StartTogether({{}})[0]->status(), over);
  EXPECT_EQ(communicator_.Check({.kind = CollectiveKind::kBarrier}), over);
  EXPECT_EQ(communicator_.AllocateSymmetric({}).status(), over);
  EXPECT_EQ(communicator_.Split({}), nullptr);
  EXPECT_EQ(communicator_.last_run(DeviceType::kCpu).backend, "");
  EXPECT_EQ(communicator_.fusable_bytes(), 0u);
  communicator_.Shutdown();
}

TEST(CommunicatorLifeTest, ItMayEndWhileOneIsPrepared) {
  for (int i = 0; i < 300; ++i) {
    Communicator communicator({.group_name = "g", .rank = 0, .world_size = 2},
                              std::make_unique<FakeBackend>());
    std::atomic<bool> runs{false};
    std::thread caller([&] {
      float value = 0;
      for (;;) {
        const auto prepared =
            communicator.Prepare({.kind = CollectiveKind::kAllReduce,
                                  .tensors = {Tensor(&value, {1})}});
        if (!prepared.ok() || !communicator.Run(**prepared).ok()) return;
        runs.store(true);
      }
    });
    while (!runs.load()) std::this_thread::yield();
    communicator.Shutdown();
    caller.join();
  }
}

// A backend that is not aborted may close its connections in an orderly way.
TEST(CommunicatorLifeTest, DestructionAbortsWhatRunsAndNothingElse) {
  class Counting : public FakeBackend {
   public:
    explicit Counting(int& aborts) : aborts_(aborts) {}
    void Abort(Status cause) override {
      ++aborts_;
      FakeBackend::Abort(std::move(cause));
    }

   private:
    int& aborts_;
  };
  int aborts = 0;
  const auto make = [&] {
    return std::make_unique<Communicator>(
        CommunicatorOptions{.group_name = "g", .rank = 0, .world_size = 2},
        std::make_unique<Counting>(aborts));
  };
  EXPECT_TRUE(make()->Run({.kind = CollectiveKind::kBarrier}).ok());
  EXPECT_EQ(aborts, 0);
  const auto work = make()->Start({.kind = CollectiveKind::kBarrier});
  EXPECT_TRUE(IsCancelled(work->Wait()));
  EXPECT_EQ(aborts, 1);
  float value = 0;
  const auto send = make()->Start({.kind = CollectiveKind::kSend,
                                   .inputs = {Tensor(&value, {1})},
                                   .peer = 1});
  EXPECT_TRUE(IsCancelled(send->Wait()));
  EXPECT_EQ(aborts, 2);
}

TEST(CommunicatorLifeTest, DestructionCancelsWhatRuns) {
  std::shared_ptr<Work> work;
  {
    Communicator communicator({.group_name = "g", .rank = 0, .world_size = 2},
                              std::make_unique<FakeBackend>());
    work = communicator.Start({.kind = CollectiveKind::kBarrier});
  }
  EXPECT_EQ(work->status(), CancelledError("group \"g\" was destroyed"));
}

}  // namespace
}  // namespace muster::dataplane
