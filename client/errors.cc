#include "client/errors.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster {
namespace {

std::vector<int> AllRanks(const std::vector<MemberInfo>& members,
                          const std::vector<RankRange>& others) {
  std::vector<int> ranks;
  for (const MemberInfo& member : members) {
    if (member.rank >= 0) ranks.push_back(member.rank);
  }
  for (const RankRange& range : others) {
    for (int i = 0; i < range.count; ++i) ranks.push_back(range.first + i);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace

struct DistError::Detail {
  absl::Status status;
  std::vector<MemberInfo> culprits;
  std::vector<int> culprit_ranks;
};

DistError::DistError(absl::Status status, std::vector<MemberInfo> culprits,
                     const std::vector<RankRange>& others)
    : std::runtime_error(std::string(status.message())) {
  std::vector<int> ranks = AllRanks(culprits, others);
  detail_ = std::make_shared<const Detail>(
      Detail{std::move(status), std::move(culprits), std::move(ranks)});
}

const absl::Status& DistError::status() const noexcept {
  return detail_->status;
}

const std::vector<MemberInfo>& DistError::culprits() const noexcept {
  return detail_->culprits;
}

const std::vector<int>& DistError::culprit_ranks() const noexcept {
  return detail_->culprit_ranks;
}

}  // namespace muster
