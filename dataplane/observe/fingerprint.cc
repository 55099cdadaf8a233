#include "dataplane/observe/fingerprint.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "dataplane/culprit.h"

namespace muster::dataplane {
namespace {

std::string FormatShape(const Tensor& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.shape(), ","), "]");
}

std::string FormatShapes(const Collective::Tensors& tensors) {
  return absl::StrJoin(tensors, " ",
                       [](std::string* out, const Tensor& tensor) {
                         absl::StrAppend(out, FormatShape(tensor));
                       });
}

}  // namespace

Fingerprint MakeFingerprint(const Collective& given, int world_size) {
  // As the communicator passes it on, so that all callers get the same.
  std::optional<Collective> of_bytes;
  if (given.data_type() == DataType::kOpaque) {
    OpaqueToBytes(of_bytes.emplace(given));
  }
  const Collective& collective = of_bytes.has_value() ? *of_bytes : given;
  Fingerprint print;
  print.description = collective.Describe();
  auto& common = print.common;
  common["op"] = std::string(CollectiveKindName(collective.kind));
  common["sequence"] = absl::StrCat(collective.sequence);
  if (const Tensor* tensor = collective.first_tensor(); tensor != nullptr) {
    common["dtype"] = std::string(DataTypeName(tensor->data_type()));
    common["device"] = std::string(DeviceTypeName(tensor->device().type));
  }
  const Collective::Tensors* const list = collective.common();
  if (list != nullptr && !list->empty()) common["shape"] = FormatShapes(*list);
  if (collective.opaque_bytes > 0) {
    common["element bytes"] = absl::StrCat(collective.opaque_bytes);
  }
  if (!collective.parts.empty()) {
    common["coalesced sizes"] = absl::StrJoin(collective.parts, ",");
  }
  if (IsReduction(collective.kind)) {
    common["reduce op"] = std::string(ReduceOpName(collective.reduce_op));
    if (collective.reduce_op == ReduceOp::kUser) {
      common["commutative"] =
          collective.function.options().is_commutative ? "yes" : "no";
    }
  }
  if (IsRooted(collective.kind)) common["root"] = absl::StrCat(collective.root);
  if (IsAllToAll(collective.kind)) {
    print.given =
        PartCounts(collective.inputs, collective.input_splits, world_size);
    print.taken =
        PartCounts(collective.outputs, collective.output_splits, world_size);
  }
  return print;
}

Fingerprint MakeRefusal(const Collective& collective, absl::string_view why) {
  Fingerprint print;
  print.description = collective.Describe();
  print.common["refused"] = base::Escape(why);
  return print;
}

Status Compare(absl::Span<const Fingerprint> fingerprints) {
  const std::optional<base::Mismatch> found = base::FindMismatch(fingerprints);
  if (!found.has_value()) return OkStatus();
  Status status = InvalidArgumentError(found->text);
  SetCulpritRanks(status, found->culprits);
  return status;
}

}  // namespace muster::dataplane
