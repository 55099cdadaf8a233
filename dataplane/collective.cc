#include "dataplane/collective.h"

#include <array>
#include <string>

#include "absl/strings/str_cat.h"

namespace muster::dataplane {
namespace {

absl::Status ValidateTensor(const Collective& collective) {
  if (collective.tensors.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("argument tensors: ", CollectiveKindName(collective.kind),
                     " takes 1 tensor, got ", collective.tensors.size()));
  }
  absl::Status status = collective.tensors[0].Validate();
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat("argument tensors[0]: ", status.message()));
}

absl::Status ValidateAllReduce(const Collective& collective) {
  absl::Status status = ValidateTensor(collective);
  if (!status.ok()) return status;
  if (static_cast<int>(collective.reduce_op) >= kReduceOpCount) {
    return absl::InvalidArgumentError(
        absl::StrCat("argument reduce_op: unknown value ",
                     static_cast<int>(collective.reduce_op)));
  }
  const DataType type = collective.tensors[0].data_type();
  const bool complex =
      type == DataType::kComplex64 || type == DataType::kComplex128;
  const bool ordered = collective.reduce_op != ReduceOp::kSum &&
                       collective.reduce_op != ReduceOp::kAvg;
  if (complex && ordered) {
    return absl::InvalidArgumentError(
        absl::StrCat("argument reduce_op: all_reduce does not support ",
                     ReduceOpName(collective.reduce_op), " on complex tensors",
                     ", got ", collective.tensors[0].Describe()));
  }
  if (type == DataType::kBool && collective.reduce_op == ReduceOp::kAvg) {
    return absl::InvalidArgumentError(
        absl::StrCat("argument reduce_op: avg of ",
                     collective.tensors[0].Describe(), " has no meaning"));
  }
  return absl::OkStatus();
}

absl::Status ValidateBroadcast(const Collective& collective, int world_size) {
  if (collective.root < 0 || collective.root >= world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("argument root: invalid root rank: ", collective.root,
                     ", must be from 0 to ", world_size - 1));
  }
  return ValidateTensor(collective);
}

absl::Status ValidateBarrier(const Collective& collective) {
  if (collective.tensors.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "argument tensors: barrier takes none, got ", collective.tensors.size()));
}

}  // namespace

absl::string_view CollectiveKindName(CollectiveKind kind) {
  constexpr std::array<absl::string_view, kCollectiveKindCount> kNames = {
      "all_reduce", "broadcast", "barrier"};
  const auto index = static_cast<size_t>(kind);
  return index < kNames.size() ? kNames[index] : "unknown collective";
}

absl::string_view ReduceOpName(ReduceOp op) {
  constexpr std::array<absl::string_view, kReduceOpCount> kNames = {
      "sum", "avg", "min", "max", "product"};
  const auto index = static_cast<size_t>(op);
  return index < kNames.size() ? kNames[index] : "unknown";
}

size_t Collective::bytes() const {
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

std::string Collective::Label() const {
  return absl::StrCat(CollectiveKindName(kind), " #", sequence);
}

std::string Collective::Describe() const {
  std::string text = Label();
  for (const Tensor& tensor : tensors) {
    absl::StrAppend(&text, " ", tensor.Describe());
  }
  switch (kind) {
    case CollectiveKind::kAllReduce:
      absl::StrAppend(&text, " ", ReduceOpName(reduce_op));
      break;
    case CollectiveKind::kBroadcast:
      absl::StrAppend(&text, " root ", root);
      break;
    case CollectiveKind::kBarrier:
      break;
  }
  return text;
}

absl::Status Validate(const Collective& collective, int rank, int world_size) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " is not in a group of ", world_size));
  }
  if (collective.timeout.count() < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "argument timeout: negative value ", collective.timeout.count(), "ms"));
  }
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
      return ValidateAllReduce(collective);
    case CollectiveKind::kBroadcast:
      return ValidateBroadcast(collective, world_size);
    case CollectiveKind::kBarrier:
      return ValidateBarrier(collective);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "argument kind: unknown value ", static_cast<int>(collective.kind)));
}

}  // namespace muster::dataplane
