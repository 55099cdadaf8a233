#include "client/groups/mesh_layout.h"

#include <cstdint>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "muster/base/status.h"

namespace muster::internal {
namespace {

Status CannotUnflatten(const MeshDim& dim, absl::Span<const int64_t> sizes,
                       absl::string_view why) {
  return InvalidArgumentError(
      absl::StrCat("a mesh dimension of ", dim.size(),
                   " ranks cannot be unflattened to sizes [",
                   absl::StrJoin(sizes, ", "), "]: ", why));
}

}  // namespace

MeshDim::MeshDim(const std::vector<MeshLoop>& loops) {
  for (const MeshLoop& loop : loops) {
    if (loop.size == 1) continue;
    if (!loops_.empty() && loops_.back().stride == loop.size * loop.stride) {
      loops_.back() = {loops_.back().size * loop.size, loop.stride};
    } else {
      loops_.push_back(loop);
    }
  }
}

int64_t MeshDim::size() const {
  int64_t size = 1;
  for (const MeshLoop& loop : loops_) size *= loop.size;
  return size;
}

int64_t MeshDim::ComputeCoordinate(int64_t place) const {
  int64_t coordinate = 0;
  for (const MeshLoop& loop : loops_) {
    coordinate = coordinate * loop.size + place / loop.stride % loop.size;
  }
  return coordinate;
}

std::vector<MeshDim> RowMajor(absl::Span<const int64_t> shape) {
  std::vector<MeshDim> dims(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    dims[i] = MeshDim({{shape[i], stride}});
    stride *= shape[i];
  }
  return dims;
}

MeshDim Flatten(absl::Span<const MeshDim> dims) {
  std::vector<MeshLoop> loops;
  for (const MeshDim& dim : dims) {
    loops.insert(loops.end(), dim.loops().begin(), dim.loops().end());
  }
  return MeshDim(loops);
}

StatusOr<std::vector<MeshDim>> Unflatten(const MeshDim& dim,
                                         absl::Span<const int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    if (size < 1) return CannotUnflatten(dim, sizes, "each must be positive");
    if (__builtin_mul_overflow(product, size, &product)) product = 0;
  }
  if (product != dim.size()) {
    return CannotUnflatten(dim, sizes, "their product must equal it");
  }
  // From the innermost loop outwards: each size takes its part of them.
  std::vector<MeshLoop> left = dim.loops();
  std::vector<MeshDim> result(sizes.size());
  for (size_t i = sizes.size(); i-- > 0;) {
    std::vector<MeshLoop> taken;
    for (int64_t wanted = sizes[i]; wanted > 1;) {
      MeshLoop& inner = left.back();
      const int64_t part = std::gcd(wanted, inner.size);
      if (part != wanted && part != inner.size) {
        return CannotUnflatten(
            dim, sizes, "they cut across the dimensions that it is made of");
      }
      taken.insert(taken.begin(), {part, inner.stride});
      wanted /= part;
      inner = {inner.size / part, inner.stride * part};
      if (inner.size == 1) left.pop_back();
    }
    result[i] = MeshDim(taken);
  }
  return result;
}

std::vector<int64_t> ComputeOffsets(const MeshDim& dim) {
  std::vector<int64_t> offsets = {0};
  for (const MeshLoop& loop : dim.loops()) {
    std::vector<int64_t> next;
    next.reserve(offsets.size() * static_cast<size_t>(loop.size));
    for (const int64_t offset : offsets) {
      for (int64_t i = 0; i < loop.size; ++i) {
        next.push_back(offset + i * loop.stride);
      }
    }
    offsets = std::move(next);
  }
  return offsets;
}

bool Overlap(absl::Span<const MeshDim> dims) {
  const std::vector<int64_t> offsets = ComputeOffsets(Flatten(dims));
  const std::set<int64_t> distinct(offsets.begin(), offsets.end());
  return distinct.size() < offsets.size();
}

std::vector<std::vector<int64_t>> ComputeWalks(const MeshDim& dim,
                                               int64_t places) {
  const std::vector<int64_t> offsets = ComputeOffsets(dim);
  std::vector<bool> visited(static_cast<size_t>(places));
  std::vector<std::vector<int64_t>> walks;
  // A sequence begins at the first place that none has visited.
  for (int64_t start = 0; start < places; ++start) {
    if (visited[static_cast<size_t>(start)]) continue;
    std::vector<int64_t>& walk = walks.emplace_back();
    walk.reserve(offsets.size());
    for (const int64_t offset : offsets) {
      walk.push_back(start + offset);
      visited[static_cast<size_t>(start + offset)] = true;
    }
  }
  return walks;
}

}  // namespace muster::internal
