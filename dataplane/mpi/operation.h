#ifndef MUSTER_DATAPLANE_MPI_OPERATION_H_
#define MUSTER_DATAPLANE_MPI_OPERATION_H_

#include <mpi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dataplane/rank_order.h"
#include "dataplane/reduction.h"
#include "muster/base/clock.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/tensor.h"
#include "muster/dataplane/work.h"

namespace muster::dataplane::mpi_internal {

struct Comms {
  MPI_Comm collectives = MPI_COMM_NULL;
  MPI_Comm messages = MPI_COMM_NULL;
};

// Operation is one running collective, send or receive in MPI: the copies of
// its inputs and outputs, and MPI's request. Used by one thread.
class Operation {
 public:
  // Whether it supports collectives of this kind.
  static bool Has(CollectiveKind kind) { return FindFunction(kind) != nullptr; }

  // Does not access the tensors.
  Operation(const Collective& collective, std::shared_ptr<PromisedWork> work,
            int rank, int world_size);

  // Starts to compare what the ranks expect, if MPI would not notice that they
  // differ; otherwise, moves the data.
  void Begin(const Comms& comms);

  // Whether it compares. No other collective may begin meanwhile: all ranks
  // must start MPI's collectives in the same order.
  bool is_comparing() const { return is_comparing_; }

  // Polls MPI. If the operation is over, writes the outputs, completes the work
  // and returns true.
  bool Ask();

  // Completes the work. MPI may still use the copies.
  void Fail(const Status& status) { work_->Complete(status); }

  Instant deadline() const { return collective_.deadline; }
  bool is_message() const { return IsPointToPoint(collective_.kind); }
  Status TimeoutError() const;

 private:
  // One part per rank of a buffer, counted in elements or bytes.
  struct Layout {
    std::vector<int> counts;
    std::vector<int> starts;
    int total = 0;
  };

  // Starts a collective with the data in the outgoing buffer. Returns MPI's
  // code.
  using KindFunction = int (*)(Operation& operation, MPI_Comm comm);
  // Null if MPI does not support the kind.
  static KindFunction FindFunction(CollectiveKind kind);
  // The function that brings the operands of a reduction by a function of the
  // user.
  static KindFunction FindUserFunction(CollectiveKind kind);

  // The layout of parts with these counts of elements, one after the other.
  // `units`: how many units an element has, one or its bytes.
  static Layout ComputeLayout(const std::vector<int64_t>& counts, size_t units);
  // The layout of whole tensors.
  static Layout ComputeLayout(const Collective::Tensors& tensors,
                              size_t units) {
    return ComputeLayout(PartCounts(tensors, {}, /*world_size=*/1), units);
  }

  char* out() { return outgoing_.data(); }
  char* in() { return incoming_.data(); }
  MPI_Datatype type() const;
  MPI_Op op() const;

  void Compare();
  // Errors: kInvalidArgument, on all ranks if they differ.
  Status CheckSame() const;
  // Copies the inputs and starts the MPI call.
  void Move();
  void PrepareReduction();
  void PrepareUserReduction();
  void PrepareMovement();
  // Copy tensors to the outgoing buffer, and from the incoming one. The buffers
  // hold accumulators if the collective reduces. The tensors are contiguous
  // there.
  void CopyIn(const Collective::Tensors& tensors);
  void CopyOut(const Collective::Tensors& tensors);
  Status CheckReceived(const MPI_Status& status);
  // Combines the operands and writes the result.
  Status CombineByUser();

  const Collective collective_;
  const std::shared_ptr<PromisedWork> work_;
  const int rank_;
  const int world_size_;
  // Whether it reduces by a function of the user. MPI then moves the ranks'
  // operands to `operands_`.
  const bool is_by_user_;
  // Null unless it reduces by our loops.
  const Reduction* const reduction_;
  RankOrderOperands operands_;

  std::vector<char> outgoing_;
  std::vector<char> incoming_;
  // MPI reads these until the end.
  Layout out_;
  Layout in_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  bool is_comparing_ = false;
  // The digest of what this rank expects and its complement, and the least
  // ones of all ranks.
  std::array<uint64_t, 2> digests_ = {};
  std::array<uint64_t, 2> least_ = {};
  // The tensors to fill from the incoming buffer; empty if this rank has none.
  Collective::Tensors results_;
  int code_ = MPI_SUCCESS;  // result of the call that started it
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace muster::dataplane::mpi_internal

#endif  // MUSTER_DATAPLANE_MPI_OPERATION_H_
