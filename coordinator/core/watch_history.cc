#include "coordinator/core/watch_history.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster::coordinator::core {
namespace {

// Of one reply, past which it ends with the revision that it is in.
constexpr size_t kReplyChangesMax = 1024;
constexpr int64_t kReplyBytesMax = 1 << 20;

}  // namespace

bool WatchSelector::Matches(absl::string_view changed) const {
  return prefix ? absl::StartsWith(changed, key) : changed == key;
}

int64_t WatchHistory::BytesOf(const StoreChange& change) {
  return static_cast<int64_t>(
      change.key.size() + (change.value == nullptr ? 0 : change.value->size()));
}

void WatchHistory::Add(StoreChange change) {
  const int64_t newest = change.revision;
  bytes_ += BytesOf(change);
  changes_.push_back(std::make_shared<const StoreChange>(std::move(change)));
  // The rest of a revision goes with its beginning.
  while (
      changes_.front()->revision < newest &&
      (static_cast<int64_t>(changes_.size()) > limits_.watch_history_changes ||
       bytes_ > limits_.watch_history_bytes ||
       changes_.front()->revision == forgotten_through_)) {
    forgotten_through_ = changes_.front()->revision;
    bytes_ -= BytesOf(*changes_.front());
    changes_.pop_front();
  }
}

absl::Status WatchHistory::CheckComplete(int64_t after, int64_t newest) const {
  if (after < forgotten_through_) {
    return absl::OutOfRangeError(absl::StrCat(
        "watch: revision ", after,
        " is no longer in the history, the oldest to go on from is ",
        forgotten_through_));
  }
  if (after > newest) {
    return absl::OutOfRangeError(
        absl::StrCat("watch: revision ", after,
                     " is ahead of the store, which is at ", newest));
  }
  return absl::OkStatus();
}

WatchReply WatchHistory::Collect(const WatchSelector& selector, int64_t after,
                                 int64_t newest) const {
  WatchReply reply;
  reply.revision = newest;
  int64_t bytes = 0;
  auto it = std::upper_bound(changes_.begin(), changes_.end(), after,
                             [](int64_t revision, const auto& change) {
                               return revision < change->revision;
                             });
  for (; it != changes_.end(); ++it) {
    const StoreChange& change = **it;
    const bool full =
        reply.changes.size() >= kReplyChangesMax || bytes >= kReplyBytesMax;
    if (full && change.revision != reply.changes.back()->revision) {
      reply.revision = reply.changes.back()->revision;
      break;
    }
    if (!selector.Matches(change.key)) continue;
    bytes += BytesOf(change);
    reply.changes.push_back(*it);
  }
  return reply;
}

}  // namespace muster::coordinator::core
