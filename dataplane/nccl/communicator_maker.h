// Makes the communicators of the nccl backend.

#ifndef MUSTER_DATAPLANE_NCCL_COMMUNICATOR_MAKER_H_
#define MUSTER_DATAPLANE_NCCL_COMMUNICATOR_MAKER_H_

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "dataplane/backend.h"
#include "dataplane/nccl/api.h"
#include "dataplane/nccl/caller.h"
#include "dataplane/nccl/platform.h"
#include "dataplane/nccl/split.h"

namespace muster::dataplane::nccl {

struct MakeOptions {
  const Platform& platform;
  // Of the group; whoever has the communicator keeps it.
  const std::shared_ptr<const BackendOptions>& group;
  int device = 0;
  // Of a communicator that blocks. If nobody waits for it any more it may be
  // busy yet, and ends what comes of that.
  std::shared_ptr<Caller> caller = nullptr;
  // Null: the ranks meet in the group's store.
  std::shared_ptr<NcclParentHandle> parent = nullptr;
  // Where its unique id is kept there: one small value for each communicator.
  std::string key;
  // Of the communicator.
  int rank = 0;
  int size = 1;
  Instant deadline = Instant::max();
  // Says why nobody needs it any more; OK while it is needed.
  std::function<Status()> over;
};

// Meets the other ranks and returns this rank's communicator, ready. Its device
// is the thread's current one. It is made from the parent's communicator, if
// there is a parent and that is possible. Otherwise rank 0 makes the unique id,
// the others wait for it in the store, and after that nothing more is read
// there.
// Errors: kDeadlineExceeded (rank 0 or other ranks did not come), kInternal
// with NCCL's own words, and the errors of `over` and the store.
StatusOr<Comm> MakeCommunicator(const MakeOptions& options);

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_COMMUNICATOR_MAKER_H_
