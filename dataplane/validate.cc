// Validate (collective.h): one rule per layout of tensors.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "dataplane/data_types.h"
#include "dataplane/extents.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane {
namespace {

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

// Checks the length of `list`, except of a list with one tensor per rank, which
// the rule of the layout checks.
Status CheckNumber(const Collective& collective, absl::string_view name,
                   const Collective::Tensors& list, TensorList needed) {
  if (needed == TensorList::kPerRank || needed == TensorList::kPerRankOnRoot) {
    return OkStatus();
  }
  const bool none = needed == TensorList::kEmpty;
  if (list.size() == (none ? 0 : 1)) return OkStatus();
  return Invalid(name, CollectiveKindName(collective.kind), " takes ",
                 none ? "none" : "1 tensor", ", got ", list.size());
}

// Checks the lists' lengths, each tensor, and that types and devices are equal.
Status CheckTensors(const Collective& collective) {
  const CollectiveTraits& traits = GetTraits(collective.kind);
  struct List {
    absl::string_view name;
    const Collective::Tensors& tensors;
    TensorList needed;
  };
  const Tensor* first = nullptr;
  for (const List& list :
       {List{"tensors", collective.tensors, traits.tensors},
        List{"inputs", collective.inputs, traits.inputs},
        List{"outputs", collective.outputs, traits.outputs}}) {
    Status status =
        CheckNumber(collective, list.name, list.tensors, list.needed);
    if (!status.ok()) return status;
    for (size_t i = 0; i < list.tensors.size(); ++i) {
      const Tensor& tensor = list.tensors[i];
      status = tensor.Validate();
      if (!status.ok()) return Invalid(At(list.name, i), status.message());
      if (first == nullptr) first = &tensor;
      if (tensor.data_type() != first->data_type()) {
        return Invalid(At(list.name, i),
                       "Invalid usage of tensors with different dtypes: Found ",
                       DataTypeName(first->data_type()), " and ",
                       DataTypeName(tensor.data_type()));
      }
      if (tensor.element_bytes() != first->element_bytes()) {
        return Invalid(At(list.name, i), "opaque elements of ",
                       first->element_bytes(), " and of ",
                       tensor.element_bytes(), " bytes");
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

// Whether it is no pair, and not opaque.
constexpr bool IsOneNumber(DataType type) { return type < DataType::kOpaque; }

// Returns why a function of the user does not reduce the collective, or "".
std::string WhyNotByFunction(const Collective& collective) {
  if (!collective.function) return "no function given for user";
  const size_t needed = collective.function.options().element_bytes;
  const size_t given = collective.function_element_bytes();
  const std::string head = absl::StrCat(
      "function ", base::Quote(collective.function.options().name), " is for ");
  if (needed != 0 && needed != given) {
    return absl::StrCat(head, "elements of ", needed, " bytes, not of ", given);
  }
  const std::optional<DataType> type = collective.function.data_type();
  const bool is_opaque = collective.opaque_bytes > 0 ||
                         collective.data_type() == DataType::kOpaque;
  if (!type.has_value() || is_opaque || *type == collective.data_type()) {
    return "";
  }
  return absl::StrCat(head, DataTypeName(*type));
}

// Returns why `op` is not defined for `type`, or "".
std::string WhyNotReduced(const Collective& collective, DataType type) {
  const ReduceOp op = collective.reduce_op;
  const bool finds = op == ReduceOp::kMinloc || op == ReduceOp::kMaxloc;
  if (type == DataType::kOpaque && op < ReduceOp::kUser) {
    return absl::StrCat(ReduceOpName(op),
                        " does not reduce opaque elements, only a function of "
                        "the user does");
  }
  if (op < ReduceOp::kUser && finds == IsOneNumber(type)) {
    return absl::StrCat(ReduceOpName(op), " does not reduce ",
                        DataTypeName(type),
                        finds ? ", only pairs of a value and an index"
                              : ", only minloc, maxloc and functions do");
  }
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMinloc:
    case ReduceOp::kMaxloc:
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
    case ReduceOp::kUser:
      return WhyNotByFunction(collective);
  }
  return absl::StrCat("unknown value ", static_cast<int>(op));
}

Status CheckReduction(const Collective& collective) {
  if (collective.reduce_op == ReduceOp::kSum &&
      IsOneNumber(collective.data_type())) {
    return OkStatus();
  }
  const std::string why = WhyNotReduced(collective, collective.data_type());
  if (why.empty()) return OkStatus();
  return Invalid("reduce_op", why, ", got ",
                 collective.written()[0].Describe());
}

Status CheckRoot(const Collective& collective, int world_size) {
  if (collective.root >= 0 && collective.root < world_size) {
    return OkStatus();
  }
  return Invalid("root", "invalid root rank: ", collective.root,
                 ", must be from 0 to ", world_size - 1);
}

// Checks that list[index] has the shape of `model`.
Status CheckShape(absl::string_view name, const Collective::Tensors& list,
                  size_t index, const Tensor& model) {
  if (std::ranges::equal(list[index].shape(), model.shape())) {
    return OkStatus();
  }
  return Invalid(At(name, index), "invalid tensor size at index ", index,
                 " (expected ", ShapeText(model), ", got ",
                 ShapeText(list[index]), ")");
}

// Divides: the product of `part` and `world_size` might overflow.
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

// Gather and scatter: checks the list with one tensor per rank, which only the
// root has.
Status CheckRootsList(const Collective& collective, bool is_root,
                      int world_size) {
  const bool gathers =
      GetTraits(collective.kind).outputs == TensorList::kPerRankOnRoot;
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
      // The sum overflows: names the largest split.
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
  // The counts that this rank sends to itself and receives from itself.
  const int64_t given =
      PartCounts(collective.inputs, collective.input_splits, world_size)[rank];
  const int64_t taken = PartCounts(collective.outputs, collective.output_splits,
                                   world_size)[rank];
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

// Applies the rule of the kind's layout.
Status CheckLists(const Collective& collective, int rank, int world_size) {
  const CollectiveTraits& traits = GetTraits(collective.kind);
  if (traits.is_point_to_point) {
    return ValidatePointToPoint(collective, world_size);
  }
  const auto are = [&](TensorList inputs, TensorList outputs) {
    return traits.inputs == inputs && traits.outputs == outputs;
  };
  using enum TensorList;
  if (are(kOne, kPerRankOnRoot) || are(kPerRankOnRoot, kOne)) {
    return CheckRootsList(collective, rank == collective.root, world_size);
  }
  if (are(kOne, kPerRank)) {
    return ValidateAllGather(collective, rank, world_size);
  }
  if (are(kOne, kWhole)) {
    return ValidateAllGatherIntoTensor(collective, world_size);
  }
  if (are(kPerRank, kOne)) {
    return ValidateReduceScatter(collective, rank, world_size);
  }
  if (are(kWhole, kOne)) {
    return ValidateReduceScatterTensor(collective, world_size);
  }
  if (are(kPerRank, kPerRank)) {
    return ValidateAllToAll(collective, rank, world_size);
  }
  if (are(kWhole, kWhole)) {
    return ValidateAllToAllSingle(collective, rank, world_size);
  }
  return OkStatus();
}

// The address of rank `rank`'s part in list[index]; null if list[index] belongs
// to another rank.
const std::byte* OwnPart(TensorList layout, const Collective::Tensors& list,
                         size_t index, size_t rank, int world_size) {
  const auto* const data = static_cast<const std::byte*>(list[index].data());
  if (layout == TensorList::kOne) return data;
  if (layout == TensorList::kWhole) {
    return data + rank * (list[index].bytes() / world_size);
  }
  return index == rank ? data : nullptr;
}

// Whether this rank's input `i` may be its own part of output `j`: only at
// exactly the same address, where nothing has to be copied.
bool MayOverlap(const Collective& collective, size_t rank, int world_size,
                size_t i, size_t j) {
  const CollectiveTraits& traits = GetTraits(collective.kind);
  // Receiving would overwrite parts for other ranks that are not yet sent.
  if (traits.inputs == TensorList::kWhole &&
      traits.outputs == TensorList::kWhole) {
    return false;
  }
  const std::byte* const from =
      OwnPart(traits.inputs, collective.inputs, i, rank, world_size);
  return from != nullptr && from == OwnPart(traits.outputs, collective.outputs,
                                            j, rank, world_size);
}

// Refuses outputs that overlap inputs or each other: the result would depend on
// the size or on timing.
Status CheckOverlap(const Collective& collective, int rank, int world_size) {
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
          return MayOverlap(collective, static_cast<size_t>(rank), world_size,
                            i, output);
        });
    if (touched.has_value()) {
      return Invalid(At("inputs", i), "overlaps ", At("outputs", *touched),
                     ", and not at this rank's own place");
    }
  }
  return OkStatus();
}

// Whether `collective` keeps all rules, if that is seen at once. Most small
// collectives have one tensor in place; the rules below take 200 instructions
// for them.
bool IsPlain(const Collective& collective, int world_size) {
  const CollectiveTraits& traits = GetTraits(collective.kind);
  return traits.tensors == TensorList::kOne && collective.tensors.size() == 1 &&
         collective.tensors[0].is_valid() &&
         IsOneNumber(collective.tensors[0].data_type()) &&
         collective.inputs.empty() && collective.outputs.empty() &&
         collective.reduce_op == ReduceOp::kSum && collective.root >= 0 &&
         collective.root < world_size && collective.timeout.count() >= 0;
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
  if (IsPlain(collective, world_size)) return OkStatus();
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
  if (status.ok()) status = CheckLists(collective, rank, world_size);
  if (status.ok()) status = CheckOverlap(collective, rank, world_size);
  return status;
}

}  // namespace muster::dataplane
