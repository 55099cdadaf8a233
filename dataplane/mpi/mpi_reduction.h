#ifndef MUSTER_DATAPLANE_MPI_MPI_REDUCTION_H_
#define MUSTER_DATAPLANE_MPI_MPI_REDUCTION_H_

#include <mpi.h>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "dataplane/collective.h"
#include "dataplane/tensor.h"

namespace muster::dataplane::mpi_internal {

// The MPI type for one accumulator of `op` on `type` (Reduction).
MPI_Datatype AccumulatorType(DataType type, ReduceOp op);

// The MPI operation that combines such elements exactly as all backends do.
MPI_Op OperationOf(ReduceOp op);

// The error for `code`, which `call` has returned, with MPI's text: kInternal.
Status ErrorOf(int code, absl::string_view call);

}  // namespace muster::dataplane::mpi_internal

#endif  // MUSTER_DATAPLANE_MPI_MPI_REDUCTION_H_
