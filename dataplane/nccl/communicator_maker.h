// Makes the communicators of the nccl backend.

#ifndef MUSTER_DATAPLANE_NCCL_COMMUNICATOR_MAKER_H_
#define MUSTER_DATAPLANE_NCCL_COMMUNICATOR_MAKER_H_

#include <functional>
#include <memory>
#include <string>

#include "dataplane/nccl/api.h"
#include "dataplane/nccl/caller.h"
#include "dataplane/nccl/platform.h"
#include "dataplane/nccl/split.h"
#include "muster/base/clock.h"
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane::nccl {

struct MakeOptions {
  const Platform& platform;
  // The options of the group. The owner of the communicator keeps them alive.
  const std::shared_ptr<const BackendOptions>& group;
  int device = 0;
  // Set for a blocking communicator. If MakeCommunicator gives up, its call may
  // still be running; it then aborts the communicator that it gets.
  std::shared_ptr<Caller> caller = nullptr;
  // Null: the ranks find each other in the group's store.
  std::shared_ptr<NcclParentHandle> parent = nullptr;
  // The key of the unique id in the store, one small value per communicator.
  std::string key;
  // This rank, and the number of ranks, in the communicator.
  int rank = 0;
  int size = 1;
  Instant deadline = Instant::max();
  // Returns an error once the communicator is no longer needed.
  std::function<Status()> over;
};

// Makes a communicator with the other ranks and returns it, ready for use, on
// the thread's current device. Makes it from the parent's communicator if there
// is a parent and that is possible. Otherwise rank 0 makes the unique id and
// the others wait for it in the store, which is not read after that.
// Errors: kDeadlineExceeded (rank 0 or other ranks did not come), kInternal
// with NCCL's text, and the errors of `over` and the store.
StatusOr<Comm> MakeCommunicator(const MakeOptions& options);

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_COMMUNICATOR_MAKER_H_
