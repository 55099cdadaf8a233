#include "coordinator/core/store_waiters.h"

#include "absl/strings/str_cat.h"

namespace muster::coordinator::core {

using Awaited = StoreWaiter::Awaited;

// The memory that the waiter and its index entries take. A key with few waiters
// takes up to twice as much.
int64_t StoreWaiters::CountBytes(const StoreWaiter& waiter) {
  constexpr int64_t kKey = 64;
  int64_t bytes = kKey + static_cast<int64_t>(waiter.selector.key.size());
  for (const std::string& key : waiter.keys) {
    bytes += kKey + static_cast<int64_t>(key.size());
  }
  return bytes;
}

Status StoreWaiters::Park(std::unique_ptr<StoreWaiter> waiter) {
  Status status = quota_.Take(
      CountBytes(*waiter),
      {"key", waiter->keys.empty() ? absl::string_view(waiter->selector.key)
                                   : absl::string_view(waiter->keys.front())});
  if (!status.ok()) return status;
  StoreWaiter* parked = waiter.get();
  parked->order = next_order_++;
  waiters_.emplace(parked->id, std::move(waiter));
  by_order_.emplace(parked->order, parked);
  deadlines_.emplace(parked->deadline, parked->order);
  if (!parked->member.value().empty()) {
    by_member_[parked->member].emplace(parked->order, parked);
  }
  switch (parked->awaited) {
    case Awaited::kValue:
    case Awaited::kValues:
    case Awaited::kPresence:
      for (const absl::string_view key : parked->distinct) {
        by_key_[key].emplace(parked->order, parked);
      }
      break;
    case Awaited::kItem:
      pops_by_key_[parked->keys.front()].emplace(parked->order, parked);
      ++pops_;
      break;
    case Awaited::kChanges:
      if (parked->selector.prefix) {
        watches_by_prefix_[parked->selector.key].emplace(parked->order, parked);
        ++prefix_lengths_[parked->selector.key.size()];
      } else {
        watches_by_key_[parked->selector.key].emplace(parked->order, parked);
      }
      break;
  }
  return OkStatus();
}

void StoreWaiters::Unlist(ByKey& by_key, absl::string_view key,
                          uint64_t order) {
  const auto it = by_key.find(key);
  it->second.erase(order);
  if (it->second.empty()) by_key.erase(it);
}

void StoreWaiters::Remove(StoreWaiter* waiter) {
  switch (waiter->awaited) {
    case Awaited::kValue:
    case Awaited::kValues:
    case Awaited::kPresence:
      for (const absl::string_view key : waiter->distinct) {
        Unlist(by_key_, key, waiter->order);
      }
      break;
    case Awaited::kItem:
      Unlist(pops_by_key_, waiter->keys.front(), waiter->order);
      --pops_;
      break;
    case Awaited::kChanges: {
      const std::string& key = waiter->selector.key;
      if (!waiter->selector.prefix) {
        Unlist(watches_by_key_, key, waiter->order);
        break;
      }
      Unlist(watches_by_prefix_, key, waiter->order);
      const auto length = prefix_lengths_.find(key.size());
      if (--length->second == 0) prefix_lengths_.erase(length);
      break;
    }
  }
  if (const auto it = by_member_.find(waiter->member); it != by_member_.end()) {
    it->second.erase(waiter->order);
    if (it->second.empty()) by_member_.erase(it);
  }
  by_order_.erase(waiter->order);
  deadlines_.erase({waiter->deadline, waiter->order});
  quota_.Release(CountBytes(*waiter));
  waiters_.erase(WaiterId(waiter->id));
}

StoreWaiter* StoreWaiters::Find(WaiterId id) const {
  const auto it = waiters_.find(id);
  return it == waiters_.end() ? nullptr : it->second.get();
}

bool StoreWaiters::Retarget(WaiterId from, WaiterId to) {
  const auto it = waiters_.find(from);
  if (it == waiters_.end()) return false;
  std::unique_ptr<StoreWaiter> waiter = std::move(it->second);
  waiters_.erase(it);
  waiter->id = to;
  waiters_.emplace(to, std::move(waiter));
  return true;
}

std::vector<StoreWaiter*> StoreWaiters::Appeared(absl::string_view key) {
  std::vector<StoreWaiter*> complete;
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return complete;
  for (const auto& [order, waiter] : it->second) {
    if (--waiter->missing == 0) complete.push_back(waiter);
  }
  return complete;
}

void StoreWaiters::Vanished(absl::string_view key) {
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return;
  for (const auto& [order, waiter] : it->second) ++waiter->missing;
}

StoreWaiter* StoreWaiters::FirstPop(absl::string_view key) const {
  const auto it = pops_by_key_.find(key);
  return it == pops_by_key_.end() ? nullptr : it->second.begin()->second;
}

void StoreWaiters::FindWatches(absl::string_view key, ByOrder& watches) const {
  if (const auto it = watches_by_key_.find(key); it != watches_by_key_.end()) {
    watches.insert(it->second.begin(), it->second.end());
  }
  for (const auto& [length, count] : prefix_lengths_) {
    if (length > key.size()) return;
    const auto it = watches_by_prefix_.find(key.substr(0, length));
    if (it == watches_by_prefix_.end()) continue;
    watches.insert(it->second.begin(), it->second.end());
  }
}

StoreWaiter* StoreWaiters::FirstDue(Instant now) const {
  if (deadlines_.empty() || deadlines_.begin()->first > now) return nullptr;
  return by_order_.at(deadlines_.begin()->second);
}

std::optional<Instant> StoreWaiters::NextDeadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

StoreWaiter* StoreWaiters::FindFirst(const MemberId& member) const {
  const auto it = by_member_.find(member);
  return it == by_member_.end() ? nullptr : it->second.begin()->second;
}

Status StoreWaiters::CheckInvariants() const {
  if (deadlines_.size() != waiters_.size() ||
      by_order_.size() != waiters_.size()) {
    return InternalError("store: waiters and deadlines differ");
  }
  size_t keys = 0;
  int64_t pops = 0;
  size_t watches = 0;
  for (const auto& [order, waiter] : by_order_) {
    keys += waiter->distinct.size();
    if (waiter->awaited == Awaited::kItem) ++pops;
    if (waiter->awaited == Awaited::kChanges) ++watches;
  }
  size_t listed = 0;
  for (const auto& [key, waiters] : by_key_) listed += waiters.size();
  size_t popping = 0;
  for (const auto& [key, waiters] : pops_by_key_) popping += waiters.size();
  size_t watching = 0;
  for (const auto* by_key : {&watches_by_key_, &watches_by_prefix_}) {
    for (const auto& [key, waiters] : *by_key) watching += waiters.size();
  }
  if (listed != keys || static_cast<int64_t>(popping) != pops ||
      pops != pops_ || watching != watches) {
    return InternalError(absl::StrCat(
        "store: ", listed, " keys, ", popping, " pops and ", watching,
        " watches are listed of ", keys, ", ", pops, " and ", watches));
  }
  return OkStatus();
}

}  // namespace muster::coordinator::core
