#include "coordinator/core/watch_history.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/total_memory.h"

namespace muster::coordinator::core {
namespace {

// Limits of one reply, which ends with the revision that exceeds one of them.
constexpr size_t kReplyChangesMax = 1024;
constexpr int64_t kReplyBytesMax = 1 << 20;

int64_t CountBytes(const StoreChange& change) {
  return static_cast<int64_t>(
      change.key.size() + (change.value == nullptr ? 0 : change.value->size()));
}

// Builds a reply from changes in their order.
class Collector {
 public:
  explicit Collector(int64_t newest) { reply_.revision = newest; }

  // Returns false if the reply is full, which then ends with the previous
  // revision.
  bool Add(const std::shared_ptr<const StoreChange>& change) {
    const bool full =
        reply_.changes.size() >= kReplyChangesMax || bytes_ >= kReplyBytesMax;
    if (full && change->revision != reply_.changes.back()->revision) {
      reply_.revision = reply_.changes.back()->revision;
      return false;
    }
    bytes_ += CountBytes(*change);
    reply_.changes.push_back(change);
    return true;
  }

  WatchReply Take() { return std::move(reply_); }

 private:
  WatchReply reply_;
  int64_t bytes_ = 0;
};

}  // namespace

bool WatchSelector::Matches(absl::string_view changed) const {
  return prefix ? absl::StartsWith(changed, key) : changed == key;
}

void WatchHistory::Add(StoreChange change) {
  const int64_t newest = change.revision;
  if (stored_after_.has_value()) {
    journal_.Change(newest, change.key, /*fresh=*/true);
  }
  bytes_ += CountBytes(change);
  changes_.push_back(std::make_shared<const StoreChange>(std::move(change)));
  // A revision is forgotten as a whole.
  while (
      changes_.front()->revision < newest &&
      (static_cast<int64_t>(changes_.size()) > limits_.watch_history_changes ||
       bytes_ > BytesMax() ||
       changes_.front()->revision == forgotten_through_)) {
    ForgetFirst();
  }
}

void WatchHistory::ForgetFirst() {
  const StoreChange& first = *changes_.front();
  forgotten_through_ = first.revision;
  if (stored_after_.has_value() && first.revision > *stored_after_) {
    journal_.ForgetChange(first.revision, first.key);
  }
  bytes_ -= CountBytes(first);
  changes_.pop_front();
}

void WatchHistory::Replaced(int64_t revision, absl::string_view key) {
  const std::optional<int64_t> after = stored_after();
  if (after.has_value() && revision > *after) {
    journal_.Change(revision, key, /*fresh=*/false);
  }
}

void WatchHistory::Store(int64_t after) {
  if (!journal_.on()) return;
  const std::optional<int64_t> before = stored_after();
  if (before.has_value() && after >= *before) return;
  for (auto it = FirstAfter(after); it != changes_.end(); ++it) {
    if (before.has_value() && (*it)->revision > *before) break;
    journal_.Change((*it)->revision, (*it)->key, /*fresh=*/true);
  }
  stored_after_ = after;
  journal_.History();
}

void WatchHistory::StopStoring() {
  if (!stored_after_.has_value()) return;
  for (auto it = FirstAfter(*stored_after_); it != changes_.end(); ++it) {
    journal_.ForgetChange((*it)->revision, (*it)->key);
  }
  stored_after_.reset();
  journal_.History();
}

std::optional<int64_t> WatchHistory::stored_after() const {
  if (!stored_after_.has_value()) return std::nullopt;
  return std::max(*stored_after_, forgotten_through_);
}

const StoreChange* WatchHistory::FindStored(int64_t revision,
                                            absl::string_view key) const {
  if (!stored_after_.has_value() || revision <= *stored_after_) return nullptr;
  const auto it = std::partition_point(
      changes_.begin(), changes_.end(), [&](const auto& change) {
        return std::tie(change->revision, change->key) <
               std::tie(revision, key);
      });
  const bool found =
      it != changes_.end() && (*it)->revision == revision && (*it)->key == key;
  return found ? it->get() : nullptr;
}

void WatchHistory::Restore(StoreChange change) {
  if (change.revision <= forgotten_through_) return;
  bytes_ += CountBytes(change);
  changes_.push_back(std::make_shared<const StoreChange>(std::move(change)));
}

void WatchHistory::RestoreStoredAfter(int64_t revision) {
  BeginAt(revision);
  stored_after_ = revision;
}

void WatchHistory::BeginAt(int64_t revision) {
  while (!changes_.empty() && changes_.front()->revision <= revision) {
    ForgetFirst();
  }
  forgotten_through_ = std::max(forgotten_through_, revision);
}

// At most half of the job's guaranteed memory: history must not take the room
// of present values.
int64_t WatchHistory::BytesMax() const {
  if (limits_.memory == nullptr) return limits_.watch_history_bytes;
  return std::min(limits_.watch_history_bytes, limits_.memory->share() / 2);
}

Status WatchHistory::CheckComplete(int64_t after, int64_t newest) const {
  if (after < forgotten_through_) {
    return OutOfRangeError(absl::StrCat(
        "watch: revision ", after,
        " is no longer in the history, the oldest to go on from is ",
        forgotten_through_));
  }
  if (after > newest) {
    return OutOfRangeError(absl::StrCat("watch: revision ", after,
                                        " is ahead of the store, which is at ",
                                        newest));
  }
  return OkStatus();
}

WatchReply WatchHistory::Collect(const WatchSelector& selector, int64_t after,
                                 int64_t newest) const {
  Collector collector(newest);
  for (auto it = FirstAfter(after); it != changes_.end(); ++it) {
    if (selector.Matches((*it)->key) && !collector.Add(*it)) break;
  }
  return collector.Take();
}

WatchHistory::Changes::const_iterator WatchHistory::FirstAfter(
    int64_t after) const {
  return std::upper_bound(changes_.begin(), changes_.end(), after,
                          [](int64_t revision, const auto& change) {
                            return revision < change->revision;
                          });
}

std::vector<std::shared_ptr<const StoreChange>> WatchHistory::After(
    int64_t after) const {
  return {FirstAfter(after), changes_.end()};
}

WatchIndex::WatchIndex(const WatchHistory& history, int64_t after,
                       int64_t newest)
    : newest_(newest), changes_(history.After(after)) {
  by_key_.resize(changes_.size());
  std::iota(by_key_.begin(), by_key_.end(), size_t{0});
  std::stable_sort(by_key_.begin(), by_key_.end(), [&](size_t a, size_t b) {
    return changes_[a]->key < changes_[b]->key;
  });
}

WatchReply WatchIndex::Collect(const WatchSelector& selector) const {
  const auto begin = std::partition_point(
      by_key_.begin(), by_key_.end(),
      [&](size_t place) { return changes_[place]->key < selector.key; });
  // The matching changes are adjacent.
  const auto end = std::partition_point(
      begin, by_key_.end(),
      [&](size_t place) { return selector.Matches(changes_[place]->key); });
  Collector collector(newest_);
  if (static_cast<size_t>(end - begin) > changes_.size() / 2) {
    // Most changes match: a scan from the first one stops when the reply is
    // full.
    for (const auto& change : changes_) {
      if (selector.Matches(change->key) && !collector.Add(change)) break;
    }
    return collector.Take();
  }
  std::vector<size_t> places(begin, end);
  std::sort(places.begin(), places.end());
  for (const size_t place : places) {
    if (!collector.Add(changes_[place])) break;
  }
  return collector.Take();
}

}  // namespace muster::coordinator::core
