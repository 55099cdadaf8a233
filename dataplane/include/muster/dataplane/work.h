#ifndef MUSTER_DATAPLANE_WORK_H_
#define MUSTER_DATAPLANE_WORK_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/export.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace MUSTER_EXPORT muster {
namespace dataplane {

// The handle of one started collective. It completes exactly once, with OK or
// with an error; every later query returns the same result. Thread-safe.
// Dropping the handle does not cancel the collective.
class [[nodiscard]] Work {
 public:
  using Callback = std::function<void(const Status&)>;

  virtual ~Work() = default;

  // Waits for completion and returns the collective's status. If `deadline`
  // passes first, it returns kDeadlineExceeded and the collective continues.
  [[nodiscard]] virtual Status Wait(Instant deadline) = 0;

  // Waits until the collective completes or its own deadline ends it.
  [[nodiscard]] Status Wait() { return Wait(Instant::max()); }

  // Orders what this thread does next with the tensors after the collective. On
  // CPU tensors this is Wait(). On CUDA tensors it orders the thread's current
  // stream (cuda/stream.h): that stream waits for the collective, unless the
  // collective runs in it, and the host waits only until the collective has
  // been enqueued. Returns an error that is known by then; status() reports
  // later ones.
  [[nodiscard]] virtual Status Synchronize() { return Wait(); }

  virtual bool IsCompleted() const = 0;

  // The status once completed; OK before.
  virtual Status status() const = 0;

  // Calls `callback` with the status when the collective completes, before any
  // Wait returns, or at once if it is already complete. The callback runs on
  // the thread that completes the work, which may be a thread that waits for
  // another work. It must not block, throw, or wait for this work.
  virtual void OnCompletion(Callback callback) = 0;

  // Collective::Describe() of the started collective.
  virtual const std::string& description() const = 0;

  // For a receive that has completed without an error, also in its callbacks:
  // the rank that sent. Otherwise -1.
  virtual int source_rank() const = 0;
};

// A Work that its maker completes by calling Complete.
class [[nodiscard]] PromisedWork : public Work {
 public:
  explicit PromisedWork(std::string description);

  // The first call completes the work and returns true; later calls do nothing
  // and return false.
  bool Complete(const Status& status);

  using Work::Wait;
  [[nodiscard]] Status Wait(Instant deadline) override;
  bool IsCompleted() const override;
  Status status() const override;
  void OnCompletion(Callback callback) override;
  const std::string& description() const override { return description_; }
  int source_rank() const override;

  // Call it before Complete.
  void SetSourceRank(int rank) { source_rank_.store(rank); }

 protected:
  // For a subclass that overrides description().
  PromisedWork() = default;

 private:
  enum class State { kRunning, kCompleting, kCompleted };

  const std::string description_;

  std::atomic<int> source_rank_{-1};

  // True once state_ is kCompleted; read without the lock by IsCompleted and by
  // a Wait that need not block.
  std::atomic<bool> completed_{false};

  mutable Mutex mutex_;
  // Made by the first waiter: most works are never waited for in this way, and
  // making it costs a tenth of the time in which a small collective is enqueued
  // on a device.
  std::unique_ptr<CondVar> condition_ MUSTER_GUARDED_BY(mutex_);
  State state_ MUSTER_GUARDED_BY(mutex_) = State::kRunning;
  Status status_ MUSTER_GUARDED_BY(mutex_);
  std::vector<Callback> callbacks_ MUSTER_GUARDED_BY(mutex_);
};

// A PromisedWork that stands for the Work of another backend, `inner`, which is
// started later or never.
class [[nodiscard]] ProxyWork : public PromisedWork {
 public:
  using PromisedWork::PromisedWork;

  // Records that `inner` was started. The caller makes sure that this work
  // completes when `inner` does.
  void Started(std::shared_ptr<Work> inner);

  // As PromisedWork::Complete; also drops `inner`.
  bool Complete(const Status& status);

  // Calls Synchronize of `inner`.
  [[nodiscard]] Status Synchronize() override;

 private:
  Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<Work> inner_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace dataplane
}  // namespace muster

#endif  // MUSTER_DATAPLANE_WORK_H_
