// Tests the engine over a transport without a network. The test decides when
// receives end.

#include "dataplane/cpu/engine/engine.h"

#include <chrono>
#include <cstring>
#include <future>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/cpu/transport/fake_transport.h"
#include "dataplane/culprit.h"
#include "dataplane/failed_call.h"
#include "gtest/gtest.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::dataplane::cpu {
namespace {

using std::chrono::milliseconds;

// State that the test shares with the transport, which belongs to the engine.
struct Network {
  Mutex mutex;
  CondVar changed;
  // Receives return.
  bool open MUSTER_GUARDED_BY(mutex) = false;
  // Sends of notes block. Their thread then waits for no rank.
  bool hold_notes MUSTER_GUARDED_BY(mutex) = false;
  // The number of notes that may be sent before the peer leaves.
  int notes_max MUSTER_GUARDED_BY(mutex) = std::numeric_limits<int>::max();
  // The result of CheckPeers, and the number of its calls.
  Status gone MUSTER_GUARDED_BY(mutex);
  int spins MUSTER_GUARDED_BY(mutex) = 0;
  // Close blocks.
  bool hold_close MUSTER_GUARDED_BY(mutex) = false;
  Status aborted MUSTER_GUARDED_BY(mutex);
  std::vector<Status> goodbyes MUSTER_GUARDED_BY(mutex);
  std::vector<std::thread::id> received_on MUSTER_GUARDED_BY(mutex);

  void Open() {
    MutexLock lock(mutex);
    open = true;
    changed.NotifyAll();
  }

  // Returns whether the engine aborts the transport within 20 ms.
  bool AbortsSoon() {
    const Instant until = Clock::now() + milliseconds(20);
    MutexLock lock(mutex);
    while (aborted.ok() && changed.WaitUntil(mutex, until)) {
    }
    return !aborted.ok();
  }
};

class FakeMesh : public FakeTransport {
 public:
  explicit FakeMesh(std::shared_ptr<Network> network)
      : FakeTransport(/*rank=*/0, /*world_size=*/2),
        network_(std::move(network)) {}

  // The peer answers with the header that it received: the same collective.
  Status Write(int peer, const void* head, size_t head_bytes, const void*,
               size_t) override {
    const auto* const bytes = static_cast<const std::byte*>(head);
    sent_.assign(bytes, bytes + head_bytes);
    MutexLock lock(network_->mutex);
    while (network_->hold_notes) network_->changed.Wait(network_->mutex);
    if (network_->notes_max-- > 0) return OkStatus();
    return UnavailableError(absl::StrCat("rank ", peer, " left the group"));
  }
  Status Read(int peer, void* data, size_t bytes) override {
    if (bytes == 0) return OkStatus();
    waiting_for_ = peer;
    MutexLock lock(network_->mutex);
    network_->received_on.push_back(std::this_thread::get_id());
    network_->changed.NotifyAll();
    while (!network_->open && network_->aborted.ok()) {
      network_->changed.Wait(network_->mutex);
    }
    if (!network_->aborted.ok()) return network_->aborted;
    waiting_for_ = -1;
    std::memcpy(data, sent_.data(), bytes);
    return OkStatus();
  }

  void Abort(const Status& cause) override {
    MutexLock lock(network_->mutex);
    if (network_->aborted.ok()) network_->aborted = cause;
    network_->changed.NotifyAll();
  }

  Status abort_cause() const override {
    MutexLock lock(network_->mutex);
    return network_->aborted;
  }

  Status Gone(int) override { return OkStatus(); }

  Status CheckPeers() override {
    MutexLock lock(network_->mutex);
    ++network_->spins;
    network_->changed.NotifyAll();
    return network_->gone;
  }

  void Close(const Status& goodbye) override {
    MutexLock lock(network_->mutex);
    network_->goodbyes.push_back(goodbye);
    network_->changed.NotifyAll();
    while (network_->hold_close) network_->changed.Wait(network_->mutex);
  }

 private:
  const std::shared_ptr<Network> network_;
  std::vector<std::byte> sent_;
};

class EngineTest : public ::testing::Test {
 protected:
  Collective NextBarrier(Instant deadline = Instant::max()) {
    return {.timeout = milliseconds(50),
            .deadline = deadline,
            .sequence = ++sequence_};
  }

  std::shared_ptr<Work> StartBarrier(Instant deadline = Instant::max()) {
    return engine_->Start(NextBarrier(deadline));
  }

  // Runs a barrier on this thread.
  Status RunBarrier() { return engine_->RunStep(NextBarrier()); }

  // Waits until a collective waits for its peer.
  void AwaitReceive() {
    MutexLock lock(network_->mutex);
    while (network_->received_on.empty()) {
      network_->changed.Wait(network_->mutex);
    }
  }

  // Waits until the watchdog has checked the peers once more.
  void AwaitLook() {
    MutexLock lock(network_->mutex);
    const int before = network_->spins;
    while (network_->spins == before) network_->changed.Wait(network_->mutex);
  }

  const std::shared_ptr<Network> network_ = std::make_shared<Network>();
  const std::shared_ptr<Engine> engine_ =
      std::make_shared<Engine>("g", std::make_unique<FakeMesh>(network_));
  uint64_t sequence_ = 0;
};

TEST_F(EngineTest, WorksCompleteInTheOrderOfStartWhoeverRunsThem) {
  const auto first = StartBarrier();
  AwaitReceive();
  const auto second = StartBarrier();
  Mutex mutex;
  CondVar changed;
  bool completing = false;
  bool second_done = false;
  bool overtaken = false;
  // The first completion takes long.
  first->OnCompletion([&](const Status&) {
    const Instant until = Clock::now() + milliseconds(100);
    MutexLock lock(mutex);
    completing = true;
    changed.NotifyAll();
    while (!second_done && changed.WaitUntil(mutex, until)) {
    }
    overtaken = second_done;
  });
  network_->Open();
  {
    MutexLock lock(mutex);
    while (!completing) changed.Wait(mutex);
  }
  EXPECT_TRUE(second->Wait().ok());
  {
    MutexLock lock(mutex);
    second_done = true;
    changed.NotifyAll();
  }
  EXPECT_TRUE(first->Wait().ok());
  EXPECT_FALSE(overtaken);
}

TEST_F(EngineTest, FailedWorkCompletesAfterItsConnectionsAreClosed) {
  // Until the connections are closed, peers may read the tensor.
  const Status cause = AbortedError("on purpose");
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 2; ++i) {
    works.push_back(StartBarrier());
    works.back()->OnCompletion([&](const Status& status) {
      EXPECT_EQ(status, cause);
      MutexLock lock(network_->mutex);
      EXPECT_EQ(network_->goodbyes, std::vector<Status>{cause});
    });
  }
  AwaitReceive();
  engine_->Abort(cause);
  for (const auto& work : works) EXPECT_EQ(work->Wait(), cause);
  EXPECT_EQ(StartBarrier()->Wait(), cause);
}

TEST_F(EngineTest, GroupThatFailsWhileIdleTakesLeaveAtOnce) {
  const Status cause = AbortedError("on purpose");
  engine_->Abort(cause);
  engine_->Abort(InternalError("later"));
  MutexLock lock(network_->mutex);
  while (network_->goodbyes.empty()) network_->changed.Wait(network_->mutex);
  EXPECT_EQ(network_->goodbyes, std::vector<Status>{cause});
}

TEST_F(EngineTest, CollectiveHasItsGraceAfterAPeerIsGone) {
  {
    MutexLock lock(network_->mutex);
    network_->gone = UnavailableError("rank 1 is gone");
  }
  for (int round = 0; round < 6; ++round) {
    // Each collective has its own grace: together they take longer than one.
    const auto work = StartBarrier();
    AwaitLook();
    ASSERT_FALSE(network_->AbortsSoon()) << round;
    network_->Open();
    ASSERT_TRUE(work->Wait().ok()) << round << " " << work->status();
    MutexLock lock(network_->mutex);
    network_->open = false;
  }
  const auto work = StartBarrier();
  EXPECT_EQ(work->Wait(),
            Labelled({"barrier #7"}, "g", UnavailableError("rank 1 is gone")));
}

TEST_F(EngineTest, AVerdictNeedsNoGraceAndNoLabel) {
  Status verdict = AbortedError("aborted by rank 1: enough");
  SetVerdict(verdict, "");
  const auto work = StartBarrier();
  int spins = 0;
  {
    MutexLock lock(network_->mutex);
    network_->gone = verdict;
    spins = network_->spins;
  }
  EXPECT_EQ(work->Wait(), verdict);
  MutexLock lock(network_->mutex);
  // One check may have been under way.
  EXPECT_LE(network_->spins, spins + 2);
}

TEST_F(EngineTest, PeerMayLeaveOnceItHasSentItsNote) {
  {
    MutexLock lock(network_->mutex);
    network_->open = true;
    network_->notes_max = 1;
  }
  const auto last = StartBarrier();
  EXPECT_TRUE(last->Wait().ok()) << last->status();
  // The next collective needs the peer, and fails instead of waiting.
  EXPECT_EQ(
      StartBarrier()->Wait(),
      Labelled({"barrier #2"}, "g", UnavailableError("rank 1 left the group")));
}

TEST_F(EngineTest, CallerWhoWaitsRunsTheCollectiveHimself) {
  network_->Open();
  EXPECT_TRUE(RunBarrier().ok());
  MutexLock lock(network_->mutex);
  EXPECT_EQ(network_->received_on.back(), std::this_thread::get_id());
}

TEST_F(EngineTest, CallersWhoWaitRunInTheOrderOfTheirPlaces) {
  const auto before = StartBarrier();
  AwaitReceive();
  const Collective barriers[] = {NextBarrier(), NextBarrier()};
  const Ticket tickets[] = {engine_->Enter(barriers[0]),
                            engine_->Enter(barriers[1])};
  const auto after = StartBarrier();
  const auto run = [&](int i) {
    EXPECT_TRUE(engine_->Run(barriers[i], nullptr, tickets[i]).status.ok());
    EXPECT_TRUE(before->IsCompleted());
  };
  std::thread second(run, 1);
  std::thread first(run, 0);
  const std::vector<std::thread::id> callers = {first.get_id(),
                                                second.get_id()};
  network_->Open();
  EXPECT_TRUE(after->Wait().ok());
  first.join();
  second.join();
  // Each ran on its caller's thread; the executor ran the other two.
  std::vector<std::thread::id> on;
  {
    MutexLock lock(network_->mutex);
    on = network_->received_on;
  }
  ASSERT_EQ(on.size(), 4u);
  EXPECT_EQ(std::vector(on.begin() + 1, on.end() - 1), callers);
  EXPECT_EQ(on.front(), on.back());
}

// The second has its place, but the group fails before its turn.
TEST_F(EngineTest, CallerWhoWaitsForHisTurnGetsTheGroupsFailure) {
  const auto before = StartBarrier();
  AwaitReceive();
  const Collective barrier = NextBarrier();
  const Ticket ticket = engine_->Enter(barrier);
  engine_->Abort(DataLossError("lost"));
  EXPECT_EQ(engine_->Run(barrier, nullptr, ticket).status,
            DataLossError("lost"));
  EXPECT_EQ(before->Wait(), DataLossError("lost"));
  EXPECT_EQ(RunBarrier(), DataLossError("lost"));
}

TEST_F(EngineTest, CallerWhoWaitsLeavesWhatOthersStartedToTheExecutor) {
  std::thread caller([this] { EXPECT_TRUE(RunBarrier().ok()); });
  AwaitReceive();
  const auto other = StartBarrier();
  network_->Open();
  caller.join();
  EXPECT_TRUE(other->Wait().ok());
  MutexLock lock(network_->mutex);
  EXPECT_NE(network_->received_on.back(), network_->received_on.front());
}

TEST_F(EngineTest, CallerWhoWaitsHasHisErrorWhenTheConnectionsAreClosed) {
  const Status cause = AbortedError("on purpose");
  std::thread caller([&] {
    EXPECT_EQ(RunBarrier(), cause);
    MutexLock lock(network_->mutex);
    EXPECT_EQ(network_->goodbyes, std::vector<Status>{cause});
  });
  AwaitReceive();
  engine_->Abort(cause);
  caller.join();
  EXPECT_EQ(RunBarrier(), cause);
}

TEST_F(EngineTest, CollectiveThatTimesOutInTheQueueNamesWhatItIsBehind) {
  const auto running = StartBarrier();
  AwaitReceive();
  const auto queued = StartBarrier(Clock::now() + milliseconds(50));
  const Status status = queued->Wait();
  EXPECT_EQ(status, running->Wait());
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(status.message()),
            "barrier #2 on group \"g\": timed out after 50ms behind barrier #1 "
            "waiting for rank 1");
  EXPECT_EQ(CulpritRank(status), 1);
}

TEST_F(EngineTest, CollectiveThatWaitsForNobodyAtItsDeadlineNamesTheNextOne) {
  {
    MutexLock lock(network_->mutex);
    network_->hold_notes = true;
  }
  const Instant deadline = Clock::now() + milliseconds(50);
  const auto work = StartBarrier(deadline);
  while (Clock::now() < deadline) AwaitLook();
  EXPECT_FALSE(network_->AbortsSoon());
  {
    MutexLock lock(network_->mutex);
    network_->hold_notes = false;
    network_->changed.NotifyAll();
  }
  const Status status = work->Wait();
  EXPECT_EQ(std::string(status.message()),
            "barrier #1 on group \"g\": timed out after 50ms waiting for rank "
            "1");
  EXPECT_EQ(CulpritRank(status), 1);
}

TEST_F(EngineTest, CollectiveThatNeverWaitsTimesOutAllTheSame) {
  {
    MutexLock lock(network_->mutex);
    network_->hold_notes = true;
  }
  const auto work = StartBarrier(Clock::now());
  while (!network_->AbortsSoon()) {
  }
  {
    MutexLock lock(network_->mutex);
    network_->hold_notes = false;
    network_->changed.NotifyAll();
  }
  EXPECT_EQ(work->Wait(),
            Labelled({"barrier #1"}, "g",
                     DeadlineExceededError("timed out after 50ms")));
}

TEST_F(EngineTest, StopWaitsForWhoeverRunsACollective) {
  {
    MutexLock lock(network_->mutex);
    network_->hold_close = true;
  }
  std::thread caller([this] {
    EXPECT_EQ(RunBarrier(), CancelledError("group \"g\" was destroyed"));
  });
  AwaitReceive();
  const auto stopped = std::async(std::launch::async, [&] { engine_->Stop(); });
  {
    MutexLock lock(network_->mutex);
    while (network_->goodbyes.empty()) network_->changed.Wait(network_->mutex);
  }
  EXPECT_EQ(stopped.wait_for(milliseconds(20)), std::future_status::timeout);
  {
    MutexLock lock(network_->mutex);
    network_->hold_close = false;
    network_->changed.NotifyAll();
  }
  stopped.wait();
  caller.join();
}

// The state that the test shares with a FakeShortcut.
struct Path {
  Mutex mutex;
  CondVar changed;
  bool throws MUSTER_GUARDED_BY(mutex) = false;
  bool runs MUSTER_GUARDED_BY(mutex) = false;
  bool woken MUSTER_GUARDED_BY(mutex) = false;
  // The result of the last Prepare, and the argument of the last Run.
  const Backend::Prepared* made MUSTER_GUARDED_BY(mutex) = nullptr;
  const Backend::Prepared* given MUSTER_GUARDED_BY(mutex) = nullptr;
  // The arguments of the calls of Leave.
  std::vector<bool> has_failed MUSTER_GUARDED_BY(mutex);
};

// Runs until it is woken, or throws.
class FakeShortcut : public Shortcut {
 public:
  explicit FakeShortcut(std::shared_ptr<Path> path) : path_(std::move(path)) {}

  bool Takes(const Collective& collective) const override {
    return collective.kind != CollectiveKind::kAllReduce;
  }
  std::unique_ptr<Backend::Prepared> Prepare(const Collective&) override {
    auto prepared = std::make_unique<Backend::Prepared>();
    MutexLock lock(path_->mutex);
    path_->made = prepared.get();
    return prepared;
  }
  Status Run(const Collective&, Backend::Prepared* prepared) override {
    MutexLock lock(path_->mutex);
    path_->given = prepared;
    if (path_->throws) throw std::runtime_error("no thread left");
    path_->runs = true;
    path_->changed.NotifyAll();
    while (!path_->woken) path_->changed.Wait(path_->mutex);
    return CancelledError("woken");
  }
  void Wake() override {
    MutexLock lock(path_->mutex);
    path_->woken = true;
    path_->changed.NotifyAll();
  }
  void Leave(bool has_failed) override {
    MutexLock lock(path_->mutex);
    path_->has_failed.push_back(has_failed);
    path_->changed.NotifyAll();
  }

 private:
  const std::shared_ptr<Path> path_;
};

class ShortcutTest : public EngineTest {
 protected:
  ShortcutTest() {
    engine_->SetShortcut(std::make_unique<FakeShortcut>(path_));
  }

  const std::shared_ptr<Path> path_ = std::make_shared<Path>();
};

TEST_F(ShortcutTest, ItRunsWhatItHasPrepared) {
  {
    MutexLock lock(path_->mutex);
    path_->woken = true;
  }
  const Collective barrier = NextBarrier();
  const auto prepared = engine_->Prepare(barrier);
  ASSERT_NE(prepared, nullptr);
  (void)engine_->Run(barrier, prepared.get(), engine_->Enter(barrier));
  {
    MutexLock lock(path_->mutex);
    EXPECT_EQ(path_->made, prepared.get());
    EXPECT_EQ(path_->given, prepared.get());
  }
  // The connections run this one, and prepare nothing.
  EXPECT_EQ(engine_->Prepare({.kind = CollectiveKind::kAllReduce}), nullptr);
}

TEST_F(ShortcutTest, WhatItThrowsIsTheGroupsFailure) {
  {
    MutexLock lock(path_->mutex);
    path_->throws = true;
  }
  const Status thrown =
      Labelled({"barrier #1"}, "g", InternalError("threw: no thread left"));
  EXPECT_EQ(RunBarrier(), thrown);
  // The same on the executor's thread.
  EXPECT_EQ(StartBarrier()->Wait(), thrown);
  MutexLock lock(network_->mutex);
  EXPECT_EQ(network_->goodbyes, std::vector<Status>{thrown});
}

TEST_F(ShortcutTest, WhatItThrowsOnTheExecutorIsTheGroupsFailure) {
  {
    MutexLock lock(path_->mutex);
    path_->throws = true;
  }
  EXPECT_EQ(
      StartBarrier()->Wait(),
      Labelled({"barrier #1"}, "g", InternalError("threw: no thread left")));
}

// Other ranks may still read memory that belongs to its owner again.
TEST_F(ShortcutTest, WhoDestroysHisGroupInACollectiveHasFailed) {
  const auto work = StartBarrier();
  {
    MutexLock lock(path_->mutex);
    while (!path_->runs) path_->changed.Wait(path_->mutex);
  }
  engine_->Abort(CancelledError("group \"g\" was destroyed"));
  EXPECT_TRUE(IsCancelled(work->Wait()));
  MutexLock lock(path_->mutex);
  EXPECT_EQ(path_->has_failed, std::vector<bool>{true});
}

TEST_F(ShortcutTest, WhoDestroysHisGroupBetweenCollectivesLeavesInPeace) {
  engine_->Abort(CancelledError("group \"g\" was destroyed"));
  MutexLock lock(path_->mutex);
  while (path_->has_failed.empty()) path_->changed.Wait(path_->mutex);
  EXPECT_EQ(path_->has_failed, std::vector<bool>{false});
}

}  // namespace
}  // namespace muster::dataplane::cpu
