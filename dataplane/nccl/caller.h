#ifndef MUSTER_DATAPLANE_NCCL_CALLER_H_
#define MUSTER_DATAPLANE_NCCL_CALLER_H_

#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "dataplane/nccl/platform.h"
#include "muster/base/status.h"

namespace muster::dataplane::nccl {

// Caller makes the calls of a blocking communicator, one after the other, on a
// thread of its own: such a call may wait for other ranks, possibly for ever,
// and no other thread may use or abort the communicator meanwhile. Thread-safe.
class Caller {
 public:
  // A call must own what it uses, since it may outlive its maker.
  using Call = std::function<Status()>;

  // For communicators of `device`.
  Caller(const Platform& platform, int device);
  // Does not wait: a call that has not returned goes on alone.
  ~Caller();

  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  // Starts `call`. The last one must have returned.
  void Begin(Call call);

  // The result of the last call; empty while it has not returned.
  std::optional<Status> End() const;

  // Waits, without a limit, until the last call has returned.
  void AwaitEnd() const;

 private:
  struct Job;

  const std::shared_ptr<Job> job_;
  std::thread thread_;
};

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_CALLER_H_
