#ifndef MUSTER_DATAPLANE_MPI_MEETING_H_
#define MUSTER_DATAPLANE_MPI_MEETING_H_

#include <mpi.h>

#include "base/status.h"
#include "dataplane/backend.h"

namespace muster::dataplane::mpi_internal {

// Lets the ranks of a group find each other in MPI. MPI waits without end for a
// process that does not come, so the ranks meet in the store, by the group's
// deadline, before each MPI step in which all take part.

// Waits until all ranks have arrived; called before MPI is started.
// Errors: kDeadlineExceeded (names the missing ranks).
Status AwaitAll(const BackendOptions& options);

// Makes MPI's communicator of the group's ranks, in their order; called after
// AwaitAll and MPI_Init.
// Errors: kFailedPrecondition, the same on all ranks: they are not the
// processes of one mpirun.
StatusOr<MPI_Comm> Meet(const BackendOptions& options);

}  // namespace muster::dataplane::mpi_internal

#endif  // MUSTER_DATAPLANE_MPI_MEETING_H_
