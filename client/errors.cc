#include "muster/errors.h"

#include <execinfo.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/debugging/symbolize.h"
#include "absl/strings/str_cat.h"

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

// Returns the text of what(): the message and, if the environment asks for it,
// the stack of the throwing thread.
std::string ToText(const Status& status) {
  std::string text(status.message());
  const char* const wanted = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  if (wanted == nullptr || std::string_view(wanted) != "1") return text;
  std::array<void*, 64> frames;
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  absl::StrAppend(&text, "\nC++ stack (most recent call first):");
  for (int i = 1; i < count; ++i) {
    char name[1024] = "(unknown)";
    absl::Symbolize(frames[i], name, sizeof(name));
    absl::StrAppend(&text, "\nframe #", i - 1, ": ", name, " (",
                    absl::Hex(reinterpret_cast<uintptr_t>(frames[i])), ")");
  }
  return text;
}

}  // namespace

struct DistError::Detail {
  Status status;
  std::vector<MemberInfo> culprits;
  std::vector<int> culprit_ranks;
};

DistError::DistError(Status status, std::vector<MemberInfo> culprits,
                     const std::vector<RankRange>& others)
    : std::runtime_error(ToText(status)) {
  std::vector<int> ranks = AllRanks(culprits, others);
  detail_ = std::make_shared<const Detail>(
      Detail{std::move(status), std::move(culprits), std::move(ranks)});
}

const Status& DistError::status() const noexcept { return detail_->status; }

const std::vector<MemberInfo>& DistError::culprits() const noexcept {
  return detail_->culprits;
}

const std::vector<int>& DistError::culprit_ranks() const noexcept {
  return detail_->culprit_ranks;
}

}  // namespace muster
