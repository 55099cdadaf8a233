#ifndef MUSTER_DATAPLANE_NCCL_ABORTER_H_
#define MUSTER_DATAPLANE_NCCL_ABORTER_H_

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "dataplane/nccl/api.h"
#include "dataplane/nccl/caller.h"
#include "dataplane/nccl/platform.h"
#include "muster/base/clock.h"

namespace muster::dataplane::nccl {

// Aborter aborts and destroys the communicators of one group on its own thread.
// When NCCL frees their memory, CUDA waits for everything that runs on the
// device, possibly for a collective of another communicator that ends only by
// its timeout. All communicators to abort go into one NCCL group, which signals
// all of them before it waits for any. Used by one thread at a time.
class Aborter {
 public:
  // Objects to keep alive as long as NCCL may use them.
  using Keeps = std::vector<std::shared_ptr<const void>>;

  explicit Aborter(const Platform& platform) : platform_(platform) {}
  // Waits for the thread, unless Await has detached it.
  ~Aborter();

  Aborter(const Aborter&) = delete;
  Aborter& operator=(const Aborter&) = delete;

  struct Comms {
    // Communicators to abort.
    std::vector<Comm> aborted = {};
    // Communicators to abort after the call that their Caller is in has
    // returned.
    std::vector<std::pair<std::shared_ptr<Caller>, Comm>> calling = {};
    // Finalized communicators, to destroy.
    std::vector<Comm> parted = {};
  };
  // Starts the work. The communicators are on `device`; null ones are ignored.
  // Calls after the first do nothing.
  void Begin(int device, Comms comms, Keeps keeps);

  // True if all are aborted and destroyed: NCCL does not write to tensors any
  // more.
  bool IsDone() const;

  // Waits for IsDone. If it returns false, the thread goes on, also after this
  // object is destroyed, and keeps `keeps` as well. Must be the last call.
  bool Await(Instant until, Keeps keeps);

 private:
  struct Job;

  const Platform& platform_;
  std::shared_ptr<Job> job_;
  std::thread thread_;
};

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_ABORTER_H_
