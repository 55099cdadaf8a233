#ifndef MUSTER_DATAPLANE_BACKENDS_SHM_SINGLE_COPY_H_
#define MUSTER_DATAPLANE_BACKENDS_SHM_SINGLE_COPY_H_

#include "absl/status/statusor.h"
#include "dataplane/backends/shm/rounds.h"
#include "dataplane/collective.h"

namespace muster::dataplane::shm_internal {

// Runs `collective` from tensor to tensor: the ranks show each other where they
// have what they give, and each reads what it wants from the others' memory
// (PeerMemory), all of which it must be able to. False, on all ranks: some
// tensor is in memory that cannot be read, and nothing was done.
absl::StatusOr<bool> RunSingleCopy(Workshop& shop,
                                   const Collective& collective);

}  // namespace muster::dataplane::shm_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_SHM_SINGLE_COPY_H_
