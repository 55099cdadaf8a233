#ifndef MUSTER_DATAPLANE_NCCL_CALLER_H_
#define MUSTER_DATAPLANE_NCCL_CALLER_H_

#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "base/status.h"
#include "dataplane/nccl/platform.h"

namespace muster::dataplane::nccl {

// Caller makes the calls of a blocking communicator, one after the other, on a
// thread of its own: such a call may wait for other ranks, possibly for ever,
// and no other thread may use or abort the communicator meanwhile. Thread-safe.
class Caller {
 public:
  // What a call uses is the call's own: it may outlive all others.
  using Call = std::function<Status()>;

  // For communicators of `device`.
  Caller(const Platform& platform, int device);
  // Waits for nothing: a call that has not come back is left alone.
  ~Caller();

  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  // The one before has come back.
  void Begin(Call call);

  // What the last one has come back with; nothing: it has not, yet.
  std::optional<Status> End() const;

  // Waits for that, as long as it takes.
  void AwaitEnd() const;

 private:
  struct Job;

  const std::shared_ptr<Job> job_;
  std::thread thread_;
};

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_CALLER_H_
