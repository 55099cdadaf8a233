// The rules of collective.h: one per kind.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "dataplane/collective.h"
#include "dataplane/extents.h"

namespace muster::dataplane {
namespace {

// How many tensors a list of a kind has; its rule looks at those of the others.
constexpr int kRuleOfItsOwn = -1;

struct Needs {
  int tensors = 0;
  int inputs = 0;
  int outputs = 0;
};

Needs NeedsOf(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      return {.tensors = 1};
    case CollectiveKind::kBarrier:
      return {};
    case CollectiveKind::kAllGather:
    case CollectiveKind::kGather:
      return {.inputs = 1, .outputs = kRuleOfItsOwn};
    case CollectiveKind::kScatter:
    case CollectiveKind::kReduceScatter:
      return {.inputs = kRuleOfItsOwn, .outputs = 1};
    case CollectiveKind::kAllToAll:
      return {.inputs = kRuleOfItsOwn, .outputs = kRuleOfItsOwn};
    case CollectiveKind::kAllGatherIntoTensor:
    case CollectiveKind::kReduceScatterTensor:
    case CollectiveKind::kAllToAllSingle:
      return {.inputs = 1, .outputs = 1};
    case CollectiveKind::kSend:
      return {.inputs = 1};
    case CollectiveKind::kRecv:
      return {.outputs = 1};
  }
  return {};
}

template <typename... Pieces>
Status Invalid(absl::string_view argument, const Pieces&... pieces) {
  return InvalidArgumentError(
      absl::StrCat("argument ", argument, ": ", pieces...));
}

std::string At(absl::string_view list, size_t index) {
  return absl::StrCat(list, "[", index, "]");
}

std::string ShapeText(const Tensor& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.shape(), ","), "]");
}

Status WrongNumber(const Collective& collective, absl::string_view name,
                   const Collective::Tensors& list, int needed) {
  return Invalid(name, CollectiveKindName(collective.kind), " takes ",
                 needed == 0 ? "none" : "1 tensor", ", got ", list.size());
}

// Every tensor is one, and they go together.
Status CheckTensors(const Collective& collective) {
  const Needs needs = NeedsOf(collective.kind);
  // As most small calls are, which take little longer than what follows.
  if (needs.tensors == 1 && collective.tensors.size() == 1 &&
      collective.inputs.empty() && collective.outputs.empty() &&
      collective.tensors[0].is_valid()) {
    return OkStatus();
  }
  struct List {
    absl::string_view name;
    const Collective::Tensors& tensors;
    int needed;
  };
  const Tensor* first = nullptr;
  for (const List& list :
       {List{"tensors", collective.tensors, needs.tensors},
        List{"inputs", collective.inputs, needs.inputs},
        List{"outputs", collective.outputs, needs.outputs}}) {
    if (list.needed != kRuleOfItsOwn &&
        static_cast<int>(list.tensors.size()) != list.needed) {
      return WrongNumber(collective, list.name, list.tensors, list.needed);
    }
    for (size_t i = 0; i < list.tensors.size(); ++i) {
      const Tensor& tensor = list.tensors[i];
      const Status status = tensor.Validate();
      if (!status.ok()) return Invalid(At(list.name, i), status.message());
      if (first == nullptr) first = &tensor;
      if (tensor.data_type() != first->data_type()) {
        return Invalid(At(list.name, i),
                       "Invalid usage of tensors with different dtypes: Found ",
                       DataTypeName(first->data_type()), " and ",
                       DataTypeName(tensor.data_type()));
      }
      if (!(tensor.device() == first->device())) {
        return Invalid(At(list.name, i), "tensors on different devices: found ",
                       DeviceName(first->device()), " and ",
                       DeviceName(tensor.device()));
      }
    }
  }
  return OkStatus();
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
      return "Cannot use ReduceOp.AVG with boolean inputs";
    case ReduceOp::kPremulSum:
      if (!IsIntegral(type)) return "";
      return "Cannot use ReduceOp.PREMUL_SUM with integral dtype";
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
      return absl::StrCat("Cannot use ReduceOp.",
                          absl::AsciiStrToUpper(ReduceOpName(op)),
                          " with non-integral dtype");
  }
  return absl::StrCat("unknown value ", static_cast<int>(op));
}

Status CheckReduction(const Collective& collective) {
  if (collective.reduce_op == ReduceOp::kSum) return OkStatus();
  const std::string why = WhyNotReduced(collective, collective.data_type());
  if (why.empty()) return OkStatus();
  const Tensor& tensor = collective.tensors.empty() ? collective.outputs[0]
                                                    : collective.tensors[0];
  return Invalid("reduce_op", why, ", got ", tensor.Describe());
}

Status CheckRoot(const Collective& collective, int world_size) {
  if (collective.root >= 0 && collective.root < world_size) {
    return OkStatus();
  }
  return Invalid("root", "invalid root rank: ", collective.root,
                 ", must be from 0 to ", world_size - 1);
}

// list[index] has the shape of `model`.
Status CheckShape(absl::string_view name, const Collective::Tensors& list,
                  size_t index, const Tensor& model) {
  if (std::ranges::equal(list[index].shape(), model.shape())) {
    return OkStatus();
  }
  return Invalid(At(name, index), "invalid tensor size at index ", index,
                 " (expected ", ShapeText(model), ", got ",
                 ShapeText(list[index]), ")");
}

// Without their product, which may be more than there are numbers.
bool IsForEach(const Tensor& whole, const Tensor& part, int world_size) {
  return whole.element_count() % world_size == 0 &&
         whole.element_count() / world_size == part.element_count();
}

Status ValidateAllGather(const Collective& collective, int rank,
                         int world_size) {
  const auto length = static_cast<int>(collective.outputs.size());
  if (length != world_size) {
    return Invalid("outputs",
                   "invalid output tensor list at index 0 (expected length ",
                   world_size, ", got ", length, ")");
  }
  return CheckShape("outputs", collective.outputs, rank, collective.inputs[0]);
}

Status ValidateAllGatherIntoTensor(const Collective& collective,
                                   int world_size) {
  const Tensor& input = collective.inputs[0];
  const Tensor& output = collective.outputs[0];
  if (IsForEach(output, input, world_size)) {
    return OkStatus();
  }
  return Invalid(
      "outputs[0]",
      "output tensor size must be equal to world_size times input tensor size,"
      " got ",
      output.Describe(), " for ", input.Describe(), " and ", world_size,
      " ranks");
}

// Of gather and scatter: the list that the root alone has, one for each rank.
Status CheckRootsList(const Collective& collective, bool is_root,
                      int world_size) {
  const bool gathers = collective.kind == CollectiveKind::kGather;
  const Collective::Tensors& list =
      gathers ? collective.outputs : collective.inputs;
  const Tensor& model = gathers ? collective.inputs[0] : collective.outputs[0];
  const absl::string_view name = gathers ? "outputs" : "inputs";
  const absl::string_view theirs = gathers ? "gather_list" : "scatter_list";
  const absl::string_view role = gathers ? "destination" : "source";
  if (!is_root && !list.empty()) {
    return InvalidArgumentError(
        absl::StrCat("Argument ``", theirs, "`` must NOT be specified on non-",
                     role, " ranks, got ", list.size(), " tensors"));
  }
  if (!is_root) return OkStatus();
  if (list.empty()) {
    return InvalidArgumentError(absl::StrCat(
        "Argument ``", theirs, "`` must be specified on ", role, " rank"));
  }
  if (static_cast<int>(list.size()) != world_size) {
    const absl::string_view put = gathers ? "output" : "input";
    return Invalid(name, "Incorrect ", put, " list size ", list.size(), ". ",
                   gathers ? "Output" : "Input", " list size should be ",
                   world_size, ", same as size of the process group");
  }
  for (size_t i = 0; i < list.size(); ++i) {
    Status status = CheckShape(name, list, i, model);
    if (!status.ok()) return status;
  }
  return OkStatus();
}

Status ValidateReduceScatter(const Collective& collective, int rank,
                             int world_size) {
  if (static_cast<int>(collective.inputs.size()) != world_size) {
    return Invalid("inputs",
                   "invalid input tensor list size, must be world size, got ",
                   collective.inputs.size(), " for ", world_size, " ranks");
  }
  return CheckShape("inputs", collective.inputs, rank, collective.outputs[0]);
}

Status ValidateReduceScatterTensor(const Collective& collective,
                                   int world_size) {
  const Tensor& input = collective.inputs[0];
  const Tensor& output = collective.outputs[0];
  if (IsForEach(input, output, world_size)) {
    return OkStatus();
  }
  return Invalid(
      "inputs[0]",
      "input tensor must be the same size as output size times world size, "
      "got ",
      input.Describe(), " for ", output.Describe(), " and ", world_size,
      " ranks");
}

Status ValidateAllToAll(const Collective& collective, int rank,
                        int world_size) {
  const auto length_of = [](const Collective::Tensors& list) {
    return static_cast<int>(list.size());
  };
  if (length_of(collective.inputs) != world_size) {
    return Invalid("inputs", "input tensor list size ",
                   collective.inputs.size(), " does not match world size ",
                   world_size);
  }
  if (length_of(collective.outputs) != world_size) {
    return Invalid("outputs", "output tensor list size ",
                   collective.outputs.size(), " does not match world size ",
                   world_size);
  }
  return CheckShape("outputs", collective.outputs, rank,
                    collective.inputs[rank]);
}

Status CheckSplits(absl::string_view list, absl::string_view splits_name,
                   const Tensor& tensor, const std::vector<int64_t>& splits,
                   int world_size) {
  if (tensor.shape().empty()) {
    return Invalid(list, "all_to_all_single needs a dim 0, got ",
                   tensor.Describe());
  }
  const int64_t rows = tensor.shape()[0];
  if (splits.empty()) {
    if (rows % world_size == 0) return OkStatus();
    return Invalid(list,
                   "Tensor's dim 0 does not divide equally across group size "
                   "(",
                   tensor.Describe(), " among ", world_size, " ranks)");
  }
  if (static_cast<int>(splits.size()) != world_size) {
    return Invalid(splits_name,
                   "Number of tensor splits not equal to group size (got ",
                   splits.size(), " for ", world_size, " ranks)");
  }
  int64_t sum = 0;
  for (size_t i = 0; i < splits.size(); ++i) {
    size_t bad = i;
    if (splits[i] >= 0) {
      if (!__builtin_add_overflow(sum, splits[i], &sum)) continue;
      // Too large together: the largest of them is.
      bad = static_cast<size_t>(std::max_element(splits.begin(), splits.end()) -
                                splits.begin());
    }
    return Invalid(At(splits_name, bad), "bad value ", splits[bad]);
  }
  if (sum == rows) return OkStatus();
  return Invalid(splits_name,
                 "Split sizes doesn't match total dim 0 size (sum ", sum,
                 ", got ", tensor.Describe(), ")");
}

// Elements of what a rank gives itself, or takes from itself.
int64_t OwnCount(const Tensor& tensor, const std::vector<int64_t>& splits,
                 int rank, int world_size) {
  const int64_t rows = tensor.shape()[0];
  if (splits.empty()) return tensor.element_count() / world_size;
  return rows == 0 ? 0 : tensor.element_count() / rows * splits[rank];
}

Status ValidateAllToAllSingle(const Collective& collective, int rank,
                              int world_size) {
  const Tensor& input = collective.inputs[0];
  const Tensor& output = collective.outputs[0];
  Status status = CheckSplits("inputs[0]", "input_split_sizes", input,
                              collective.input_splits, world_size);
  if (status.ok()) {
    status = CheckSplits("outputs[0]", "output_split_sizes", output,
                         collective.output_splits, world_size);
  }
  if (!status.ok()) return status;
  const int64_t given =
      OwnCount(input, collective.input_splits, rank, world_size);
  const int64_t taken =
      OwnCount(output, collective.output_splits, rank, world_size);
  if (given == taken) return OkStatus();
  return Invalid("output_split_sizes", "rank ", rank, " gives itself ", given,
                 " elements and takes ", taken);
}

Status ValidatePointToPoint(const Collective& collective, int world_size) {
  const bool sends = collective.kind == CollectiveKind::kSend;
  const absl::string_view end = sends ? "destination" : "source";
  if (collective.tag < 0) {
    return Invalid("tag", "Tag must be nonnegative, got ", collective.tag);
  }
  if (!sends && collective.peer == kAnyPeer) return OkStatus();
  if (collective.peer < 0 || collective.peer >= world_size) {
    return Invalid("peer", "Invalid ", end, " rank: ", collective.peer,
                   ", must be from 0 to ", world_size - 1);
  }
  return OkStatus();
}

// The rule of its kind.
Status CheckKind(const Collective& collective, int rank, int world_size) {
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kBarrier:
    case CollectiveKind::kReduce:
      break;
    case CollectiveKind::kAllGather:
      return ValidateAllGather(collective, rank, world_size);
    case CollectiveKind::kAllGatherIntoTensor:
      return ValidateAllGatherIntoTensor(collective, world_size);
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
      return CheckRootsList(collective, rank == collective.root, world_size);
    case CollectiveKind::kReduceScatter:
      return ValidateReduceScatter(collective, rank, world_size);
    case CollectiveKind::kReduceScatterTensor:
      return ValidateReduceScatterTensor(collective, world_size);
    case CollectiveKind::kAllToAll:
      return ValidateAllToAll(collective, rank, world_size);
    case CollectiveKind::kAllToAllSingle:
      return ValidateAllToAllSingle(collective, rank, world_size);
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
      return ValidatePointToPoint(collective, world_size);
  }
  return OkStatus();
}

// Whether this rank's input `i` may be where its output `j` is: at its own
// place, where nothing has to move.
bool MayOverlap(const Collective& collective, size_t rank, size_t i, size_t j) {
  const Tensor& input = collective.inputs[i];
  const Tensor& output = collective.outputs[j];
  const auto* const from = static_cast<const std::byte*>(input.data());
  const auto* const to = static_cast<const std::byte*>(output.data());
  switch (collective.kind) {
    case CollectiveKind::kAllGather:
    case CollectiveKind::kGather:
      return j == rank && from == to;
    case CollectiveKind::kScatter:
    case CollectiveKind::kReduceScatter:
      return i == rank && from == to;
    case CollectiveKind::kAllToAll:
      return i == rank && j == rank && from == to;
    case CollectiveKind::kAllGatherIntoTensor:
      return from == to + rank * input.bytes();
    case CollectiveKind::kReduceScatterTensor:
      return to == from + rank * output.bytes();
    default:
      return false;
  }
}

// What is written must not be read, or written, by another name: which bytes
// would come out depended on the size, or on who is first.
Status CheckOverlap(const Collective& collective, int rank) {
  if (collective.outputs.empty()) return OkStatus();
  Extents outputs;
  for (size_t i = 0; i < collective.outputs.size(); ++i) {
    outputs.Add(collective.outputs[i], i);
  }
  if (const auto clash = outputs.Clash(); clash.has_value()) {
    return Invalid(At("outputs", clash->second), "overlaps ",
                   At("outputs", clash->first));
  }
  for (size_t i = 0; i < collective.inputs.size(); ++i) {
    const auto touched =
        outputs.Touching(collective.inputs[i], [&](size_t output) {
          return MayOverlap(collective, static_cast<size_t>(rank), i, output);
        });
    if (touched.has_value()) {
      return Invalid(At("inputs", i), "overlaps ", At("outputs", *touched),
                     ", and not at this rank's own place");
    }
  }
  return OkStatus();
}

}  // namespace

Status Validate(const Collective& collective, int rank, int world_size) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    return InvalidArgumentError(
        absl::StrCat("rank ", rank, " is not in a group of ", world_size));
  }
  if (static_cast<int>(collective.kind) >= kCollectiveKindCount) {
    return Invalid("kind", "unknown value ", static_cast<int>(collective.kind));
  }
  if (collective.timeout.count() < 0) {
    return Invalid("timeout", "negative value ", collective.timeout.count(),
                   "ms");
  }
  Status status = CheckTensors(collective);
  if (status.ok() && IsRooted(collective.kind)) {
    status = CheckRoot(collective, world_size);
  }
  if (status.ok() && IsReduction(collective.kind)) {
    status = CheckReduction(collective);
  }
  if (status.ok()) status = CheckKind(collective, rank, world_size);
  if (status.ok()) status = CheckOverlap(collective, rank);
  return status;
}

}  // namespace muster::dataplane
