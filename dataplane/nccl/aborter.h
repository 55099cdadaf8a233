#ifndef MUSTER_DATAPLANE_NCCL_ABORTER_H_
#define MUSTER_DATAPLANE_NCCL_ABORTER_H_

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "dataplane/nccl/api.h"
#include "dataplane/nccl/caller.h"
#include "dataplane/nccl/platform.h"

namespace muster::dataplane::nccl {

// Aborter aborts and destroys the communicators of one group on a thread of its
// own. When NCCL frees their memory, CUDA waits for everything that the device
// does, which may include a collective of another communicator that ends only
// by its timeout. Communicators to abort go into one NCCL group, which signals
// all of them before it waits for any. Used by one thread at a time.
class Aborter {
 public:
  // What is kept as long as NCCL may look at it, or use it.
  using Keeps = std::vector<std::shared_ptr<const void>>;

  explicit Aborter(const Platform& platform) : platform_(platform) {}
  // Waits for the thread, unless Await has left it alone.
  ~Aborter();

  Aborter(const Aborter&) = delete;
  Aborter& operator=(const Aborter&) = delete;

  struct Comms {
    // To abort.
    std::vector<Comm> aborted = {};
    // The same, when the call has come back that is under way there.
    std::vector<std::pair<std::shared_ptr<Caller>, Comm>> calling = {};
    // That have parted from the other ranks in peace, to destroy.
    std::vector<Comm> parted = {};
  };
  // Communicators of `device`, maybe none; null is none. Later calls do
  // nothing.
  void Begin(int device, Comms comms, Keeps keeps);

  // Nobody writes to tensors any more.
  bool IsDone() const;

  // Waits for that. False: it goes on alone, also after this object, and keeps
  // `keeps` as well. The last call.
  bool Await(Instant until, Keeps keeps);

 private:
  struct Job;

  const Platform& platform_;
  std::shared_ptr<Job> job_;
  std::thread thread_;
};

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_ABORTER_H_
