#include "client/parallel/checkpoint/box.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"

namespace muster::internal {
namespace {

int64_t FindEnd(const Box& box, size_t dimension) {
  return box.offsets[dimension] + box.lengths[dimension];
}

// Returns the parts of `box` outside `hole`, a part of it.
std::vector<Box> Subtract(Box box, const Box& hole) {
  std::vector<Box> rest;
  for (size_t d = 0; d < box.offsets.size(); ++d) {
    if (hole.offsets[d] > box.offsets[d]) {
      rest.push_back(box);
      rest.back().lengths[d] = hole.offsets[d] - box.offsets[d];
    }
    if (FindEnd(hole, d) < FindEnd(box, d)) {
      rest.push_back(box);
      rest.back().offsets[d] = FindEnd(hole, d);
      rest.back().lengths[d] = FindEnd(box, d) - FindEnd(hole, d);
    }
    box.offsets[d] = hole.offsets[d];
    box.lengths[d] = hole.lengths[d];
  }
  return rest;
}

// The dimension in which the boxes begin at the most different offsets.
size_t FindMostDivided(std::span<const Box> boxes) {
  size_t best = 0;
  size_t most = 0;
  for (size_t d = 0; d < boxes.front().offsets.size(); ++d) {
    std::set<int64_t> begins;
    for (const Box& box : boxes) begins.insert(box.offsets[d]);
    if (begins.size() > most) {
      most = begins.size();
      best = d;
    }
  }
  return best;
}

}  // namespace

Box MakeWholeBox(std::span<const int64_t> shape) {
  return {std::vector<int64_t>(shape.size(), 0),
          std::vector<int64_t>(shape.begin(), shape.end())};
}

int64_t ComputeVolume(std::span<const int64_t> lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{1},
                         std::multiplies<>());
}

bool IsPossible(std::span<const int64_t> shape, size_t element_bytes) {
  int64_t left =
      std::numeric_limits<int64_t>::max() / static_cast<int64_t>(element_bytes);
  for (const int64_t length : shape) {
    if (length < 0) return false;
    if (length > 0) left /= length;
  }
  return left > 0;
}

bool IsInside(const Box& box, std::span<const int64_t> shape) {
  if (box.offsets.size() != shape.size() ||
      box.lengths.size() != shape.size()) {
    return false;
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t begin = box.offsets[d];
    if (begin < 0 || box.lengths[d] < 0 || begin > shape[d] ||
        box.lengths[d] > shape[d] - begin) {
      return false;
    }
  }
  return true;
}

std::string ToText(const Box& box) {
  std::string text = "[";
  for (size_t d = 0; d < box.offsets.size(); ++d) {
    absl::StrAppend(&text, d == 0 ? "" : ",", box.offsets[d], ":",
                    FindEnd(box, d));
  }
  return text + "]";
}

std::optional<Box> Intersect(const Box& a, const Box& b) {
  Box both = a;
  for (size_t d = 0; d < a.offsets.size(); ++d) {
    both.offsets[d] = std::max(a.offsets[d], b.offsets[d]);
    both.lengths[d] = std::min(FindEnd(a, d), FindEnd(b, d)) - both.offsets[d];
    if (both.lengths[d] <= 0) return std::nullopt;
  }
  return both;
}

std::optional<std::pair<size_t, size_t>> FindOverlap(
    std::span<const Box> boxes) {
  if (boxes.empty()) return std::nullopt;
  if (boxes.front().offsets.empty()) {
    return boxes.size() > 1 ? std::optional(std::pair<size_t, size_t>(0, 1))
                            : std::nullopt;
  }
  // Only boxes whose ranges meet in this dimension are compared, so that a
  // thousand parts of one dimension are not a million comparisons.
  const size_t swept = FindMostDivided(boxes);
  std::vector<size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return boxes[a].offsets[swept] < boxes[b].offsets[swept];
  });
  for (size_t i = 0; i < order.size(); ++i) {
    for (size_t j = i + 1; j < order.size(); ++j) {
      if (boxes[order[j]].offsets[swept] >= FindEnd(boxes[order[i]], swept)) {
        break;
      }
      if (Intersect(boxes[order[i]], boxes[order[j]]).has_value()) {
        return std::minmax(order[i], order[j]);
      }
    }
  }
  return std::nullopt;
}

std::optional<Box> FindGap(const Box& whole, std::span<const Box> boxes) {
  int64_t covered = 0;
  for (const Box& box : boxes) covered += ComputeVolume(box.lengths);
  if (covered == ComputeVolume(whole.lengths)) return std::nullopt;
  std::vector<Box> left = {whole};
  for (const Box& box : boxes) {
    std::vector<Box> still_left;
    for (const Box& part : left) {
      const std::optional<Box> both = Intersect(part, box);
      if (!both.has_value()) {
        still_left.push_back(part);
        continue;
      }
      for (Box& rest : Subtract(part, *both)) {
        still_left.push_back(std::move(rest));
      }
    }
    left = std::move(still_left);
  }
  return *std::min_element(left.begin(), left.end());
}

}  // namespace muster::internal
