#ifndef MUSTER_DATAPLANE_INTERRUPTION_H_
#define MUSTER_DATAPLANE_INTERRUPTION_H_

#include <memory>
#include <stop_token>
#include <utility>

#include "muster/base/export.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace MUSTER_EXPORT muster {
namespace dataplane {

// Interruption ends the waits of another thread and carries the reason: a
// std::stop_source with a Status. Copies share their state. Thread-safe.
class Interruption {
 public:
  Interruption() : state_(std::make_shared<State>()) {}

  // Ends all current and later waits with `why`, an error. Only the first call
  // counts. Runs the callbacks that are registered with token().
  void Interrupt(Status why) const {
    {
      MutexLock lock(state_->mutex);
      if (!state_->why.ok()) return;
      state_->why = std::move(why);
    }
    state_->source.request_stop();
  }

  // OK, or the reason given to Interrupt.
  Status status() const {
    MutexLock lock(state_->mutex);
    return state_->why;
  }

  // For a std::stop_callback that ends a wait. The callback must not block.
  std::stop_token token() const { return state_->source.get_token(); }

 private:
  struct State {
    Mutex mutex;
    Status why MUSTER_GUARDED_BY(mutex);
    std::stop_source source;
  };

  std::shared_ptr<State> state_;
};

}  // namespace dataplane
}  // namespace muster

#endif  // MUSTER_DATAPLANE_INTERRUPTION_H_
