#include "dataplane/mpi/operation.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "dataplane/failed_call.h"
#include "dataplane/mpi/mpi_reduction.h"

namespace muster::dataplane::mpi_internal {

Operation::Operation(const Collective& collective,
                     std::shared_ptr<PromisedWork> work, int rank,
                     int world_size)
    : collective_(collective),
      work_(std::move(work)),
      rank_(rank),
      world_size_(world_size),
      reduction_(
          IsReduction(collective.kind)
              ? &Reduction::Of(collective.data_type(), collective.reduce_op)
              : nullptr) {}

Operation::Layout Operation::LayoutOf(const Collective::Tensors& tensors,
                                      bool in_bytes) {
  Layout layout;
  for (const Tensor& tensor : tensors) {
    layout.starts.push_back(layout.total);
    layout.counts.push_back(in_bytes
                                ? static_cast<int>(tensor.bytes())
                                : static_cast<int>(tensor.element_count()));
    layout.total += layout.counts.back();
  }
  return layout;
}

Operation::Layout Operation::Equal(size_t bytes) const {
  Layout layout;
  for (int rank = 0; rank < world_size_; ++rank) {
    layout.starts.push_back(layout.total);
    layout.counts.push_back(static_cast<int>(bytes) / world_size_);
    layout.total += layout.counts.back();
  }
  return layout;
}

Operation::Layout Operation::Split(const Tensor& tensor,
                                   const std::vector<int64_t>& splits) const {
  if (splits.empty()) return Equal(tensor.bytes());
  int64_t rows = 0;
  for (const int64_t split : splits) rows += split;
  const int64_t row_bytes =
      rows == 0 ? 0 : static_cast<int64_t>(tensor.bytes()) / rows;
  Layout layout;
  for (const int64_t split : splits) {
    layout.starts.push_back(layout.total);
    layout.counts.push_back(static_cast<int>(split * row_bytes));
    layout.total += layout.counts.back();
  }
  return layout;
}

void Operation::CopyIn(const Collective::Tensors& tensors) {
  const size_t wide =
      reduction_ != nullptr ? reduction_->accumulator_bytes() : 0;
  for (const Tensor& tensor : tensors) {
    const size_t count = static_cast<size_t>(tensor.element_count());
    const size_t begin = outgoing_.size();
    outgoing_.resize(begin + (wide > 0 ? count * wide : tensor.bytes()));
    char* const place = outgoing_.data() + begin;
    if (wide > 0) {
      reduction_->Load(place, tensor.data(), count, collective_.factor);
    } else if (tensor.bytes() > 0) {
      memcpy(place, tensor.data(), tensor.bytes());
    }
  }
}

void Operation::CopyOut(const Collective::Tensors& tensors) {
  char* place = incoming_.data();
  for (const Tensor& tensor : tensors) {
    const size_t count = static_cast<size_t>(tensor.element_count());
    if (reduction_ != nullptr) {
      reduction_->Finish(place, count, world_size_);
      reduction_->Store(tensor.data(), place, count);
      place += count * reduction_->accumulator_bytes();
    } else if (tensor.bytes() > 0) {
      memcpy(tensor.data(), place, tensor.bytes());
      place += tensor.bytes();
    }
  }
}

void Operation::Begin(const Comms& comms) {
  if (IsPointToPoint(collective_.kind)) {
    code_ = BeginMessage(comms.messages);
  } else if (reduction_ != nullptr) {
    code_ = BeginReduction(comms.collectives);
  } else {
    code_ = BeginMovement(comms.collectives);
  }
}

int Operation::BeginReduction(MPI_Comm comm) {
  const MPI_Datatype type =
      AccumulatorType(collective_.data_type(), collective_.reduce_op);
  const MPI_Op op = OperationOf(collective_.reduce_op);
  const bool in_place = collective_.kind == CollectiveKind::kAllReduce ||
                        collective_.kind == CollectiveKind::kReduce;
  const Collective::Tensors& from =
      in_place ? collective_.tensors : collective_.inputs;
  CopyIn(from);
  results_ = in_place ? collective_.tensors : collective_.outputs;
  if (collective_.kind == CollectiveKind::kReduce &&
      rank_ != collective_.root) {
    results_.clear();
  }
  incoming_.resize(
      static_cast<size_t>(LayoutOf(results_, /*in_bytes=*/false).total) *
      reduction_->accumulator_bytes());
  out_ = LayoutOf(from, /*in_bytes=*/false);
  switch (collective_.kind) {
    case CollectiveKind::kAllReduce:
      return MPI_Iallreduce(outgoing_.data(), incoming_.data(), out_.total,
                            type, op, comm, &request_);
    case CollectiveKind::kReduce:
      return MPI_Ireduce(outgoing_.data(), incoming_.data(), out_.total, type,
                         op, collective_.root, comm, &request_);
    case CollectiveKind::kReduceScatter:
      return MPI_Ireduce_scatter(outgoing_.data(), incoming_.data(),
                                 out_.counts.data(), type, op, comm, &request_);
    default:  // kReduceScatterTensor
      return MPI_Ireduce_scatter_block(outgoing_.data(), incoming_.data(),
                                       out_.total / world_size_, type, op, comm,
                                       &request_);
  }
}

int Operation::BeginMovement(MPI_Comm comm) {
  CopyIn(collective_.inputs);
  results_ = collective_.outputs;
  in_ = LayoutOf(collective_.outputs, /*in_bytes=*/true);
  out_ = LayoutOf(collective_.inputs, /*in_bytes=*/true);
  incoming_.resize(static_cast<size_t>(in_.total));
  switch (collective_.kind) {
    case CollectiveKind::kBarrier:
      return MPI_Ibarrier(comm, &request_);
    case CollectiveKind::kBroadcast:
      results_ = collective_.tensors;
      if (rank_ == collective_.root) CopyIn(collective_.tensors);
      incoming_ = std::move(outgoing_);
      incoming_.resize(collective_.tensors[0].bytes());
      return MPI_Ibcast(incoming_.data(), static_cast<int>(incoming_.size()),
                        MPI_BYTE, collective_.root, comm, &request_);
    case CollectiveKind::kAllGather:
      return MPI_Iallgatherv(outgoing_.data(), out_.total, MPI_BYTE,
                             incoming_.data(), in_.counts.data(),
                             in_.starts.data(), MPI_BYTE, comm, &request_);
    case CollectiveKind::kAllGatherIntoTensor:
      return MPI_Iallgather(outgoing_.data(), out_.total, MPI_BYTE,
                            incoming_.data(), out_.total, MPI_BYTE, comm,
                            &request_);
    case CollectiveKind::kGather:
      return MPI_Igather(outgoing_.data(), out_.total, MPI_BYTE,
                         incoming_.data(), out_.total, MPI_BYTE,
                         collective_.root, comm, &request_);
    case CollectiveKind::kScatter:
      return MPI_Iscatter(outgoing_.data(), in_.total, MPI_BYTE,
                          incoming_.data(), in_.total, MPI_BYTE,
                          collective_.root, comm, &request_);
    case CollectiveKind::kAllToAllSingle:
      out_ = Split(collective_.inputs[0], collective_.input_splits);
      in_ = Split(collective_.outputs[0], collective_.output_splits);
      break;
    default:  // kAllToAll
      break;
  }
  return MPI_Ialltoallv(outgoing_.data(), out_.counts.data(),
                        out_.starts.data(), MPI_BYTE, incoming_.data(),
                        in_.counts.data(), in_.starts.data(), MPI_BYTE, comm,
                        &request_);
}

int Operation::BeginMessage(MPI_Comm comm) {
  if (collective_.kind == CollectiveKind::kSend) {
    CopyIn(collective_.inputs);
    return MPI_Isend(outgoing_.data(), static_cast<int>(outgoing_.size()),
                     MPI_BYTE, collective_.peer, collective_.tag, comm,
                     &request_);
  }
  results_ = collective_.outputs;
  incoming_.resize(collective_.outputs[0].bytes());
  const int from =
      collective_.peer == kAnyPeer ? MPI_ANY_SOURCE : collective_.peer;
  return MPI_Irecv(incoming_.data(), static_cast<int>(incoming_.size()),
                   MPI_BYTE, from, collective_.tag, comm, &request_);
}

bool Operation::Ask() {
  MPI_Status received;
  memset(&received, 0, sizeof(received));
  if (code_ == MPI_SUCCESS) {
    int done = 0;
    code_ = MPI_Test(&request_, &done, &received);
    if (code_ == MPI_SUCCESS && done == 0) return false;
  }
  Status status;
  if (code_ != MPI_SUCCESS) {
    status = ErrorOf(code_, collective_.Label());
  } else if (collective_.kind == CollectiveKind::kRecv) {
    status = CheckReceived(received);
  }
  if (status.ok()) {
    CopyOut(results_);
  } else {
    SetFailedCall(status, FailedCall::Of(collective_));
  }
  work_->Complete(status);
  return true;
}

Status Operation::CheckReceived(const MPI_Status& status) {
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  work_->SetSourceRank(status.MPI_SOURCE);
  if (static_cast<size_t>(bytes) == incoming_.size()) return OkStatus();
  return InvalidArgumentError(absl::StrCat(
      collective_.Label(), ": rank ", status.MPI_SOURCE, " sent ", bytes,
      " bytes, rank ", rank_, " receives ", incoming_.size()));
}

Status Operation::TimeoutError() const {
  Status status = DeadlineExceededError(absl::StrCat(
      collective_.Label(), ": timed out after ",
      absl::FormatDuration(absl::FromChrono(collective_.timeout))));
  SetFailedCall(status, FailedCall::Of(collective_));
  return status;
}

}  // namespace muster::dataplane::mpi_internal
