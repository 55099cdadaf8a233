#ifndef MUSTER_DATAPLANE_NCCL_COMM_TASK_H_
#define MUSTER_DATAPLANE_NCCL_COMM_TASK_H_

#include "dataplane/nccl/api.h"
#include "muster/base/status.h"

namespace muster::dataplane::nccl {

// An operation on a communicator that is not a collective. It runs while
// nothing else is in progress there. CommStream calls both functions, with a
// lock held, or Begin on the thread of a Caller.
class CommTask {
 public:
  virtual ~CommTask() = default;

  // Starts the operation. If NCCL is still in progress afterwards, the
  // communicator is not used until it has finished.
  virtual Result Begin(Comm comm) = 0;

  // Called at most once, when NCCL has finished (`why` is OK) or the operation
  // has failed because of `why`, then possibly without Begin.
  virtual void End(const Status& why) = 0;
};

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_COMM_TASK_H_
