#include "coordinator/core/store_data.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace muster::coordinator::core {
namespace {

int64_t CountBytes(absl::string_view key) {
  return static_cast<int64_t>(key.size());
}

int64_t CountBytes(const Value& value) {
  return static_cast<int64_t>(value->size());
}

}  // namespace

StoreData::StoreData(const Limits* limits, Journal* journal)
    : limits_(*limits), journal_(*journal), history_(limits, journal) {}

const StoreData::Entry* StoreData::Find(absl::string_view key) const {
  const auto it = entries_.find(key);
  return it == entries_.end() ? nullptr : &it->second;
}

const StoreData::Queue* StoreData::FindQueue(absl::string_view key) const {
  const auto it = queues_.find(key);
  return it == queues_.end() ? nullptr : &it->second;
}

Status StoreData::CheckIsNoQueue(absl::string_view verb,
                                 absl::string_view key) const {
  const Queue* queue = FindQueue(key);
  if (queue == nullptr) return OkStatus();
  return InvalidArgumentError(absl::StrCat(verb, ": key ", base::Excerpt(key),
                                           " is a queue of ", queue->size(),
                                           " items, no value"));
}

Status StoreData::CheckRoom(absl::string_view key, int64_t value_bytes) const {
  const Offer offer{"key", key};
  Status status =
      CheckLimit("key_bytes", limits_.key_bytes, CountBytes(key), offer);
  if (!status.ok()) return status;
  status = CheckLimit("value_bytes", limits_.value_bytes, value_bytes, offer);
  if (!status.ok()) return status;
  int64_t bytes = bytes_ + value_bytes;
  if (const Entry* present = Find(key); present != nullptr) {
    bytes -= CountBytes(present->value);
  } else {
    status = CheckLimit("keys", limits_.keys,
                        static_cast<int64_t>(entries_.size()) + 1, offer);
    if (!status.ok()) return status;
    bytes += CountBytes(key);
  }
  status = CheckLimit("store_bytes", limits_.store_bytes, bytes, offer);
  if (!status.ok()) return status;
  const int64_t keys = Find(key) == nullptr ? 1 : 0;
  return CheckMemoryFor(keys, bytes - bytes_, offer);
}

Status StoreData::CheckItemRoom(absl::string_view key,
                                int64_t value_bytes) const {
  const Offer offer{"key", key};
  Status status =
      CheckLimit("key_bytes", limits_.key_bytes, CountBytes(key), offer);
  if (!status.ok()) return status;
  status = CheckLimit("value_bytes", limits_.value_bytes, value_bytes, offer);
  if (!status.ok()) return status;
  status = CheckLimit("queue_items", limits_.queue_items, items_ + 1, offer);
  if (!status.ok()) return status;
  int64_t bytes = bytes_ + value_bytes;
  const bool fresh = FindQueue(key) == nullptr;
  if (fresh) bytes += CountBytes(key);
  status = CheckLimit("store_bytes", limits_.store_bytes, bytes, offer);
  if (!status.ok()) return status;
  return CheckMemoryFor(fresh ? 1 : 0, kItemMemory + bytes - bytes_, offer);
}

void StoreData::Account() {
  if (limits_.memory == nullptr) return;
  const int64_t all = CountMemory();
  limits_.memory->Add(all - accounted_);
  accounted_ = all;
}

int64_t StoreData::CountMemory() const {
  const auto keys = static_cast<int64_t>(entries_.size() + queues_.size());
  return bytes_ + history_.bytes() + kKeyMemory * keys + kItemMemory * items_;
}

bool StoreData::Put(absl::string_view key, Value value,
                    std::optional<Lifetime> lifetime) {
  journal_.Key(key);
  auto it = entries_.lower_bound(key);
  const bool fresh = it == entries_.end() || it->first != key;
  if (fresh) {
    it = entries_.emplace_hint(it, std::string(key), Entry());
    bytes_ += CountBytes(key);
  } else {
    bytes_ -= CountBytes(it->second.value);
    history_.Replaced(it->second.revision, key);
  }
  Entry& entry = it->second;
  bytes_ += CountBytes(value);
  history_.Add({ChangeKind::kPut, std::string(key), value, revision_});
  entry.value = std::move(value);
  entry.revision = revision_;
  if (lifetime.has_value()) SetLifetime(key, entry, *std::move(lifetime));
  Account();
  return fresh;
}

void StoreData::Erase(absl::string_view key, ChangeKind why) {
  journal_.Key(key);
  const auto it = entries_.find(key);
  bytes_ -= CountBytes(key) + CountBytes(it->second.value);
  history_.Replaced(it->second.revision, key);
  history_.Add({why, std::string(key), nullptr, revision_});
  Unlink(key, it->second);
  entries_.erase(it);
  Account();
}

bool StoreData::Push(absl::string_view key, Value value) {
  journal_.Item(key, revision_);
  const auto [it, fresh] = queues_.try_emplace(std::string(key));
  if (fresh) bytes_ += CountBytes(key);
  bytes_ += CountBytes(value);
  ++items_;
  it->second.push_back({revision_, std::move(value)});
  Account();
  return fresh;
}

Value StoreData::Pop(absl::string_view key) {
  const auto it = queues_.find(key);
  const Item item = std::move(it->second.front());
  journal_.Item(key, item.number);
  it->second.pop_front();
  bytes_ -= CountBytes(item.value);
  --items_;
  if (it->second.empty()) {
    bytes_ -= CountBytes(key);
    queues_.erase(it);
  }
  Account();
  return item.value;
}

void StoreData::EraseQueue(absl::string_view key) {
  const auto it = queues_.find(key);
  bytes_ -= CountBytes(key);
  for (const Item& item : it->second) {
    journal_.Item(key, item.number);
    bytes_ -= CountBytes(item.value);
  }
  items_ -= static_cast<int64_t>(it->second.size());
  queues_.erase(it);
  Account();
}

void StoreData::SetLifetime(absl::string_view key, Entry& entry,
                            Lifetime lifetime) {
  Unlink(key, entry);
  entry.lifetime = nullptr;
  if (lifetime.unlimited()) return;
  if (lifetime.ttl.has_value()) {
    expiries_.emplace(lifetime.expires_at, std::string(key));
  }
  if (!lifetime.owner.value().empty()) {
    owned_[lifetime.owner].insert(std::string(key));
  }
  entry.lifetime = std::make_unique<const Lifetime>(std::move(lifetime));
}

// Removes the entry from the indexes of lifetimes.
void StoreData::Unlink(absl::string_view key, const Entry& entry) {
  if (entry.lifetime == nullptr) return;
  if (entry.lifetime->ttl.has_value()) {
    expiries_.erase({entry.lifetime->expires_at, std::string(key)});
  }
  const auto owned = owned_.find(entry.lifetime->owner);
  if (owned == owned_.end()) return;
  owned->second.erase(std::string(key));
  if (owned->second.empty()) owned_.erase(owned);
}

EntryRecord StoreData::MakeRecord(absl::string_view key) const {
  EntryRecord record;
  record.key = std::string(key);
  const Entry* present = Find(key);
  if (present == nullptr) return record;
  record.value = present->value;
  record.revision = present->revision;
  if (present->lifetime != nullptr) record.lifetime = *present->lifetime;
  return record;
}

ItemRecord StoreData::MakeRecord(absl::string_view key, int64_t number) const {
  ItemRecord record;
  record.key = std::string(key);
  record.number = number;
  const Queue* queue = FindQueue(key);
  if (queue == nullptr) return record;
  const auto it = std::lower_bound(
      queue->begin(), queue->end(), number,
      [](const Item& item, int64_t sought) { return item.number < sought; });
  if (it != queue->end() && it->number == number) record.value = it->value;
  return record;
}

ChangeRecord StoreData::MakeChangeRecord(int64_t revision,
                                         absl::string_view key) const {
  ChangeRecord record;
  record.revision = revision;
  record.key = std::string(key);
  const StoreChange* const change = history_.FindStored(revision, key);
  record.erased = change == nullptr;
  if (record.erased) return record;
  record.kind = change->kind;
  const Entry* const present = Find(key);
  if (present == nullptr || present->revision != revision) {
    record.value = change->value;
  }
  return record;
}

void StoreData::Restore(EntryRecord record, Instant now) {
  bytes_ += CountBytes(record.key) + CountBytes(record.value);
  Entry& entry = entries_[record.key];
  entry.value = std::move(record.value);
  entry.revision = record.revision;
  Lifetime& lifetime = record.lifetime;
  if (lifetime.ttl.has_value()) {
    lifetime.expires_at = DeadlineAfter(now, *lifetime.ttl);
  }
  SetLifetime(record.key, entry, std::move(lifetime));
  Account();
}

void StoreData::Restore(ItemRecord record) {
  const auto [it, fresh] = queues_.try_emplace(record.key);
  if (fresh) bytes_ += CountBytes(record.key);
  bytes_ += CountBytes(record.value);
  ++items_;
  // Usually at the end, because storage returns items in order.
  const auto place = std::upper_bound(
      it->second.begin(), it->second.end(), record.number,
      [](int64_t number, const Item& item) { return number < item.number; });
  it->second.insert(place, {record.number, std::move(record.value)});
  Account();
}

void StoreData::Restore(ChangeRecord record) {
  if (record.kind == ChangeKind::kPut && record.value == nullptr) {
    const Entry* const present = Find(record.key);
    // Without the value the change cannot be told.
    if (present == nullptr || present->revision != record.revision) {
      return history_.BeginAt(record.revision);
    }
    record.value = present->value;
  }
  history_.Restore({record.kind, std::move(record.key), std::move(record.value),
                    record.revision});
}

void StoreData::Restore(const StoreRecord& record) {
  revision_ = record.revision;
  if (record.history_after.has_value()) {
    history_.RestoreStoredAfter(*record.history_after);
  } else {
    history_.BeginAt(record.revision);
  }
  Account();
}

std::optional<std::string> StoreData::FirstExpired(Instant now) const {
  if (expiries_.empty() || expiries_.begin()->first > now) return std::nullopt;
  return expiries_.begin()->second;
}

std::optional<Instant> StoreData::NextExpiry() const {
  if (expiries_.empty()) return std::nullopt;
  return expiries_.begin()->first;
}

std::vector<std::string> StoreData::OwnedBy(const MemberId& member) const {
  const auto owned = owned_.find(member);
  if (owned == owned_.end()) return {};
  return {owned->second.begin(), owned->second.end()};
}

Status StoreData::CheckInvariants() const {
  int64_t bytes = 0;
  int64_t items = 0;
  size_t expiring = 0;
  size_t owned = 0;
  for (const auto& [key, entry] : entries_) {
    bytes += CountBytes(key) + CountBytes(entry.value);
    if (entry.revision <= 0 || entry.revision > revision_) {
      return InternalError(absl::StrCat("store: key ", base::Excerpt(key),
                                        " has revision ", entry.revision,
                                        " of ", revision_));
    }
    if (FindQueue(key) != nullptr) {
      return InternalError(absl::StrCat("store: key ", base::Excerpt(key),
                                        " is a value and a queue"));
    }
    if (entry.lifetime == nullptr) continue;
    if (expiries_.contains({entry.lifetime->expires_at, key})) ++expiring;
    const auto owner = owned_.find(entry.lifetime->owner);
    if (owner != owned_.end() && owner->second.contains(key)) ++owned;
  }
  for (const auto& [key, queue] : queues_) {
    if (queue.empty()) {
      return InternalError(
          absl::StrCat("store: an empty queue, ", base::Excerpt(key)));
    }
    bytes += CountBytes(key);
    for (const Item& item : queue) bytes += CountBytes(item.value);
    items += static_cast<int64_t>(queue.size());
  }
  if (bytes != bytes_ || items != items_) {
    return InternalError(absl::StrCat("store: counts ", bytes_, " bytes and ",
                                      items_, " items, holds ", bytes, " and ",
                                      items));
  }
  for (const auto& [member, keys] : owned_) owned -= keys.size();
  if (expiring != expiries_.size() || owned != 0) {
    return InternalError("store: lifetimes and their indices differ");
  }
  return OkStatus();
}

}  // namespace muster::coordinator::core
