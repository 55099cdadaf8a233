#include "client/parallel/dtensor/distribute.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/parallel/agreement/agreement.h"
#include "muster/base/status.h"
#include "muster/errors.h"

namespace muster::internal {
namespace {

using Shape = std::vector<int64_t>;

bool IsFirst(const MeshPosition& mesh) {
  return std::all_of(mesh.coordinate().begin(), mesh.coordinate().end(),
                     [](int64_t index) { return index == 0; });
}

// Whether this rank is in a line along `dim` whose first rank has data: all
// later coordinates are 0.
bool HasData(const MeshPosition& mesh, size_t dim) {
  return std::all_of(mesh.coordinate().begin() + static_cast<int64_t>(dim) + 1,
                     mesh.coordinate().end(),
                     [](int64_t index) { return index == 0; });
}

Status CheckFull(const MeshPosition& mesh, const Tensor& full,
                 const std::vector<Placement>& placements) {
  for (const Placement& placement : placements) {
    if (!placement.is_partial()) continue;
    return InvalidArgumentError(
        absl::StrCat("argument placements: ", ToText(placements),
                     ", but a tensor is distributed by Shard and Replicate"));
  }
  if (!IsFirst(mesh)) return OkStatus();
  const Status valid = full.Validate();
  if (!valid.ok()) {
    return Status(valid.code(),
                  absl::StrCat("argument full: ", valid.message()));
  }
  if (full.data_type() == DataType::kOpaque ||
      full.device().type != DeviceType::kCpu) {
    return UnimplementedError(absl::StrCat("argument full: ", full.Describe(),
                                           " cannot be distributed"));
  }
  try {
    CheckLayout({.shape = Shape(full.shape().begin(), full.shape().end()),
                 .placements = placements},
                mesh.shape());
  } catch (const DistError& error) {
    return error.status();
  }
  return OkStatus();
}

// All ranks get the shape and type of the first one's tensor.
void ShareShape(const MeshPosition& mesh, const Tensor& full,
                TensorLayout& layout) {
  std::string own;
  if (IsFirst(mesh)) {
    own.push_back(static_cast<char>(full.data_type()));
    own.append(reinterpret_cast<const char*>(full.shape().data()),
               full.shape().size_bytes());
  }
  const std::string first = GatherOverMesh(mesh, own).front();
  layout.data_type = DataType(first[0]);
  layout.shape.resize((first.size() - 1) / sizeof(int64_t));
  std::copy_n(first.data() + 1, first.size() - 1,
              reinterpret_cast<char*>(layout.shape.data()));
}

// The parts of a line of ranks, one after the other in a buffer, each in as
// many elements as the first, the largest, has.
class PaddedParts {
 public:
  PaddedParts(const MeshPosition& mesh, size_t dim, const TensorLayout& layout,
              const std::vector<Placement>& placements)
      : mesh_(mesh), dim_(dim), type_(layout.data_type) {
    for (int64_t i = 0; i < mesh.shape()[dim]; ++i) {
      boxes_.push_back(ComputeShardBox(layout.shape, placements, mesh.shape(),
                                       mesh.CoordinateAlong(dim, i)));
    }
  }

  // `data` is the first rank's tensor, with the elements of `box`.
  OwnedTensor Scatter(const OwnedTensor& data, const ShardBox& box) const {
    const int64_t most = boxes_.front().element_count();
    const auto own = static_cast<size_t>(mesh_.coordinate()[dim_]);
    OwnedTensor part = AllocateTensor(type_, {most});
    if (most > 0) {
      OwnedTensor packed;
      std::vector<Tensor> list;
      if (own == 0) list = Pack(data, box, most, packed);
      mesh_.group(dim_)->Scatter(part.tensor, list, {},
                                 {.group_src = mesh_.GroupRank(dim_, 0)});
    }
    part.tensor = Tensor(part.tensor.data(), type_, boxes_[own].lengths);
    return part;
  }

 private:
  // Returns the list by rank in the group.
  std::vector<Tensor> Pack(const OwnedTensor& data, const ShardBox& box,
                           int64_t most, OwnedTensor& packed) const {
    const size_t element_bytes = dataplane::DataTypeBytes(type_);
    packed = AllocateTensor(type_, {static_cast<int64_t>(boxes_.size()), most});
    // The last parts do not fill their places.
    std::memset(packed.tensor.data(), 0, packed.tensor.bytes());
    auto* to = static_cast<std::byte*>(packed.tensor.data());
    std::vector<Tensor> list(boxes_.size());
    for (size_t i = 0; i < boxes_.size(); ++i) {
      CopyBox(data.tensor.data(), box, to, boxes_[i], boxes_[i], element_bytes);
      list[static_cast<size_t>(mesh_.GroupRank(
          dim_, static_cast<int64_t>(i)))] = Tensor(to, type_, {most});
      to += static_cast<size_t>(most) * element_bytes;
    }
    return list;
  }

  const MeshPosition& mesh_;
  const size_t dim_;
  const DataType type_;
  std::vector<ShardBox> boxes_;
};

}  // namespace

OwnedTensor RunDistribute(const MeshPosition& mesh, const Tensor& full,
                          TensorLayout& layout) {
  Agreement agreement("DTensor::Distribute");
  agreement.AddFault(CheckFull(mesh, full, layout.placements));
  agreement.Add("argument placements", ToText(layout.placements));
  agreement.Check(mesh.groups());
  ShareShape(mesh, full, layout);
  OwnedTensor local;
  if (IsFirst(mesh)) local.tensor = full;
  // Dimension by dimension of the mesh: the first rank of each line gives the
  // others of the line their parts of what it has.
  std::vector<Placement> placements(layout.placements.size());
  for (size_t dim = 0; dim < placements.size(); ++dim) {
    if (!HasData(mesh, dim)) {
      placements[dim] = layout.placements[dim];
      continue;
    }
    const ShardBox box = ComputeShardBox(layout.shape, placements, mesh.shape(),
                                         mesh.coordinate());
    placements[dim] = layout.placements[dim];
    if (mesh.shape()[dim] == 1) continue;
    if (placements[dim].is_shard()) {
      local = PaddedParts(mesh, dim, layout, placements).Scatter(local, box);
      continue;
    }
    if (mesh.coordinate()[dim] != 0) {
      local = AllocateTensor(layout.data_type, box.lengths);
    }
    mesh.group(dim)->Broadcast(local.tensor, {},
                               {.group_src = mesh.GroupRank(dim, 0)});
  }
  if (local.memory == nullptr) {
    local = AllocateTensor(layout.data_type, layout.shape);
    std::copy_n(static_cast<const std::byte*>(full.data()), full.bytes(),
                static_cast<std::byte*>(local.tensor.data()));
  }
  return local;
}

}  // namespace muster::internal
