#include "muster/placement.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/control/throw.h"

namespace muster {

using internal::Invalid;

// So that the bytes of a plan's steps, and their sum, are no overflow.
constexpr int64_t kElementsMax = int64_t{1} << 52;

Placement Shard(int dim) {
  Placement placement;
  placement.kind_ = Placement::Kind::kShard;
  placement.dim_ = dim;
  return placement;
}

Placement Replicate() { return {}; }

Placement Partial(ReduceOp op) {
  Placement placement;
  placement.kind_ = Placement::Kind::kPartial;
  placement.op_ = op;
  return placement;
}

std::string Placement::ToText() const {
  switch (kind_) {
    case Kind::kReplicate:
      return "R";
    case Kind::kShard:
      return absl::StrCat("S(", dim_, ")");
    case Kind::kPartial:
      return absl::StrCat("P(", dataplane::ReduceOpName(op_), ")");
  }
  return "?";
}

std::string ToText(const std::vector<Placement>& placements) {
  return absl::StrCat("(",
                      absl::StrJoin(placements, ", ",
                                    [](std::string* out, const Placement& one) {
                                      out->append(one.ToText());
                                    }),
                      ")");
}

int64_t ShardBox::element_count() const {
  int64_t count = 1;
  for (const int64_t length : lengths) count *= length;
  return count;
}

std::string ShardBox::ToText() const {
  std::string text = "[";
  for (size_t i = 0; i < lengths.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", offsets[i], ":",
                    offsets[i] + lengths[i]);
  }
  return text + "]";
}

std::string TensorLayout::ToText() const {
  return absl::StrCat(dataplane::DataTypeName(data_type), "[",
                      absl::StrJoin(shape, ","), "] ",
                      muster::ToText(placements));
}

void CheckLayout(const TensorLayout& layout,
                 const std::vector<int64_t>& mesh_shape) {
  const std::vector<Placement>& placements = layout.placements;
  if (placements.size() != mesh_shape.size()) {
    Invalid(absl::StrCat("argument placements: ", ToText(placements), " has ",
                         placements.size(), " placements, the mesh has ",
                         mesh_shape.size(), " dimensions"));
  }
  for (const int64_t size : mesh_shape) {
    if (size > 0) continue;
    Invalid(absl::StrCat("argument mesh_shape: (",
                         absl::StrJoin(mesh_shape, ", "),
                         ") has a dimension without ranks"));
  }
  int64_t elements = 1;
  for (const int64_t size : layout.shape) {
    const int64_t counted = std::max<int64_t>(size, 1);
    if (size >= 0 && elements <= kElementsMax / counted) {
      elements *= counted;
      continue;
    }
    Invalid(absl::StrCat("argument shape: ",
                         size < 0 ? "negative dimension" : "too many elements",
                         " in [", absl::StrJoin(layout.shape, ","), "]"));
  }
  std::optional<ReduceOp> op;
  for (const Placement& placement : placements) {
    if (placement.is_shard() &&
        (placement.dim() < 0 ||
         placement.dim() >= static_cast<int>(layout.shape.size()))) {
      Invalid(absl::StrCat("argument placements: ", placement.ToText(),
                           " of a tensor with ", layout.shape.size(),
                           " dimensions"));
    }
    if (!placement.is_partial()) continue;
    if (placement.op() > ReduceOp::kProduct) {
      Invalid(absl::StrCat("argument placements: ", placement.ToText(),
                           " is not one of sum, avg, min, max, product"));
    }
    if (op.has_value() && *op != placement.op()) {
      Invalid(absl::StrCat("argument placements: ", ToText(placements),
                           " has partial placements of different operations"));
    }
    op = placement.op();
  }
}

ShardBox ComputeShardBox(const std::vector<int64_t>& shape,
                         const std::vector<Placement>& placements,
                         const std::vector<int64_t>& mesh_shape,
                         const std::vector<int64_t>& coordinate) {
  CheckLayout({.shape = shape, .placements = placements}, mesh_shape);
  bool is_inside = coordinate.size() == mesh_shape.size();
  for (size_t i = 0; is_inside && i < mesh_shape.size(); ++i) {
    is_inside = coordinate[i] >= 0 && coordinate[i] < mesh_shape[i];
  }
  if (!is_inside) {
    Invalid(absl::StrCat(
        "argument coordinate: (", absl::StrJoin(coordinate, ", "),
        ") is not in a mesh of shape (", absl::StrJoin(mesh_shape, ", "), ")"));
  }
  ShardBox box = {.offsets = std::vector<int64_t>(shape.size(), 0),
                  .lengths = shape};
  for (size_t i = 0; i < mesh_shape.size(); ++i) {
    if (!placements[i].is_shard()) continue;
    const auto dim = static_cast<size_t>(placements[i].dim());
    const int64_t length = box.lengths[dim];
    const int64_t chunk = (length + mesh_shape[i] - 1) / mesh_shape[i];
    const int64_t begin = std::min(chunk * coordinate[i], length);
    box.offsets[dim] += begin;
    box.lengths[dim] = std::min(chunk, length - begin);
  }
  return box;
}

}  // namespace muster
