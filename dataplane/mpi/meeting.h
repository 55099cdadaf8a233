#ifndef MUSTER_DATAPLANE_MPI_MEETING_H_
#define MUSTER_DATAPLANE_MPI_MEETING_H_

#include <mpi.h>

#include "muster/base/status.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane::mpi_internal {

// Lets the ranks of a group find each other in MPI. MPI waits for ever for a
// process that does not come, so the ranks wait for each other in the store,
// until the group's deadline, before each MPI step that all take part in.

// Waits until all ranks have come. Called before MPI is started.
// Errors: kDeadlineExceeded (names the missing ranks).
Status AwaitAll(const BackendOptions& options);

// Makes an MPI communicator of the group's ranks, in their order. Called after
// AwaitAll and MPI_Init.
// Errors: kFailedPrecondition, on all ranks: they are not processes of one
// mpirun.
StatusOr<MPI_Comm> Meet(const BackendOptions& options);

}  // namespace muster::dataplane::mpi_internal

#endif  // MUSTER_DATAPLANE_MPI_MEETING_H_
