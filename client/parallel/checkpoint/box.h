// Boxes of a tensor: a range of indices in each dimension.

#ifndef MUSTER_CLIENT_PARALLEL_CHECKPOINT_BOX_H_
#define MUSTER_CLIENT_PARALLEL_CHECKPOINT_BOX_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace muster::internal {

struct Box {
  std::vector<int64_t> offsets = {};
  std::vector<int64_t> lengths = {};

  friend auto operator<=>(const Box&, const Box&) = default;
};

Box MakeWholeBox(std::span<const int64_t> shape);

// Number of elements; 1 for a box of no dimensions.
int64_t ComputeVolume(std::span<const int64_t> lengths);

// Whether a tensor of this shape can exist: its bytes fit into 63 bits.
bool IsPossible(std::span<const int64_t> shape, size_t element_bytes);

// Whether the box lies in a tensor of this shape.
bool IsInside(const Box& box, std::span<const int64_t> shape);

// "[0:4,8:16]".
std::string ToText(const Box& box);

// Nullopt if they have no element in common.
std::optional<Box> Intersect(const Box& a, const Box& b);

// The indices of two of the boxes that have an element in common. The boxes are
// not empty.
std::optional<std::pair<size_t, size_t>> FindOverlap(
    std::span<const Box> boxes);

// A part of `whole` that is in none of the boxes, which do not overlap and lie
// in `whole`.
std::optional<Box> FindGap(const Box& whole, std::span<const Box> boxes);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_CHECKPOINT_BOX_H_
