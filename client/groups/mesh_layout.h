// The index arithmetic of device meshes: which ranks a dimension connects. Pure
// functions.

#ifndef MUSTER_CLIENT_GROUPS_MESH_LAYOUT_H_
#define MUSTER_CLIENT_GROUPS_MESH_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"

namespace muster::internal {

// The root mesh numbers its positions 0 to n-1, row-major. A dimension of it,
// or of a mesh made from it, is a walk over positions: nested loops, the
// outermost first, each with `size` steps of `stride` positions. A dimension of
// the root is one loop. A dimension that was flattened from non-adjacent
// dimensions is several loops.
struct MeshLoop {
  int64_t size = 1;
  int64_t stride = 1;

  bool operator==(const MeshLoop&) const = default;
};

class MeshDim {
 public:
  MeshDim() = default;
  // Loops are merged where they can be, so that equal walks compare as equal.
  explicit MeshDim(const std::vector<MeshLoop>& loops);

  const std::vector<MeshLoop>& loops() const { return loops_; }
  int64_t size() const;

  // How far the walk is when it comes to `place`, or to the place that it
  // shares all the other dimensions with.
  int64_t CoordinateOf(int64_t place) const;

  bool operator==(const MeshDim&) const = default;

 private:
  std::vector<MeshLoop> loops_;
};

// The dimensions of a root mesh of this shape.
std::vector<MeshDim> RowMajor(absl::Span<const int64_t> shape);

// One walk over all of `dims`, the first outermost.
MeshDim Flatten(absl::Span<const MeshDim> dims);

// `dim` as several dimensions of these sizes, the first outermost.
// Errors: kInvalidArgument (the product of the sizes is not its size, or they
// cut across what it was flattened from).
StatusOr<std::vector<MeshDim>> Unflatten(const MeshDim& dim,
                                         absl::Span<const int64_t> sizes);

// The places of the walk that begins at place 0.
std::vector<int64_t> OffsetsOf(const MeshDim& dim);

// Whether two of `dims` go over the same places.
bool Overlap(absl::Span<const MeshDim> dims);

// Every walk of `dim` over a root mesh of `places`, in the order in which they
// begin: each place is in exactly one.
std::vector<std::vector<int64_t>> WalksOf(const MeshDim& dim, int64_t places);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_MESH_LAYOUT_H_
