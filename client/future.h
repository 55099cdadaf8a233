// Futures with continuations: what Work::GetFuture gives.

#ifndef MUSTER_CLIENT_FUTURE_H_
#define MUSTER_CLIENT_FUTURE_H_

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "base/thread_annotations.h"

namespace muster {

class Work;

template <typename T>
class Future;

namespace internal {

class Continuations;

// What a future is but for its value. Thread-safe.
class FutureCore {
 public:
  explicit FutureCore(std::shared_ptr<Continuations> thread);
  virtual ~FutureCore();

  FutureCore(const FutureCore&) = delete;
  FutureCore& operator=(const FutureCore&) = delete;

  bool Done() const;
  std::exception_ptr Exception() const;
  // Throws the error, if there is one.
  void Wait() const;
  bool WaitFor(std::chrono::milliseconds timeout) const;
  // Throws DistError (kFailedPrecondition) before it is done, then as Wait.
  void CheckValue() const;

  // Runs `task` on the thread when it is done. `task` throws nothing.
  void OnDone(std::function<void()> task);
  // Once, on the thread. The value, if there is no error, is there.
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

// Writes an error of a continuation whose result nobody has to the log.
void LogContinuationError(const std::exception_ptr& error);

}  // namespace internal

// Future is a value that comes when a collective is complete: of Work, the list
// of the tensors that it has written; of Then, what the continuation returns.
// Copies are of the same future. Thread-safe.
//
//   auto norm = muster::AllReduce(gradients, {.async_op = true})
//                   .GetFuture()
//                   .Then([](const auto& done) { return Norm(done.Value()); });
//   ...
//   norm.Wait();
//
// Continuations run on a thread of the group's own, which the first GetFuture
// starts and DestroyProcessGroup ends; never on the caller's, and never on one
// that moves data, so that they may take their time and may start collectives,
// and wait for them. Those of one group run one after the other, works in the
// order in which they complete (collectives: in that of their start),
// continuations of one future in the order of Then, each before what hangs on
// its own result. So a continuation may not wait for another future of the
// group: that throws (kFailedPrecondition). After the end of the group they run
// at once, on the thread that calls Then.
//
// A Wait may return before the continuations of what it waits for have run:
// wait for what Then has returned.
template <typename T>
class Future {
 public:
  // With a value, or an error. Does not block.
  bool Done() const { return state_->Done(); }

  // Waits for it. Throws its error: of a collective what Work::Wait throws, of
  // a continuation what that has thrown, or its future's.
  void Wait() const { state_->Wait(); }

  // As Wait(), but returns false when `timeout` passes first. Throws DistError
  // (kInvalidArgument) if that is negative.
  bool WaitFor(std::chrono::milliseconds timeout) const {
    return state_->WaitFor(timeout);
  }

  // Once it is done. Throws its error; DistError (kFailedPrecondition) before.
  std::add_lvalue_reference_t<const T> Value() const {
    state_->CheckValue();
    if constexpr (!std::is_void_v<T>) return *state_->value;
  }

  // Null before it is done, and without an error.
  std::exception_ptr Exception() const { return state_->Exception(); }

  // Runs `continuation` with this future when it is done, failed or not (its
  // Value() throws then). The result is the future of what it returns, or of
  // what it throws, which is not to be lost: wait for it.
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

  // The same for its effects alone: what it throws goes to the log.
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

#endif  // MUSTER_CLIENT_FUTURE_H_
