#include "muster/dataplane/collective.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"

namespace muster::dataplane {
namespace {

// Maximum number of splits in a text.
constexpr size_t kSplitsShown = 8;

size_t CountBytes(const Collective::Tensors& tensors) {
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

// Summarises a list of several tensors, which may be as long as the group is
// large.
void AppendTensors(std::string& text, absl::string_view between,
                   const Collective::Tensors& tensors) {
  if (tensors.empty()) return;
  if (tensors.size() == 1) {
    absl::StrAppend(&text, between, tensors[0].Describe());
    return;
  }
  int64_t count = 0;
  for (const Tensor& tensor : tensors) count += tensor.element_count();
  absl::StrAppend(&text, between, tensors.size(), " tensors of ", count, " ",
                  DataTypeName(tensors[0].data_type()));
}

void AppendSplits(std::string& text, absl::string_view name,
                  const std::vector<int64_t>& splits) {
  if (splits.empty()) return;
  const auto shown =
      std::span(splits).first(std::min(splits.size(), kSplitsShown));
  absl::StrAppend(&text, " ", name, " ", absl::StrJoin(shown, ","));
  if (splits.size() > shown.size()) absl::StrAppend(&text, ",...");
}

void AppendParts(std::string& text, const std::vector<int64_t>& parts) {
  if (parts.empty()) return;
  const auto shown =
      std::span(parts).first(std::min(parts.size(), kSplitsShown));
  absl::StrAppend(&text, " of ", parts.size(), " coalesced (",
                  absl::StrJoin(shown, ","),
                  parts.size() > shown.size() ? ",...)" : ")");
}

}  // namespace

const std::string& CollectiveKindName(CollectiveKind kind) {
  // Never destroyed: threads may use the names while the process ends.
  static const auto& kNames = *[] {
    auto* names = new std::array<std::string, kCollectiveTraits.size()>;
    for (size_t i = 0; i < names->size(); ++i) {
      (*names)[i] = kCollectiveTraits[i].name;
    }
    return names;
  }();
  return kNames[std::min<size_t>(static_cast<size_t>(kind),
                                 kCollectiveKindCount)];
}

const std::string& StepName(Step step) {
  static const auto& kNames = *new std::array<std::string, 4>{
      "", "form_group", "allocate_symmetric", "unknown step"};
  return kNames[std::min<size_t>(static_cast<size_t>(step), 3)];
}

const std::string& ReduceOpName(ReduceOp op) {
  static const auto& kNames = *new std::array<std::string, kReduceOpCount + 1>{
      "sum",  "avg",        "min",    "max",    "product", "band",   "bor",
      "bxor", "premul_sum", "minloc", "maxloc", "user",    "unknown"};
  return kNames[std::min<size_t>(static_cast<size_t>(op), kReduceOpCount)];
}

const Collective::Tensors* Collective::common() const {
  if (IsAllToAll(kind) || IsPointToPoint(kind)) return nullptr;
  if (!tensors.empty()) return &tensors;
  const CollectiveTraits& traits = GetTraits(kind);
  // Chooses the list with one tensor per rank if all ranks have it, otherwise
  // the list with this rank's single tensor.
  const bool is_outputs = traits.outputs == TensorList::kPerRank ||
                          traits.inputs == TensorList::kPerRankOnRoot;
  return is_outputs ? &outputs : &inputs;
}

size_t Collective::bytes() const {
  return CountBytes(tensors) +
         std::max(CountBytes(inputs), CountBytes(outputs));
}

std::string Collective::Label() const {
  if (step != Step::kNone) return std::string(StepName(step));
  return absl::StrCat(CollectiveKindName(kind), " #", sequence);
}

std::string Collective::Describe() const {
  std::string text = Label();
  if (step != Step::kNone) return text;
  AppendTensors(text, " ", tensors);
  AppendTensors(text, " ", inputs);
  AppendTensors(text, inputs.empty() ? " " : " to ", outputs);
  AppendSplits(text, "input_split_sizes", input_splits);
  AppendSplits(text, "output_split_sizes", output_splits);
  AppendParts(text, parts);
  if (IsReduction(kind)) absl::StrAppend(&text, " ", ReduceOpName(reduce_op));
  if (IsReduction(kind) && reduce_op == ReduceOp::kUser &&
      !function.options().is_commutative) {
    absl::StrAppend(&text, " (not commutative)");
  }
  if (IsRooted(kind)) absl::StrAppend(&text, " root ", root);
  if (IsPointToPoint(kind)) {
    absl::StrAppend(&text, kind == CollectiveKind::kSend ? " to" : " from");
    if (peer == kAnyPeer) {
      absl::StrAppend(&text, " any rank");
    } else {
      absl::StrAppend(&text, " rank ", peer);
    }
    absl::StrAppend(&text, " tag ", tag);
  }
  return text;
}

Status NoSuchKind(std::string_view backend, CollectiveKind kind) {
  return UnimplementedError(absl::StrCat("the ", base::ToAbsl(backend),
                                         " backend has no ",
                                         CollectiveKindName(kind)));
}

void OpaqueToBytes(Collective& collective) {
  if (collective.data_type() != DataType::kOpaque ||
      collective.opaque_bytes > 0) {
    return;
  }
  collective.opaque_bytes =
      static_cast<uint32_t>(collective.first_tensor()->element_bytes());
  for (Collective::Tensors* const list : collective.lists()) {
    for (Tensor& tensor : *list) {
      std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
      shape.push_back(collective.opaque_bytes);
      tensor = Tensor(tensor.data(), DataType::kOpaque, shape, tensor.device());
    }
  }
}

std::vector<int64_t> PartCounts(const Collective::Tensors& list,
                                const std::vector<int64_t>& splits,
                                int world_size) {
  std::vector<int64_t> counts;
  if (list.size() != 1) {
    for (const Tensor& tensor : list) counts.push_back(tensor.element_count());
    return counts;
  }
  const int64_t count = list[0].element_count();
  if (splits.empty()) {
    return std::vector<int64_t>(static_cast<size_t>(world_size),
                                count / world_size);
  }
  const std::span<const int64_t> shape = list[0].shape();
  const int64_t row = shape.empty() || shape[0] == 0 ? 0 : count / shape[0];
  counts.reserve(splits.size());
  for (const int64_t split : splits) {
    // Without overflow: a split may be any number.
    counts.push_back(static_cast<int64_t>(static_cast<uint64_t>(row) *
                                          static_cast<uint64_t>(split)));
  }
  return counts;
}

}  // namespace muster::dataplane
