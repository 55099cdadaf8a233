#include "dataplane/collective.h"

#include <array>
#include <string>

#include "absl/strings/ascii.h"
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

bool IsComplex(DataType type) {
  return type == DataType::kComplex64 || type == DataType::kComplex128;
}

bool IsIntegral(DataType type) {
  return static_cast<int>(type) <= static_cast<int>(DataType::kInt64) ||
         type == DataType::kBool;
}

// Why `op` has no meaning for `type`, or "".
std::string WhyNotReduced(const Collective& collective, DataType type) {
  const ReduceOp op = collective.reduce_op;
  switch (op) {
    case ReduceOp::kSum:
      return "";
    case ReduceOp::kAvg:
      if (type != DataType::kBool) return "";
      return "cannot use ReduceOp.AVG with boolean inputs";
    case ReduceOp::kPremulSum:
      if (!IsIntegral(type)) return "";
      return "cannot use ReduceOp.PREMUL_SUM with integral dtype";
    case ReduceOp::kMin:
    case ReduceOp::kMax:
    case ReduceOp::kProduct:
      if (!IsComplex(type)) return "";
      return absl::StrCat(CollectiveKindName(collective.kind),
                          " does not support ", ReduceOpName(op),
                          " on complex tensors");
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      if (IsIntegral(type)) return "";
      return absl::StrCat("cannot use ReduceOp.",
                          absl::AsciiStrToUpper(ReduceOpName(op)),
                          " with non-integral dtype");
  }
  return absl::StrCat("unknown value ", static_cast<int>(op));
}

absl::Status ValidateReduction(const Collective& collective,
                               const Tensor& tensor) {
  const std::string why = WhyNotReduced(collective, tensor.data_type());
  if (why.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("argument reduce_op: ", why, ", got ", tensor.Describe()));
}

absl::Status ValidateAllReduce(const Collective& collective) {
  absl::Status status = ValidateTensor(collective);
  if (!status.ok()) return status;
  return ValidateReduction(collective, collective.tensors[0]);
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
      "sum",  "avg", "min",  "max",       "product",
      "band", "bor", "bxor", "premul_sum"};
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
