// Sets of ranks as ranges: short where ranks are consecutive.

#ifndef MUSTER_COORDINATOR_CORE_RANK_RANGES_H_
#define MUSTER_COORDINATOR_CORE_RANK_RANGES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/ids.h"

namespace muster::coordinator::core {

// Ranges of ranks in ascending order, two numbers each: the number of ranks
// between the previous range's end and this range, and the number of ranks in
// it. The protocol has the same form.
using RankRanges = std::vector<uint32_t>;

// Converts the ascending ranks of a container.
template <typename Ranks>
RankRanges ToRanges(const Ranks& ranks) {
  RankRanges ranges;
  int32_t end = 0;  // of the last range
  for (const Rank rank : ranks) {
    if (ranges.empty() || rank.value() != end) {
      ranges.push_back(static_cast<uint32_t>(rank.value() - end));
      ranges.push_back(0);
    }
    ++ranges.back();
    end = rank.value() + 1;
  }
  return ranges;
}

// Calls `visit` with each rank, in ascending order.
template <typename Visit>
void ForEachRank(const RankRanges& ranges, Visit visit) {
  int32_t end = 0;
  for (size_t i = 0; i + 1 < ranges.size(); i += 2) {
    const int32_t first = end + static_cast<int32_t>(ranges[i]);
    end = first + static_cast<int32_t>(ranges[i + 1]);
    for (int32_t rank = first; rank < end; ++rank) visit(Rank(rank));
  }
}

// `0-4, 6, 8-19`; if there are more than `count_max` ranges, ends in `, ...`.
std::string RangesText(const RankRanges& ranges, size_t count_max);

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_RANK_RANGES_H_
