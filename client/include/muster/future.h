// Futures with continuations, as Work::GetFuture returns them.

#ifndef MUSTER_FUTURE_H_
#define MUSTER_FUTURE_H_

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "muster/base/export.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::internal {
class Continuations;
}  // namespace muster::internal

namespace MUSTER_EXPORT muster {

class Work;

template <typename T>
class Future;

namespace internal {

// The part of a future that does not depend on the value's type. Thread-safe.
class FutureCore {
 public:
  explicit FutureCore(std::shared_ptr<Continuations> thread);
  virtual ~FutureCore();

  FutureCore(const FutureCore&) = delete;
  FutureCore& operator=(const FutureCore&) = delete;

  bool Done() const;
  std::exception_ptr Exception() const;
  // Waits until it is done, and throws its error, if there is one.
  void Wait() const;
  bool WaitFor(std::chrono::milliseconds timeout) const;
  // Throws DistError (kFailedPrecondition) before it is done; afterwards throws
  // as Wait.
  void CheckValue() const;

  // Runs `task` on the continuations' thread when it is done. `task` must not
  // throw.
  void OnDone(std::function<void()> task);
  // Called once, on the continuations' thread. Without an error, the value must
  // have been written.
  void Complete(std::exception_ptr error);

  const std::shared_ptr<Continuations>& thread() const { return thread_; }

 private:
  void RefuseOnOwnThread() const;

  const std::shared_ptr<Continuations> thread_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool done_ MUSTER_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ MUSTER_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> tasks_ MUSTER_GUARDED_BY(mutex_);
};

template <typename T>
class FutureState : public FutureCore {
 public:
  using FutureCore::FutureCore;
  using Stored = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

  // Written before Complete.
  std::optional<Stored> value = {};
};

// Logs the error of a continuation that has no future to report it.
void LogContinuationError(const std::exception_ptr& error);

}  // namespace internal

// Future is a value that exists once a collective is complete. The future of a
// Work has the list of the tensors that the collective has written; the future
// of Then has what the continuation returns. Copies are the same future.
// Thread-safe.
//
//   auto norm = muster::AllReduce(gradients, {.async_op = true})
//                   .GetFuture()
//                   .Then([](const auto& done) { return Norm(done.Value()); });
//   ...
//   norm.Wait();
//
// Continuations run on one thread of the group, which the first GetFuture
// starts and DestroyProcessGroup ends. They never run on the caller's thread or
// on a thread that moves data, so they may take long, start collectives and
// wait for them. The continuations of a group run one after the other: works in
// the order in which they complete (collectives: in the order of their start),
// and the continuations of one future in the order of Then, each before the
// continuations of its own result. So a continuation must not wait for another
// future of the group that is not done: that throws (kFailedPrecondition).
// After the end of the group, continuations run at once on the thread that
// calls Then.
//
// Wait may return before the continuations of the same future have run. To wait
// for a continuation, wait for the future that Then returned.
template <typename T>
class Future {
 public:
  // True if it has a value or an error. Does not block.
  bool Done() const { return state_->Done(); }

  // Waits until it is done. Throws its error: for a collective, what Work::Wait
  // throws; for a continuation, what the continuation has thrown, which may be
  // the error of the future before it.
  void Wait() const { state_->Wait(); }

  // Like Wait(), but returns false if `timeout` passes first. Throws DistError
  // (kInvalidArgument) if `timeout` is negative.
  bool WaitFor(std::chrono::milliseconds timeout) const {
    return state_->WaitFor(timeout);
  }

  // The value, once it is done. Throws its error, if there is one, and
  // DistError (kFailedPrecondition) before it is done.
  std::add_lvalue_reference_t<const T> Value() const {
    state_->CheckValue();
    if constexpr (!std::is_void_v<T>) return *state_->value;
  }

  // The error; null before it is done, and if there is none.
  std::exception_ptr Exception() const { return state_->Exception(); }

  // Runs `continuation` with this future when it is done, also if it has failed
  // (then its Value() throws). Returns a future of what the continuation
  // returns or throws. Wait for that future; otherwise an exception of the
  // continuation is lost.
  template <typename F>
  [[nodiscard]] auto Then(F continuation) const
      -> Future<std::invoke_result_t<F, const Future<T>&>> {
    using U = std::invoke_result_t<F, const Future<T>&>;
    auto next = std::make_shared<internal::FutureState<U>>(state_->thread());
    state_->OnDone(
        [self = *this, next, continuation = std::move(continuation)]() mutable {
          std::exception_ptr error;
          try {
            if constexpr (std::is_void_v<U>) {
              continuation(self);
            } else {
              next->value.emplace(continuation(self));
            }
          } catch (...) {
            error = std::current_exception();
          }
          next->Complete(std::move(error));
        });
    return Future<U>(std::move(next));
  }

  // Does the same without a result: what `callback` throws goes to the log.
  template <typename F>
  void AddDoneCallback(F callback) const {
    state_->OnDone([self = *this, callback = std::move(callback)]() mutable {
      try {
        callback(self);
      } catch (...) {
        internal::LogContinuationError(std::current_exception());
      }
    });
  }

 private:
  friend class Work;
  template <typename U>
  friend class Future;

  explicit Future(std::shared_ptr<internal::FutureState<T>> state)
      : state_(std::move(state)) {}

  std::shared_ptr<internal::FutureState<T>> state_;
};

}  // namespace muster

#endif  // MUSTER_FUTURE_H_
