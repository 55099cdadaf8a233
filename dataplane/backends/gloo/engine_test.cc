// The engine over a mesh without a network, whose receives end when the test
// says so.

#include "dataplane/backends/gloo/engine.h"

#include <chrono>
#include <cstring>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dataplane/culprit.h"
#include "gtest/gtest.h"

namespace muster::dataplane::gloo_internal {
namespace {

using std::chrono::milliseconds;

// What the test and the mesh, which belongs to the engine, have in common.
struct Network {
  Mutex mutex;
  CondVar changed;
  // Receives end.
  bool open ABSL_GUARDED_BY(mutex) = false;
  // Notes are not sent: whoever sends one waits for nobody.
  bool hold_notes ABSL_GUARDED_BY(mutex) = false;
  // How many notes may be sent before the peer has left.
  int notes_max ABSL_GUARDED_BY(mutex) = std::numeric_limits<int>::max();
  // What CheckPeers returns, and how often it was asked.
  absl::Status gone ABSL_GUARDED_BY(mutex);
  int looks ABSL_GUARDED_BY(mutex) = 0;
  // CheckPeers does not return, so that the watchdog does nothing else.
  bool hold_watchdog ABSL_GUARDED_BY(mutex) = false;
  absl::Status aborted ABSL_GUARDED_BY(mutex);
  std::vector<absl::Status> farewells ABSL_GUARDED_BY(mutex);
  std::vector<std::thread::id> received_on ABSL_GUARDED_BY(mutex);

  void Open() {
    MutexLock lock(mutex);
    open = true;
    changed.NotifyAll();
  }

  // Returns whether the engine aborts the mesh within 20 ms.
  bool AbortsSoon() {
    const Instant until = Clock::now() + milliseconds(20);
    MutexLock lock(mutex);
    while (aborted.ok() && changed.WaitUntil(mutex, until)) {
    }
    return !aborted.ok();
  }
};

class FakeMesh : public Mesh {
 public:
  explicit FakeMesh(std::shared_ptr<Network> network)
      : Mesh(/*rank=*/0, /*world_size=*/2), network_(std::move(network)) {}

  std::unique_ptr<Buffer> CreateBuffer(void*, size_t) override {
    return nullptr;
  }
  std::unique_ptr<Buffer> CreateGlooBuffer(void*, size_t) override {
    return nullptr;
  }
  std::unique_ptr<Buffer> CreateQuietBuffer(void*, size_t) override {
    return nullptr;
  }

  absl::Status OpenQuiet(int) override { return absl::OkStatus(); }
  // The peer answers with what it was sent: the same collective.
  absl::Status Write(int peer, const void* head, size_t head_bytes, const void*,
                     size_t) override {
    const auto* const bytes = static_cast<const std::byte*>(head);
    sent_.assign(bytes, bytes + head_bytes);
    MutexLock lock(network_->mutex);
    while (network_->hold_notes) network_->changed.Wait(network_->mutex);
    if (network_->notes_max-- > 0) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("rank ", peer, " left the group"));
  }
  absl::Status Read(int peer, void* data, size_t bytes) override {
    if (bytes == 0) return absl::OkStatus();
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
    return absl::OkStatus();
  }

  void Abort(const absl::Status& cause) override {
    MutexLock lock(network_->mutex);
    if (network_->aborted.ok()) network_->aborted = cause;
    network_->changed.NotifyAll();
  }

  absl::Status abort_cause() const override {
    MutexLock lock(network_->mutex);
    return network_->aborted;
  }

  absl::Status Gone(int) override { return absl::OkStatus(); }

  absl::Status CheckPeers() override {
    MutexLock lock(network_->mutex);
    ++network_->looks;
    network_->changed.NotifyAll();
    while (network_->hold_watchdog) network_->changed.Wait(network_->mutex);
    return network_->gone;
  }

  void Close(const absl::Status& farewell) override {
    MutexLock lock(network_->mutex);
    network_->farewells.push_back(farewell);
    network_->changed.NotifyAll();
  }

 private:
  const std::shared_ptr<Network> network_;
  std::vector<std::byte> sent_;
};

class EngineTest : public ::testing::Test {
 protected:
  ~EngineTest() override { engine_->Stop(); }

  std::shared_ptr<Work> StartBarrier(bool caller_waits,
                                     Instant deadline = Instant::max()) {
    Collective barrier;
    barrier.caller_waits = caller_waits;
    barrier.timeout = milliseconds(50);
    barrier.deadline = deadline;
    barrier.sequence = ++sequence_;
    return engine_->Start(barrier);
  }

  // Until a collective waits for its peer.
  void AwaitReceive() {
    MutexLock lock(network_->mutex);
    while (network_->received_on.empty()) {
      network_->changed.Wait(network_->mutex);
    }
  }

  // Until the watchdog has looked after the peers once more.
  void AwaitLook() {
    MutexLock lock(network_->mutex);
    const int before = network_->looks;
    while (network_->looks == before) network_->changed.Wait(network_->mutex);
  }

  const std::shared_ptr<Network> network_ = std::make_shared<Network>();
  const std::shared_ptr<Engine> engine_ =
      std::make_shared<Engine>("g", std::make_unique<FakeMesh>(network_));
  uint64_t sequence_ = 0;
};

TEST_F(EngineTest, WorksCompleteInTheOrderOfStartWhoeverRunsThem) {
  const auto first = StartBarrier(/*caller_waits=*/false);
  AwaitReceive();
  const auto second = StartBarrier(/*caller_waits=*/true);
  Mutex mutex;
  CondVar changed;
  bool completing = false;
  bool second_done = false;
  bool overtaken = false;
  // Whoever completes the first takes his time over it.
  first->OnCompletion([&](const absl::Status&) {
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
  // Gloo's thread may touch the tensor until then.
  const absl::Status cause = absl::AbortedError("on purpose");
  std::vector<std::shared_ptr<Work>> works;
  for (const bool caller_waits : {false, true}) {
    works.push_back(StartBarrier(caller_waits));
    works.back()->OnCompletion([&](const absl::Status& status) {
      EXPECT_EQ(status, cause);
      MutexLock lock(network_->mutex);
      EXPECT_EQ(network_->farewells, std::vector<absl::Status>{cause});
    });
  }
  AwaitReceive();
  engine_->Abort(cause);
  for (const auto& work : works) EXPECT_EQ(work->Wait(), cause);
  EXPECT_EQ(StartBarrier(/*caller_waits=*/false)->Wait(), cause);
}

TEST_F(EngineTest, GroupThatFailsWhileIdleTakesLeaveAtOnce) {
  const absl::Status cause = absl::AbortedError("on purpose");
  engine_->Abort(cause);
  engine_->Abort(absl::InternalError("later"));
  MutexLock lock(network_->mutex);
  while (network_->farewells.empty()) network_->changed.Wait(network_->mutex);
  EXPECT_EQ(network_->farewells, std::vector<absl::Status>{cause});
}

TEST_F(EngineTest, CollectiveHasItsGraceAfterAPeerIsGone) {
  {
    MutexLock lock(network_->mutex);
    network_->gone = absl::UnavailableError("rank 1 is gone");
  }
  for (int round = 0; round < 6; ++round) {
    // Each collective has its own: together they take longer than one grace.
    const auto work = StartBarrier(/*caller_waits=*/false);
    AwaitLook();
    ASSERT_FALSE(network_->AbortsSoon()) << round;
    network_->Open();
    ASSERT_TRUE(work->Wait().ok()) << round << " " << work->status();
    MutexLock lock(network_->mutex);
    network_->open = false;
  }
  const auto work = StartBarrier(/*caller_waits=*/false);
  EXPECT_EQ(work->Wait(), absl::UnavailableError(
                              "barrier #7 on group \"g\": rank 1 is gone"));
}

TEST_F(EngineTest, AVerdictNeedsNoGraceAndNoLabel) {
  absl::Status verdict = absl::AbortedError("aborted by rank 1: enough");
  SetVerdict(verdict, "");
  const auto work = StartBarrier(/*caller_waits=*/false);
  int looks = 0;
  {
    MutexLock lock(network_->mutex);
    network_->gone = verdict;
    looks = network_->looks;
  }
  EXPECT_EQ(work->Wait(), verdict);
  MutexLock lock(network_->mutex);
  // One may have been under way.
  EXPECT_LE(network_->looks, looks + 2);
}

TEST_F(EngineTest, PeerMayLeaveOnceItHasSentItsNote) {
  {
    MutexLock lock(network_->mutex);
    network_->open = true;
    network_->notes_max = 1;
  }
  const auto last = StartBarrier(/*caller_waits=*/false);
  EXPECT_TRUE(last->Wait().ok()) << last->status();
  // The next one needs it, and does not wait for who cannot answer.
  EXPECT_EQ(StartBarrier(/*caller_waits=*/false)->Wait(),
            absl::UnavailableError(
                "barrier #2 on group \"g\": rank 1 left the group"));
}

TEST_F(EngineTest, CallerWhoWaitsRunsTheCollectiveHimself) {
  network_->Open();
  // Not each time: after 0.1 s between Start and Wait the executor has it.
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(StartBarrier(/*caller_waits=*/true)->Wait().ok());
  }
  int own = 0;
  MutexLock lock(network_->mutex);
  for (const auto& id : network_->received_on) {
    own += id == std::this_thread::get_id();
  }
  EXPECT_GT(own, 0);
}

TEST_F(EngineTest, CollectiveOfACallerWhoDoesNotWaitRunsAllTheSame) {
  network_->Open();
  for (int i = 0; i < 5; ++i) {
    // After it the executor sleeps, and Start does not wake it.
    EXPECT_TRUE(StartBarrier(/*caller_waits=*/false)->Wait().ok());
    std::promise<absl::Status> completed;
    StartBarrier(/*caller_waits=*/true)
        ->OnCompletion(
            [&](const absl::Status& status) { completed.set_value(status); });
    EXPECT_TRUE(completed.get_future().get().ok());
  }
}

TEST_F(EngineTest, WaiterLeavesWhatOthersStartedToTheExecutorAtOnce) {
  // Until a waiter runs its own: the executor may have been awake.
  std::thread waiter;
  for (;;) {
    const auto own = StartBarrier(/*caller_waits=*/true);
    waiter = std::thread([own] { EXPECT_TRUE(own->Wait().ok()); });
    AwaitReceive();
    {
      MutexLock lock(network_->mutex);
      if (network_->received_on.back() == waiter.get_id()) break;
    }
    network_->Open();
    waiter.join();
    MutexLock lock(network_->mutex);
    network_->open = false;
    network_->received_on.clear();
  }
  // The watchdog would wake the executor, too, but later.
  {
    MutexLock lock(network_->mutex);
    network_->hold_watchdog = true;
  }
  AwaitLook();
  const auto other = StartBarrier(/*caller_waits=*/false);
  network_->Open();
  waiter.join();
  const absl::Status status =
      other->Wait(Clock::now() + std::chrono::seconds(10));
  EXPECT_TRUE(status.ok()) << status;
  MutexLock lock(network_->mutex);
  network_->hold_watchdog = false;
  network_->changed.NotifyAll();
}

TEST_F(EngineTest, WaitThatMayEndFirstDoesNotRunTheCollective) {
  const auto work = StartBarrier(/*caller_waits=*/true);
  const absl::Status status = work->Wait(Clock::now() + milliseconds(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  network_->Open();
  EXPECT_TRUE(work->Wait().ok());
}

TEST_F(EngineTest, CollectiveThatTimesOutInTheQueueNamesWhatItIsBehind) {
  const auto running = StartBarrier(/*caller_waits=*/false);
  AwaitReceive();
  const auto queued =
      StartBarrier(/*caller_waits=*/false, Clock::now() + milliseconds(50));
  const absl::Status status = queued->Wait();
  EXPECT_EQ(status, running->Wait());
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
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
  const auto work = StartBarrier(/*caller_waits=*/false, deadline);
  while (Clock::now() < deadline) AwaitLook();
  EXPECT_FALSE(network_->AbortsSoon());
  {
    MutexLock lock(network_->mutex);
    network_->hold_notes = false;
    network_->changed.NotifyAll();
  }
  const absl::Status status = work->Wait();
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
  const auto work = StartBarrier(/*caller_waits=*/false, Clock::now());
  while (!network_->AbortsSoon()) {
  }
  {
    MutexLock lock(network_->mutex);
    network_->hold_notes = false;
    network_->changed.NotifyAll();
  }
  EXPECT_EQ(work->Wait(), absl::DeadlineExceededError(
                              "barrier #1 on group \"g\": timed out after "
                              "50ms"));
}

TEST(EngineLifeTest, StopCompletesWhatNobodyRuns) {
  const auto network = std::make_shared<Network>();
  const auto engine =
      std::make_shared<Engine>("g", std::make_unique<FakeMesh>(network));
  Collective barrier;
  barrier.caller_waits = true;
  const auto work = engine->Start(barrier);
  engine->Stop();
  EXPECT_EQ(work->status(), absl::CancelledError("group \"g\" was destroyed"));
  MutexLock lock(network->mutex);
  EXPECT_EQ(network->farewells, std::vector<absl::Status>{work->status()});
}

TEST(EngineLifeTest, StopWaitsForWhoeverRunsACollective) {
  const auto network = std::make_shared<Network>();
  const auto engine =
      std::make_shared<Engine>("g", std::make_unique<FakeMesh>(network));
  Collective barrier;
  barrier.caller_waits = true;
  const auto work = engine->Start(barrier);
  std::promise<void> completing;
  std::promise<void> go_on;
  work->OnCompletion([&](const absl::Status&) {
    completing.set_value();
    go_on.get_future().wait();
  });
  std::thread waiter([work] { EXPECT_FALSE(work->Wait().ok()); });
  const auto stopped = std::async(std::launch::async, [&] { engine->Stop(); });
  completing.get_future().wait();
  EXPECT_EQ(stopped.wait_for(milliseconds(20)), std::future_status::timeout);
  go_on.set_value();
  stopped.wait();
  waiter.join();
}

}  // namespace
}  // namespace muster::dataplane::gloo_internal
