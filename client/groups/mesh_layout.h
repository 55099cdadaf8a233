// The index arithmetic of device meshes: which ranks a dimension connects. Pure
// functions.

#ifndef MUSTER_CLIENT_GROUPS_MESH_LAYOUT_H_
#define MUSTER_CLIENT_GROUPS_MESH_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "muster/base/status.h"

namespace muster::internal {

// The root mesh numbers its positions 0 to n-1, row-major. A dimension of the
// root, or of a mesh made from it, is a sequence of positions that nested loops
// generate, the outermost first, each with `size` steps of `stride` positions.
// A dimension of the root is one loop. A dimension that was flattened from
// non-adjacent dimensions has several loops.
struct MeshLoop {
  int64_t size = 1;
  int64_t stride = 1;

  bool operator==(const MeshLoop&) const = default;
};

class MeshDim {
 public:
  MeshDim() = default;
  // Merges adjacent loops where possible, so that equal sequences compare
  // equal.
  explicit MeshDim(const std::vector<MeshLoop>& loops);

  const std::vector<MeshLoop>& loops() const { return loops_; }
  int64_t size() const;

  // Returns the coordinate of `place` in this dimension: its index in its
  // sequence.
  int64_t ComputeCoordinate(int64_t place) const;

  bool operator==(const MeshDim&) const = default;

 private:
  std::vector<MeshLoop> loops_;
};

// Returns the dimensions of a root mesh of this shape.
std::vector<MeshDim> RowMajor(absl::Span<const int64_t> shape);

// Returns one dimension that spans `dims`, the first outermost.
MeshDim Flatten(absl::Span<const MeshDim> dims);

// Divides `dim` into dimensions of these sizes, the first outermost.
// Errors: kInvalidArgument (the product of the sizes is not its size, or they
// cut across the dimensions that it was flattened from).
StatusOr<std::vector<MeshDim>> Unflatten(const MeshDim& dim,
                                         absl::Span<const int64_t> sizes);

// Returns the positions of the sequence that begins at position 0.
std::vector<int64_t> ComputeOffsets(const MeshDim& dim);

// Whether two different coordinates along `dims` are the same position.
bool Overlap(absl::Span<const MeshDim> dims);

// Returns all sequences of `dim` in a root mesh of `places` positions, by their
// first position. Each position is in exactly one.
std::vector<std::vector<int64_t>> ComputeWalks(const MeshDim& dim,
                                               int64_t places);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_MESH_LAYOUT_H_
