#include "client/parallel/dtensor/mesh_position.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/errors.h"
#include "muster/objects.h"

namespace muster::internal {
namespace {

// Byte strings as one, each after its length.
void AppendBytes(std::string& to, const std::string& bytes) {
  absl::StrAppend(&to, bytes.size(), ":", bytes);
}

std::vector<std::string> SplitBytes(const std::string& from) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < from.size();) {
    const size_t colon = from.find(':', at);
    const size_t size = std::stoull(from.substr(at, colon - at));
    parts.push_back(from.substr(colon + 1, size));
    at = colon + 1 + size;
  }
  return parts;
}

}  // namespace

MeshPosition::MeshPosition(const DeviceMesh& mesh) : shape_(mesh.shape()) {
  const auto coordinate = mesh.GetCoordinate();
  if (!coordinate.has_value()) return;
  is_member_ = true;
  coordinate_ = *coordinate;
  ranks_ = mesh.ranks();
  groups_ = mesh.GetAllGroups();
  int64_t position = 0;
  for (size_t dim = 0; dim < shape_.size(); ++dim) {
    position = position * shape_[dim] + coordinate_[dim];
  }
  int64_t stride = static_cast<int64_t>(ranks_.size());
  for (size_t dim = 0; dim < shape_.size(); ++dim) {
    stride /= shape_[dim];
    std::vector<int> line;
    for (int64_t i = 0; i < shape_[dim]; ++i) {
      const int64_t at = position + (i - coordinate_[dim]) * stride;
      line.push_back(ranks_[static_cast<size_t>(at)]);
    }
    std::vector<int> sorted = line;
    std::sort(sorted.begin(), sorted.end());
    for (int& rank : line) {
      rank = static_cast<int>(
          std::lower_bound(sorted.begin(), sorted.end(), rank) -
          sorted.begin());
    }
    group_ranks_.push_back(std::move(line));
  }
}

MeshPosition::MeshPosition(const std::shared_ptr<ProcessGroup>& group)
    : shape_({group->size()}),
      coordinate_({group->rank()}),
      ranks_(group->ranks()),
      groups_({group}),
      group_ranks_(1),
      is_member_(true) {
  for (int rank = 0; rank < group->size(); ++rank) {
    group_ranks_[0].push_back(rank);
  }
}

std::vector<int64_t> MeshPosition::CoordinateAlong(size_t dim,
                                                   int64_t index) const {
  std::vector<int64_t> coordinate = coordinate_;
  coordinate[dim] = index;
  return coordinate;
}

std::vector<std::string> GatherOverMesh(const MeshPosition& mesh,
                                        const std::string& own) {
  std::string mine;
  AppendBytes(mine, own);
  for (size_t dim = mesh.shape().size(); dim-- > 0;) {
    std::vector<std::string> line;
    AllGatherObject(line, mine, {.group = mesh.group(dim)});
    mine.clear();
    for (int64_t i = 0; i < mesh.shape()[dim]; ++i) {
      mine += line[static_cast<size_t>(mesh.GroupRank(dim, i))];
    }
  }
  return SplitBytes(mine);
}

Status CatchError(const std::function<void()>& check) {
  try {
    check();
  } catch (const DistError& error) {
    return error.status();
  }
  return OkStatus();
}

}  // namespace muster::internal
