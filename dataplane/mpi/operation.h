#ifndef MUSTER_DATAPLANE_MPI_OPERATION_H_
#define MUSTER_DATAPLANE_MPI_OPERATION_H_

#include <mpi.h>

#include <cstddef>
#include <cstdint>
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
  // Whether it does collectives of this kind.
  static bool Has(CollectiveKind kind) { return FindFunction(kind) != nullptr; }

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

  // Begins a collective whose data are in the outgoing buffer: MPI's answer.
  using KindFunction = int (*)(Operation& operation, MPI_Comm comm);
  // Null: MPI has nothing for the kind.
  static KindFunction FindFunction(CollectiveKind kind);

  // Of parts with these counts of elements, one after the other. An element is
  // one unit, or its bytes.
  static Layout LayoutOf(const std::vector<int64_t>& counts, size_t units);
  // Of whole tensors.
  static Layout LayoutOf(const Collective::Tensors& tensors, size_t units) {
    return LayoutOf(PartCounts(tensors, {}, /*world_size=*/1), units);
  }

  char* out() { return outgoing_.data(); }
  char* in() { return incoming_.data(); }
  MPI_Datatype type() const;
  MPI_Op op() const;

  void PrepareReduction();
  void PrepareMovement();
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
