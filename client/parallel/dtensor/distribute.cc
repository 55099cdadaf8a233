#include "client/parallel/dtensor/distribute.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/parallel/agreement/agreement.h"
#include "muster/base/status.h"

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
  return CatchError([&] {
    CheckLayout({.shape = Shape(full.shape().begin(), full.shape().end()),
                 .placements = placements},
                mesh.shape());
  });
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

// This rank's sends and receives, dimension by dimension of the mesh: the first
// rank of each line gives the others of the line their parts of its own part.
class Distribution {
 public:
  // Allocates memory for all of it, so that ranks can agree to go on. Throws
  // DistError (kResourceExhausted).
  Distribution(const MeshPosition& mesh, const TensorLayout& layout)
      : mesh_(mesh), type_(layout.data_type) {
    bool owns = !IsFirst(mesh);
    std::vector<Placement> placements(layout.placements.size());
    for (size_t dim = 0; dim < placements.size(); ++dim) {
      Line line = {.dim = dim, .is_first = mesh.coordinate()[dim] == 0};
      if (HasData(mesh, dim)) {
        line.box = ComputeShardBox(layout.shape, placements, mesh.shape(),
                                   mesh.coordinate());
      }
      placements[dim] = layout.placements[dim];
      if (!HasData(mesh, dim) || mesh.shape()[dim] == 1) continue;
      if (placements[dim].is_shard()) {
        for (int64_t i = 0; i < mesh.shape()[dim]; ++i) {
          line.parts.push_back(ComputeShardBox(layout.shape, placements,
                                               mesh.shape(),
                                               mesh.CoordinateAlong(dim, i)));
        }
      }
      Allocate(line);
      owns = owns || placements[dim].is_shard();
      lines_.push_back(std::move(line));
    }
    if (!owns) copy_ = AllocateTensor(type_, layout.shape);
  }

  // `full` is the first rank's.
  OwnedTensor Run(const Tensor& full) {
    OwnedTensor local = {.tensor = full};
    for (Line& line : lines_) {
      local =
          line.parts.empty() ? Broadcast(line, local) : Scatter(line, local);
      line = {};
    }
    if (copy_.memory == nullptr) return local;
    std::copy_n(static_cast<const std::byte*>(full.data()), full.bytes(),
                static_cast<std::byte*>(copy_.tensor.data()));
    return copy_;
  }

 private:
  struct Line {
    size_t dim = 0;
    // Whether this rank is its first.
    bool is_first = false;
    // The part of its first rank.
    ShardBox box = {};
    // The parts of its ranks; empty: all get the whole.
    std::vector<ShardBox> parts = {};
    // This rank's part, in memory of the first part's size, the largest.
    OwnedTensor received = {};
    // The first rank's: all parts, one after the other, each in as many
    // elements as the first has.
    OwnedTensor packed = {};
  };

  void Allocate(Line& line) const {
    if (line.parts.empty()) {
      if (line.is_first) return;
      line.received = AllocateTensor(type_, line.box.lengths);
      return;
    }
    const int64_t most = line.parts.front().element_count();
    line.received = AllocateTensor(type_, {most});
    if (line.is_first && most > 0) {
      line.packed = AllocateTensor(
          type_, {static_cast<int64_t>(line.parts.size()), most});
    }
  }

  OwnedTensor Broadcast(const Line& line, const OwnedTensor& data) const {
    OwnedTensor whole = line.is_first ? data : line.received;
    mesh_.group(line.dim)->Broadcast(
        whole.tensor, {}, {.group_src = mesh_.GroupRank(line.dim, 0)});
    return whole;
  }

  OwnedTensor Scatter(const Line& line, const OwnedTensor& data) const {
    const auto own = static_cast<size_t>(mesh_.coordinate()[line.dim]);
    OwnedTensor part = line.received;
    if (part.tensor.element_count() > 0) {
      std::vector<Tensor> list;
      if (line.is_first) list = Pack(line, data);
      mesh_.group(line.dim)->Scatter(
          part.tensor, list, {}, {.group_src = mesh_.GroupRank(line.dim, 0)});
    }
    part.tensor = Tensor(part.tensor.data(), type_, line.parts[own].lengths);
    return part;
  }

  // Returns the list by rank in the group.
  std::vector<Tensor> Pack(const Line& line, const OwnedTensor& data) const {
    const size_t element_bytes = dataplane::DataTypeBytes(type_);
    const int64_t most = line.parts.front().element_count();
    auto* to = static_cast<std::byte*>(line.packed.tensor.data());
    // The last parts do not fill their places.
    std::memset(to, 0, line.packed.tensor.bytes());
    std::vector<Tensor> list(line.parts.size());
    for (size_t i = 0; i < line.parts.size(); ++i) {
      CopyBox(data.tensor.data(), line.box, to, line.parts[i], line.parts[i],
              element_bytes);
      list[static_cast<size_t>(mesh_.GroupRank(
          line.dim, static_cast<int64_t>(i)))] = Tensor(to, type_, {most});
      to += static_cast<size_t>(most) * element_bytes;
    }
    return list;
  }

  const MeshPosition& mesh_;
  const DataType type_;
  std::vector<Line> lines_;
  // For the first rank, if it would keep the tensor of the caller.
  OwnedTensor copy_;
};

}  // namespace

OwnedTensor RunDistribute(const MeshPosition& mesh, const Tensor& full,
                          TensorLayout& layout) {
  constexpr auto kFunction = "DTensor::Distribute";
  Agreement agreement(kFunction);
  agreement.AddFault(CheckFull(mesh, full, layout.placements));
  agreement.Add("argument placements", ToText(layout.placements));
  agreement.Check(mesh.groups());
  ShareShape(mesh, full, layout);
  std::optional<Distribution> distribution;
  Agreement memory(kFunction);
  memory.AddFault(CatchError([&] { distribution.emplace(mesh, layout); }));
  memory.Check(mesh.groups());
  return distribution->Run(full);
}

}  // namespace muster::internal
