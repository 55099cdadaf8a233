#ifndef MUSTER_DATAPLANE_MPI_MPI_REDUCTION_H_
#define MUSTER_DATAPLANE_MPI_MPI_REDUCTION_H_

#include <mpi.h>

#include "absl/strings/string_view.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/tensor.h"

namespace muster::dataplane::mpi_internal {

// The MPI type for one accumulator of `op` on `type` (Reduction).
MPI_Datatype AccumulatorType(DataType type, ReduceOp op);

// The MPI operation that combines accumulators exactly as all other backends
// do.
MPI_Op GetOperation(ReduceOp op);

// kInternal: `call` has returned `code`. With MPI's text.
Status ToStatus(int code, absl::string_view call);

}  // namespace muster::dataplane::mpi_internal

#endif  // MUSTER_DATAPLANE_MPI_MPI_REDUCTION_H_
