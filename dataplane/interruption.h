#ifndef MUSTER_DATAPLANE_INTERRUPTION_H_
#define MUSTER_DATAPLANE_INTERRUPTION_H_

#include <memory>
#include <stop_token>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"

namespace muster::dataplane {

// Interruption ends, from outside, what waits in another thread, and says why:
// a std::stop_source with a reason. A copy is the same one. Thread-safe.
class Interruption {
 public:
  Interruption() : state_(std::make_shared<State>()) {}

  // Ends what waits now or later, with `why`, an error. Only the first call
  // counts. Calls what waits for token().
  void Interrupt(Status why) const {
    {
      MutexLock lock(state_->mutex);
      if (!state_->why.ok()) return;
      state_->why = std::move(why);
    }
    state_->source.request_stop();
  }

  // OK, or why.
  Status status() const {
    MutexLock lock(state_->mutex);
    return state_->why;
  }

  // For a std::stop_callback, which ends a wait; it does not block.
  std::stop_token token() const { return state_->source.get_token(); }

 private:
  struct State {
    Mutex mutex;
    Status why MUSTER_GUARDED_BY(mutex);
    std::stop_source source;
  };

  std::shared_ptr<State> state_;
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_INTERRUPTION_H_
