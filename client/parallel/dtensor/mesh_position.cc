#include "client/parallel/dtensor/mesh_position.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
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

// FNV-1a, 64 bits.
uint64_t ComputeHash(const std::string& bytes) {
  uint64_t hash = 14695981039346656037U;
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<uint8_t>(byte)) * 1099511628211U;
  }
  return hash;
}

// Whether `mine` is the same on all ranks, and no rank objects.
bool IsSameOnAllRanks(const MeshPosition& mesh, const std::string& mine,
                      bool objects) {
  constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();
  const uint64_t hash = ComputeHash(mine);
  std::array<uint64_t, 2> bounds = {hash, ~hash};
  if (objects) bounds = {kAll, kAll};
  for (size_t dim = 0; dim < mesh.shape().size(); ++dim) {
    mesh.group(dim)->AllReduce(
        Tensor(bounds.data(), {static_cast<int64_t>(bounds.size())}),
        {.op = ReduceOp::kMax});
  }
  return bounds[0] == ~bounds[1];
}

}  // namespace

MeshPosition::MeshPosition(const DeviceMesh& mesh)
    : shape_(mesh.shape()), is_cuda_(mesh.device_type() == "cuda") {
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
      is_member_(true),
      is_cuda_(false) {
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

void CheckAgreement(const MeshPosition& mesh, const char* function,
                    const Status& own,
                    const std::vector<AgreedArgument>& arguments) {
  std::string mine;
  AppendBytes(mine, function);
  AppendBytes(mine, std::to_string(static_cast<int>(own.code())));
  AppendBytes(mine, own.message());
  for (const auto& [name, value] : arguments) {
    AppendBytes(mine, name);
    AppendBytes(mine, value);
  }
  // A group on CUDA devices alone reduces no CPU tensors.
  if (!mesh.is_cuda() && IsSameOnAllRanks(mesh, mine, !own.ok())) return;

  const std::vector<std::string> all = GatherOverMesh(mesh, mine);
  std::vector<std::vector<std::string>> fields;
  for (const std::string& one : all) fields.push_back(SplitBytes(one));
  for (size_t i = 0; i < all.size(); ++i) {
    const auto code = StatusCode(std::stoi(fields[i][1]));
    if (code == StatusCode::kOk) continue;
    Throw(ErrorSource::kControl,
          Status(code, absl::StrCat(fields[i][0], " on rank ", mesh.ranks()[i],
                                    ": ", fields[i][2])));
  }
  for (size_t i = 1; i < all.size(); ++i) {
    if (fields[i][0] != fields[0][0]) {
      Invalid(absl::StrCat("rank ", mesh.ranks()[0], " calls ", fields[0][0],
                           ", rank ", mesh.ranks()[i], " ", fields[i][0]));
    }
    for (size_t k = 3; k + 1 < fields[0].size(); k += 2) {
      if (fields[i][k + 1] == fields[0][k + 1]) continue;
      Invalid(absl::StrCat(fields[0][0], ": argument ", fields[0][k], " is ",
                           fields[0][k + 1], " on rank ", mesh.ranks()[0],
                           " and ", fields[i][k + 1], " on rank ",
                           mesh.ranks()[i]));
    }
  }
}

}  // namespace muster::internal
