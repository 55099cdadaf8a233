#include "dataplane/collective.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::dataplane {
namespace {

// Splits that a text shows.
constexpr size_t kSplitsShown = 8;

size_t BytesOf(const Collective::Tensors& tensors) {
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

// A list may be as long as the group is large.
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
  // Never destroyed: threads may use them while the process ends.
  static const auto& kNames =
      *new std::array<std::string, kCollectiveKindCount + 1>{
          "all_reduce",
          "broadcast",
          "barrier",
          "reduce",
          "all_gather",
          "all_gather_into_tensor",
          "gather",
          "scatter",
          "reduce_scatter",
          "reduce_scatter_tensor",
          "all_to_all",
          "all_to_all_single",
          "send",
          "recv",
          "unknown collective"};
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
      "sum",  "avg", "min",  "max",        "product",
      "band", "bor", "bxor", "premul_sum", "unknown"};
  return kNames[std::min<size_t>(static_cast<size_t>(op), kReduceOpCount)];
}

constinit const CollectiveView CollectiveView::kDefault = {};

Collective CollectiveView::Copy() const {
  Collective copy;
  copy.kind = kind;
  copy.tensors.assign(tensors.begin(), tensors.end());
  copy.inputs.assign(inputs.begin(), inputs.end());
  copy.outputs.assign(outputs.begin(), outputs.end());
  copy.input_splits.assign(input_splits.begin(), input_splits.end());
  copy.output_splits.assign(output_splits.begin(), output_splits.end());
  copy.reduce_op = reduce_op;
  copy.factor = factor;
  copy.root = root;
  copy.peer = peer;
  copy.tag = tag;
  copy.device = device;
  copy.timeout = timeout;
  return copy;
}

CollectiveView CollectiveView::Of(const Collective& collective) {
  return {.kind = collective.kind,
          .tensors = collective.tensors,
          .inputs = collective.inputs,
          .outputs = collective.outputs,
          .input_splits = collective.input_splits,
          .output_splits = collective.output_splits,
          .reduce_op = collective.reduce_op,
          .factor = collective.factor,
          .root = collective.root,
          .peer = collective.peer,
          .tag = collective.tag,
          .device = collective.device,
          .timeout = collective.timeout};
}

size_t Collective::SumOfBytes() const {
  return BytesOf(tensors) + std::max(BytesOf(inputs), BytesOf(outputs));
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

}  // namespace muster::dataplane
