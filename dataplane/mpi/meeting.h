#ifndef MUSTER_DATAPLANE_MPI_MEETING_H_
#define MUSTER_DATAPLANE_MPI_MEETING_H_

#include <mpi.h>

#include "base/status.h"
#include "dataplane/backend.h"

namespace muster::dataplane::mpi_internal {

// How the ranks of a group find each other in MPI. MPI itself waits without an
// end for a process that does not come, so each of its steps in which all take
// part comes after they have met in the store, by the group's deadline.

// Waits until all ranks have come, before MPI is started. kDeadlineExceeded,
// naming those that have not.
Status AwaitAll(const BackendOptions& options);

// MPI's communicator of the group's ranks, in their order; after AwaitAll and
// MPI_Init. kFailedPrecondition, the same on all ranks: they are not the
// processes of one mpirun.
StatusOr<MPI_Comm> Meet(const BackendOptions& options);

}  // namespace muster::dataplane::mpi_internal

#endif  // MUSTER_DATAPLANE_MPI_MEETING_H_
