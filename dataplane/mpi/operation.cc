#include "dataplane/mpi/operation.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "dataplane/culprit.h"
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
      is_by_user_(IsReduction(collective.kind) &&
                  collective.reduce_op == ReduceOp::kUser),
      reduction_(
          IsReduction(collective.kind) && !is_by_user_
              ? &Reduction::Of(collective.data_type(), collective.reduce_op)
              : nullptr) {}

Operation::Layout Operation::ComputeLayout(const std::vector<int64_t>& counts,
                                           size_t units) {
  Layout layout;
  for (const int64_t count : counts) {
    layout.starts.push_back(layout.total);
    layout.counts.push_back(
        static_cast<int>(static_cast<size_t>(count) * units));
    layout.total += layout.counts.back();
  }
  return layout;
}

// The function is one table.
// NOLINTNEXTLINE(readability-function-size)
Operation::KindFunction Operation::FindFunction(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return [](Operation& o, MPI_Comm comm) {
        return MPI_Iallreduce(o.out(), o.in(), o.out_.total, o.type(), o.op(),
                              comm, &o.request_);
      };
    case CollectiveKind::kBroadcast:
      return [](Operation& o, MPI_Comm comm) {
        return MPI_Ibcast(o.in(), static_cast<int>(o.incoming_.size()),
                          MPI_BYTE, o.collective_.root, comm, &o.request_);
      };
    case CollectiveKind::kBarrier:
      return [](Operation& o, MPI_Comm comm) {
        return MPI_Ibarrier(comm, &o.request_);
      };
    case CollectiveKind::kReduce:
      return [](Operation& o, MPI_Comm comm) {
        return MPI_Ireduce(o.out(), o.in(), o.out_.total, o.type(), o.op(),
                           o.collective_.root, comm, &o.request_);
      };
    case CollectiveKind::kAllGather:
      return [](Operation& o, MPI_Comm comm) {
        return MPI_Iallgatherv(o.out(), o.out_.total, MPI_BYTE, o.in(),
                               o.in_.counts.data(), o.in_.starts.data(),
                               MPI_BYTE, comm, &o.request_);
      };
    case CollectiveKind::kAllGatherIntoTensor:
      return [](Operation& o, MPI_Comm comm) {
        return MPI_Iallgather(o.out(), o.out_.total, MPI_BYTE, o.in(),
                              o.out_.total, MPI_BYTE, comm, &o.request_);
      };
    case CollectiveKind::kGather:
      return [](Operation& o, MPI_Comm comm) {
        return MPI_Igather(o.out(), o.out_.total, MPI_BYTE, o.in(),
                           o.out_.total, MPI_BYTE, o.collective_.root, comm,
                           &o.request_);
      };
    case CollectiveKind::kScatter:
      return [](Operation& o, MPI_Comm comm) {
        return MPI_Iscatter(o.out(), o.in_.total, MPI_BYTE, o.in(), o.in_.total,
                            MPI_BYTE, o.collective_.root, comm, &o.request_);
      };
    case CollectiveKind::kReduceScatter:
      return [](Operation& o, MPI_Comm comm) {
        return MPI_Ireduce_scatter(o.out(), o.in(), o.out_.counts.data(),
                                   o.type(), o.op(), comm, &o.request_);
      };
    case CollectiveKind::kReduceScatterTensor:
      return [](Operation& o, MPI_Comm comm) {
        return MPI_Ireduce_scatter_block(o.out(), o.in(),
                                         o.out_.total / o.world_size_, o.type(),
                                         o.op(), comm, &o.request_);
      };
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kAllToAllSingle:
      return [](Operation& o, MPI_Comm comm) {
        return MPI_Ialltoallv(o.out(), o.out_.counts.data(),
                              o.out_.starts.data(), MPI_BYTE, o.in(),
                              o.in_.counts.data(), o.in_.starts.data(),
                              MPI_BYTE, comm, &o.request_);
      };
    case CollectiveKind::kSend:
      return [](Operation& o, MPI_Comm comm) {
        return MPI_Isend(o.out(), o.out_.total, MPI_BYTE, o.collective_.peer,
                         o.collective_.tag, comm, &o.request_);
      };
    case CollectiveKind::kRecv:
      return [](Operation& o, MPI_Comm comm) {
        const int peer = o.collective_.peer;
        return MPI_Irecv(o.in(), o.in_.total, MPI_BYTE,
                         peer == kAnyPeer ? MPI_ANY_SOURCE : peer,
                         o.collective_.tag, comm, &o.request_);
      };
    default:
      return nullptr;
  }
}

Operation::KindFunction Operation::FindUserFunction(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return [](Operation& o, MPI_Comm comm) {
        return MPI_Iallgather(o.out(), o.out_.total, MPI_BYTE,
                              o.operands_.of(0), o.out_.total, MPI_BYTE, comm,
                              &o.request_);
      };
    case CollectiveKind::kReduce:
      return [](Operation& o, MPI_Comm comm) {
        return MPI_Igather(o.out(), o.out_.total, MPI_BYTE, o.operands_.of(0),
                           o.out_.total, MPI_BYTE, o.collective_.root, comm,
                           &o.request_);
      };
    default:
      return [](Operation& o, MPI_Comm comm) {
        return MPI_Ialltoallv(o.out(), o.out_.counts.data(),
                              o.out_.starts.data(), MPI_BYTE, o.operands_.of(0),
                              o.in_.counts.data(), o.in_.starts.data(),
                              MPI_BYTE, comm, &o.request_);
      };
  }
}

MPI_Datatype Operation::type() const {
  return AccumulatorType(collective_.data_type(), collective_.reduce_op);
}

MPI_Op Operation::op() const { return GetOperation(collective_.reduce_op); }

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
  comm_ = is_message() ? comms.messages : comms.collectives;
  // In these kinds, wrong counts leave memory as it was.
  is_comparing_ = is_by_user_ || KnowsAllSizes(collective_.kind);
  is_comparing_ ? Compare() : Move();
}

void Operation::Compare() {
  const Collective::Tensors* const common = collective_.common();
  const Collective::Tensors& equal =
      common != nullptr ? *common : collective_.read();
  // FNV-1a.
  uint64_t digest = 14695981039346656037u;
  const auto add = [&digest](uint64_t value) {
    for (int i = 0; i < 8; ++i, value >>= 8) {
      digest = (digest ^ (value & 0xff)) * 1099511628211u;
    }
  };
  add(static_cast<uint64_t>(collective_.kind));
  add(static_cast<uint64_t>(collective_.data_type()));
  add(static_cast<uint64_t>(collective_.opaque_bytes));
  add(static_cast<uint64_t>(collective_.reduce_op));
  add(collective_.function.options().is_commutative ? 1 : 0);
  for (const Tensor& tensor : equal) {
    add(static_cast<uint64_t>(tensor.element_count()));
  }
  // The digests are equal if the least one is the largest one.
  digests_ = {digest, ~digest};
  code_ = MPI_Iallreduce(digests_.data(), least_.data(), 2, MPI_UINT64_T,
                         MPI_MIN, comm_, &request_);
}

Status Operation::CheckSame() const {
  if (least_[0] == ~least_[1]) return OkStatus();
  return InvalidArgumentError(
      absl::StrCat(collective_.Label(),
                   ": the ranks differ in counts, type or operation; rank ",
                   rank_, " runs ", collective_.Describe()));
}

void Operation::Move() {
  if (is_by_user_) {
    PrepareUserReduction();
    code_ = FindUserFunction(collective_.kind)(*this, comm_);
    return;
  }
  reduction_ != nullptr ? PrepareReduction() : PrepareMovement();
  code_ = FindFunction(collective_.kind)(*this, comm_);
}

void Operation::PrepareUserReduction() {
  CopyIn(collective_.read());
  results_ = collective_.written();
  if (!collective_.tensors.empty() && !collective_.WritesInPlace(rank_)) {
    results_.clear();
  }
  const size_t bytes = DataTypeBytes(collective_.data_type());
  out_ =
      ComputeLayout(PartCounts(collective_.read(), {},
                               collective_.tensors.empty() ? world_size_ : 1),
                    bytes);
  if (results_.empty()) return;
  const size_t element_bytes = collective_.function_element_bytes();
  operands_.Reset(world_size_, results_[0].bytes() / element_bytes,
                  element_bytes);
  in_ = ComputeLayout(
      std::vector<int64_t>(static_cast<size_t>(world_size_),
                           static_cast<int64_t>(results_[0].bytes())),
      /*units=*/1);
}

Status Operation::CombineByUser() {
  if (results_.empty()) return OkStatus();
  const auto result = operands_.Combine(collective_.function, rank_);
  if (!result.ok()) {
    Status status(
        result.status().code(),
        absl::StrCat(collective_.Label(), ": ", result.status().message()));
    SetCulpritRank(status, rank_);
    return status;
  }
  if (results_[0].bytes() > 0) {
    memcpy(results_[0].data(), *result, results_[0].bytes());
  }
  return OkStatus();
}

void Operation::PrepareReduction() {
  CopyIn(collective_.read());
  results_ = collective_.written();
  if (!collective_.tensors.empty() && !collective_.WritesInPlace(rank_)) {
    results_.clear();
  }
  out_ = ComputeLayout(collective_.read(), /*units=*/1);
  incoming_.resize(
      static_cast<size_t>(ComputeLayout(results_, /*units=*/1).total) *
      reduction_->accumulator_bytes());
}

void Operation::PrepareMovement() {
  results_ = collective_.written();
  if (!collective_.tensors.empty()) {
    // MPI works in place, too.
    if (collective_.ReadsInPlace(rank_)) CopyIn(collective_.tensors);
    incoming_ = std::move(outgoing_);
    incoming_.resize(collective_.tensors[0].bytes());
    return;
  }
  CopyIn(collective_.inputs);
  // All others give or take tensors whole.
  const int parts = IsAllToAll(collective_.kind) ? world_size_ : 1;
  const size_t bytes = DataTypeBytes(collective_.data_type());
  out_ = ComputeLayout(
      PartCounts(collective_.inputs, collective_.input_splits, parts), bytes);
  in_ = ComputeLayout(
      PartCounts(collective_.outputs, collective_.output_splits, parts), bytes);
  incoming_.resize(static_cast<size_t>(in_.total));
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
    status = ToStatus(code_, collective_.Label());
  } else if (is_comparing_) {
    is_comparing_ = false;
    status = CheckSame();
    if (status.ok()) {
      Move();
      return false;
    }
  } else if (collective_.kind == CollectiveKind::kRecv) {
    status = CheckReceived(received);
  }
  if (status.ok() && is_by_user_) {
    status = CombineByUser();
  } else if (status.ok()) {
    CopyOut(results_);
  }
  if (!status.ok()) {
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
