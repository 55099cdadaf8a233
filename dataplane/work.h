#ifndef MUSTER_DATAPLANE_WORK_H_
#define MUSTER_DATAPLANE_WORK_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"

namespace muster::dataplane {

// The handle of one started collective. It completes exactly once, with OK or
// with the error that every later look at it returns. Thread-safe. Dropping the
// handle does not cancel the collective.
class [[nodiscard]] Work {
 public:
  using Callback = std::function<void(const Status&)>;

  virtual ~Work() = default;

  // Waits for completion and returns the collective's status. When `deadline`
  // passes first it returns kDeadlineExceeded, and the collective goes on.
  [[nodiscard]] virtual Status Wait(Instant deadline) = 0;

  // Waits as long as the collective's own deadline lets it run.
  [[nodiscard]] Status Wait() { return Wait(Instant::max()); }

  // Orders what this thread does next with the tensors behind the collective.
  // On CPU tensors that is Wait(). On CUDA tensors it orders what the thread
  // gives to its current stream (cuda/stream.h): that stream waits, unless the
  // collective is in it, and this call only until that has been given to a
  // stream. It returns what has failed by then; status() says what fails later.
  [[nodiscard]] virtual Status Synchronize() { return Wait(); }

  virtual bool IsCompleted() const = 0;

  // The status once completed; OK before.
  virtual Status status() const = 0;

  // Calls `callback` with the status when the collective completes, before any
  // Wait returns; at once if it is complete. The callback runs on the thread
  // that completes the work, which may be one that waits for another work. It
  // must not block, throw, or wait for this work.
  virtual void OnCompletion(Callback callback) = 0;

  // Collective::Describe() of what was started.
  virtual const std::string& description() const = 0;

  // Of a receive that has completed without an error: the rank that sent, also
  // in its callbacks. Otherwise -1.
  virtual int source_rank() const = 0;
};

// A Work that somebody completes by calling Complete.
class [[nodiscard]] PromisedWork : public Work {
 public:
  explicit PromisedWork(std::string description);

  // The first call completes the work and returns true; later ones are without
  // effect and return false.
  bool Complete(const Status& status);

  using Work::Wait;
  [[nodiscard]] Status Wait(Instant deadline) override;
  bool IsCompleted() const override;
  Status status() const override;
  void OnCompletion(Callback callback) override;
  const std::string& description() const override { return description_; }
  int source_rank() const override;

  // Before Complete.
  void SetSourceRank(int rank) { source_rank_.store(rank); }

 protected:
  // Of one that describes itself when it is asked to.
  PromisedWork() = default;

 private:
  enum class State { kRunning, kCompleting, kCompleted };

  const std::string description_;

  std::atomic<int> source_rank_{-1};

  // Says kCompleted without the lock, for IsCompleted and the fast Wait.
  std::atomic<bool> completed_{false};

  mutable Mutex mutex_;
  // The first waiter's: most are not waited for so, and to make one takes a
  // tenth of the time in which a small collective is given to a device.
  std::unique_ptr<CondVar> condition_ MUSTER_GUARDED_BY(mutex_);
  State state_ MUSTER_GUARDED_BY(mutex_) = State::kRunning;
  Status status_ MUSTER_GUARDED_BY(mutex_);
  std::vector<Callback> callbacks_ MUSTER_GUARDED_BY(mutex_);
};

// A PromisedWork that stands for one of another backend, which is started later
// or not at all.
class [[nodiscard]] ProxyWork : public PromisedWork {
 public:
  using PromisedWork::PromisedWork;

  // The other one is started. Whoever calls it sees to it that this one
  // completes with it.
  void Started(std::shared_ptr<Work> inner);

  // As PromisedWork's; the other one is let go.
  bool Complete(const Status& status);

  // That of the other one.
  [[nodiscard]] Status Synchronize() override;

 private:
  Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<Work> inner_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_WORK_H_
