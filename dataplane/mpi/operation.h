#ifndef MUSTER_DATAPLANE_MPI_OPERATION_H_
#define MUSTER_DATAPLANE_MPI_OPERATION_H_

#include <mpi.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "dataplane/collective.h"
#include "dataplane/reduction.h"
#include "dataplane/tensor.h"
#include "dataplane/work.h"

namespace muster::dataplane::mpi_internal {

struct Comms {
  MPI_Comm collectives = MPI_COMM_NULL;
  MPI_Comm messages = MPI_COMM_NULL;
};

// Operation is one running collective, send or receive in MPI: the copies of
// its inputs and outputs, and MPI's request. Used by one thread.
class Operation {
 public:
  // Touches no tensor.
  Operation(const Collective& collective, std::shared_ptr<PromisedWork> work,
            int rank, int world_size);

  // Copies the inputs and hands them to MPI.
  void Begin(const Comms& comms);

  // Whether it is over; then the outputs are written and the work is complete.
  bool Ask();

  // Completes the work. MPI may still use the copies.
  void Fail(const Status& status) { work_->Complete(status); }

  Instant deadline() const { return collective_.deadline; }
  bool is_message() const { return IsPointToPoint(collective_.kind); }
  Status TimeoutError() const;

 private:
  // Parts of a buffer, one for each rank: of elements or bytes.
  struct Layout {
    std::vector<int> counts;
    std::vector<int> starts;
    int total = 0;
  };

  static Layout LayoutOf(const Collective::Tensors& tensors, bool in_bytes);
  Layout Equal(size_t bytes) const;
  Layout Split(const Tensor& tensor, const std::vector<int64_t>& splits) const;

  int BeginReduction(MPI_Comm comm);
  int BeginMovement(MPI_Comm comm);
  int BeginMessage(MPI_Comm comm);
  // Copies tensors to the outgoing buffer, one after the other, as
  // accumulators where it reduces; and back from the incoming one.
  void CopyIn(const Collective::Tensors& tensors);
  void CopyOut(const Collective::Tensors& tensors);
  Status CheckReceived(const MPI_Status& status);

  const Collective collective_;
  const std::shared_ptr<PromisedWork> work_;
  const int rank_;
  const int world_size_;
  const Reduction* const reduction_;  // null if it does not reduce

  std::vector<char> outgoing_;
  std::vector<char> incoming_;
  // MPI reads them until the end.
  Layout out_;
  Layout in_;
  // What takes the incoming buffer; empty: nothing of it is for this rank.
  Collective::Tensors results_;
  int code_ = MPI_SUCCESS;  // of the call that began it
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace muster::dataplane::mpi_internal

#endif  // MUSTER_DATAPLANE_MPI_OPERATION_H_
