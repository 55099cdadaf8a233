#ifndef MUSTER_DATAPLANE_MPI_MPI_REDUCTION_H_
#define MUSTER_DATAPLANE_MPI_MPI_REDUCTION_H_

#include <mpi.h>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "dataplane/collective.h"
#include "dataplane/tensor.h"

namespace muster::dataplane::mpi_internal {

// An accumulator of `op` on `type` (Reduction), as one element.
MPI_Datatype AccumulatorType(DataType type, ReduceOp op);

// Combines such elements as all backends do.
MPI_Op OperationOf(ReduceOp op);

// What MPI says about `code`, which `call` has returned: kInternal.
Status ErrorOf(int code, absl::string_view call);

}  // namespace muster::dataplane::mpi_internal

#endif  // MUSTER_DATAPLANE_MPI_MPI_REDUCTION_H_
