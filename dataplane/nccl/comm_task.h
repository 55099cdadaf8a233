#ifndef MUSTER_DATAPLANE_NCCL_COMM_TASK_H_
#define MUSTER_DATAPLANE_NCCL_COMM_TASK_H_

#include "base/status.h"
#include "dataplane/nccl/api.h"

namespace muster::dataplane::nccl {

// An operation on a communicator that is not a collective. It runs while
// nothing else is in progress there. CommStream calls both functions, with a
// lock held.
class CommTask {
 public:
  virtual ~CommTask() = default;

  // NCCL may be in progress with it afterwards; then nothing else is done with
  // the communicator until it is not.
  virtual Result Begin(Comm comm) = 0;

  // NCCL is no longer in progress: it is done, or `why` it comes to nothing. At
  // most once, also without Begin.
  virtual void End(const Status& why) = 0;
};

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_COMM_TASK_H_
