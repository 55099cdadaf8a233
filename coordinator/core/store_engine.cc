#include "coordinator/core/store_engine.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster::coordinator::core {
namespace {

constexpr size_t kKeysInTextMax = 8;
constexpr size_t kValueInTextBytesMax = 32;

Value MakeValue(std::string bytes) {
  return std::make_shared<const std::string>(std::move(bytes));
}

// Returns the number that `text` is, all of it.
std::optional<int64_t> ParseWhole(absl::string_view text) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

// For error texts: printable, and not longer than a line bears.
std::string Excerpt(absl::string_view bytes) {
  std::string text = absl::StrCat(
      "\"", absl::CHexEscape(bytes.substr(0, kValueInTextBytesMax)), "\"");
  if (bytes.size() > kValueInTextBytesMax) {
    absl::StrAppend(&text, "... (", bytes.size(), " bytes)");
  }
  return text;
}

}  // namespace

StoreEngine::StoreEngine(const Limits* limits, WaiterQuota* quota,
                         Journal* journal)
    : limits_(*limits), quota_(*quota), journal_(*journal) {}

StoreEngine::~StoreEngine() = default;

absl::Status StoreEngine::CheckKey(absl::string_view key) const {
  return CheckLimit("key_bytes", limits_.key_bytes,
                    static_cast<int64_t>(key.size()), {"key", key});
}

absl::Status StoreEngine::CheckKeys(absl::Span<const std::string> keys) const {
  absl::Status status = CheckLimit("keys_per_call", limits_.keys_per_call,
                                   static_cast<int64_t>(keys.size()));
  for (const std::string& key : keys) {
    if (!status.ok()) return status;
    status = CheckKey(key);
  }
  return status;
}

// Whether the key may come to hold a value of `value_bytes`.
absl::Status StoreEngine::CheckRoom(absl::string_view key, const Entry* present,
                                    int64_t value_bytes) const {
  absl::Status status = CheckKey(key);
  if (!status.ok()) return status;
  const Offer offer{"key", key};
  status = CheckLimit("value_bytes", limits_.value_bytes, value_bytes, offer);
  if (!status.ok()) return status;
  int64_t bytes = bytes_ + value_bytes;
  if (present != nullptr) {
    bytes -= static_cast<int64_t>(present->value->size());
  } else {
    status = CheckLimit("keys", limits_.keys, keys() + 1, offer);
    if (!status.ok()) return status;
    bytes += static_cast<int64_t>(key.size());
  }
  return CheckLimit("store_bytes", limits_.store_bytes, bytes, offer);
}

const StoreEngine::Entry* StoreEngine::Find(absl::string_view key) const {
  const auto it = entries_.find(key);
  return it == entries_.end() ? nullptr : &it->second;
}

// Writes in the current revision; the caller has advanced it and checked room.
// Returns whether the key is new: its waiters are then to be woken.
bool StoreEngine::Store(absl::string_view key, Value value) {
  journal_.Key(key);
  const int64_t value_bytes = static_cast<int64_t>(value->size());
  const auto it = entries_.lower_bound(key);
  if (it != entries_.end() && it->first == key) {
    bytes_ += value_bytes - static_cast<int64_t>(it->second.value->size());
    it->second = Entry{std::move(value), revision_};
    return false;
  }
  entries_.emplace_hint(it, std::string(key),
                        Entry{std::move(value), revision_});
  bytes_ += value_bytes + static_cast<int64_t>(key.size());
  return true;
}

void StoreEngine::Set(const Call& call, absl::string_view key,
                      std::string value, Outbox& out) {
  absl::Status status =
      CheckRoom(key, Find(key), static_cast<int64_t>(value.size()));
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  ++revision_;
  out.Answer(call.waiter, RevisionReply{revision_});
  if (Store(key, MakeValue(std::move(value)))) WakeWaiters(key, out);
}

void StoreEngine::Add(const Call& call, absl::string_view key, int64_t delta,
                      Outbox& out) {
  const Entry* present = Find(key);
  int64_t sum = delta;
  if (present != nullptr) {
    const std::optional<int64_t> number = ParseWhole(*present->value);
    if (!number.has_value()) {
      return out.Fail(call.waiter, absl::InvalidArgumentError(absl::StrCat(
                                       "add: key ", Excerpt(key), " holds ",
                                       Excerpt(*present->value),
                                       ", which is not a decimal int64")));
    }
    if (__builtin_add_overflow(*number, delta, &sum)) {
      return out.Fail(call.waiter,
                      absl::OutOfRangeError(absl::StrCat(
                          "add: key ", Excerpt(key), " holds ", *number,
                          ", and adding ", delta, " overflows an int64")));
    }
  }
  std::string text = absl::StrCat(sum);
  absl::Status status =
      CheckRoom(key, present, static_cast<int64_t>(text.size()));
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  ++revision_;
  out.Answer(call.waiter, NumberReply{sum, revision_});
  if (Store(key, MakeValue(std::move(text)))) WakeWaiters(key, out);
}

void StoreEngine::Append(const Call& call, absl::string_view key,
                         absl::string_view bytes, Outbox& out) {
  const Entry* present = Find(key);
  const size_t present_bytes = present == nullptr ? 0 : present->value->size();
  absl::Status status = CheckRoom(
      key, present, static_cast<int64_t>(present_bytes + bytes.size()));
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  std::string value;
  value.reserve(present_bytes + bytes.size());
  if (present != nullptr) value = *present->value;
  value.append(bytes.data(), bytes.size());
  ++revision_;
  out.Answer(call.waiter, RevisionReply{revision_});
  if (Store(key, MakeValue(std::move(value)))) WakeWaiters(key, out);
}

void StoreEngine::CompareSet(const Call& call, absl::string_view key,
                             absl::string_view expected, std::string desired,
                             Outbox& out) {
  const Entry* present = Find(key);
  if (present != nullptr && *present->value != expected) {
    return out.Answer(
        call.waiter, CompareSetReply{present->value, false, present->revision});
  }
  absl::Status status =
      CheckRoom(key, present, static_cast<int64_t>(desired.size()));
  if (status.ok() && present == nullptr && !expected.empty()) {
    status = CheckLimit("value_bytes", limits_.value_bytes,
                        static_cast<int64_t>(expected.size()), {"key", key});
    if (status.ok()) {
      return out.Answer(
          call.waiter,
          CompareSetReply{MakeValue(std::string(expected)), false, 0});
    }
  }
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  Value value = MakeValue(std::move(desired));
  ++revision_;
  out.Answer(call.waiter, CompareSetReply{value, true, revision_});
  if (Store(key, std::move(value))) WakeWaiters(key, out);
}

void StoreEngine::DeleteKey(const Call& call, absl::string_view key,
                            Outbox& out) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) {
    return out.Answer(call.waiter, FlagReply{false, revision_});
  }
  bytes_ -= static_cast<int64_t>(key.size() + it->second.value->size());
  entries_.erase(it);
  journal_.Key(key);
  ++revision_;
  const auto waiters = waiters_by_key_.find(key);
  if (waiters != waiters_by_key_.end()) {
    for (const auto& [order, waiter] : waiters->second) ++waiter->missing;
  }
  out.Answer(call.waiter, FlagReply{true, revision_});
}

void StoreEngine::MultiSet(const Call& call, absl::Span<const std::string> keys,
                           std::vector<std::string> values, Outbox& out) {
  if (keys.size() != values.size()) {
    return out.Fail(call.waiter,
                    absl::InvalidArgumentError(absl::StrCat(
                        "multiSet keys and values vectors must be of same "
                        "size, not ",
                        keys.size(), " and ", values.size())));
  }
  absl::Status status = CheckKeys(keys);
  // The last value of each key, because the sum of the sizes must be right
  // before anything is written.
  absl::btree_map<absl::string_view, size_t> last;
  int64_t bytes = bytes_;
  int64_t count = this->keys();
  for (size_t i = 0; status.ok() && i < keys.size(); ++i) {
    status =
        CheckLimit("value_bytes", limits_.value_bytes,
                   static_cast<int64_t>(values[i].size()), {"key", keys[i]});
    last[keys[i]] = i;
  }
  for (const auto& [key, i] : last) {
    const Entry* present = Find(key);
    bytes += static_cast<int64_t>(values[i].size());
    if (present == nullptr) {
      ++count;
      bytes += static_cast<int64_t>(key.size());
    } else {
      bytes -= static_cast<int64_t>(present->value->size());
    }
  }
  if (status.ok()) status = CheckLimit("keys", limits_.keys, count);
  if (status.ok()) {
    status = CheckLimit("store_bytes", limits_.store_bytes, bytes);
  }
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  if (!last.empty()) ++revision_;
  out.Answer(call.waiter, RevisionReply{revision_});
  // Nobody is woken before all is written: a waiter sees the whole batch.
  std::vector<absl::string_view> appeared;
  for (const auto& [key, i] : last) {
    if (Store(key, MakeValue(std::move(values[i])))) appeared.push_back(key);
  }
  for (absl::string_view key : appeared) WakeWaiters(key, out);
}

EntryRecord StoreEngine::RecordOf(absl::string_view key) const {
  const Entry* present = Find(key);
  if (present == nullptr) return EntryRecord{std::string(key), nullptr, 0};
  return EntryRecord{std::string(key), present->value, present->revision};
}

void StoreEngine::Restore(EntryRecord record) {
  bytes_ += static_cast<int64_t>(record.key.size() + record.value->size());
  entries_[std::move(record.key)] =
      Entry{std::move(record.value), record.revision};
}

void StoreEngine::TryGet(const Call& call, absl::string_view key,
                         Outbox& out) const {
  absl::Status status = CheckKey(key);
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  const Entry* present = Find(key);
  if (present == nullptr) return out.Answer(call.waiter, ValueReply{});
  out.Answer(call.waiter, ValueReply{present->value, present->revision});
}

void StoreEngine::Check(const Call& call, absl::Span<const std::string> keys,
                        Outbox& out) const {
  absl::Status status = CheckKeys(keys);
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  const bool all = std::all_of(keys.begin(), keys.end(), [&](const auto& key) {
    return Find(key) != nullptr;
  });
  out.Answer(call.waiter, FlagReply{all, revision_});
}

void StoreEngine::NumKeys(const Call& call, Outbox& out) const {
  out.Answer(call.waiter, NumberReply{keys(), revision_});
}

void StoreEngine::ListKeys(const Call& call, absl::string_view prefix,
                           absl::string_view after, int64_t count_max,
                           Outbox& out) const {
  if (count_max < 0) {
    return out.Fail(call.waiter, absl::InvalidArgumentError(absl::StrCat(
                                     "list keys: limit is ", count_max,
                                     ", must not be negative")));
  }
  const int64_t count = std::min(count_max, limits_.keys_per_call);
  KeysReply reply;
  auto it = after < prefix ? entries_.lower_bound(prefix)
                           : entries_.upper_bound(after);
  // With an empty prefix `after` does not come before it, but the empty key
  // may be wanted.
  if (prefix.empty() && after.empty()) it = entries_.begin();
  for (; it != entries_.end() && absl::StartsWith(it->first, prefix); ++it) {
    if (static_cast<int64_t>(reply.keys.size()) == count) {
      reply.more = true;
      break;
    }
    reply.keys.push_back(it->first);
  }
  out.Answer(call.waiter, std::move(reply));
}

void StoreEngine::Get(const Call& call, absl::string_view key, Duration timeout,
                      Instant now, Outbox& out) {
  const Entry* present = Find(key);
  if (present != nullptr) {
    return out.Answer(call.waiter,
                      ValueReply{present->value, present->revision});
  }
  Park(call, Awaited::kValue, {std::string(key)}, timeout, now, out);
}

void StoreEngine::Wait(const Call& call, std::vector<std::string> keys,
                       Duration timeout, Instant now, Outbox& out) {
  Park(call, Awaited::kPresence, std::move(keys), timeout, now, out);
}

void StoreEngine::MultiGet(const Call& call, std::vector<std::string> keys,
                           Duration timeout, Instant now, Outbox& out) {
  Park(call, Awaited::kValues, std::move(keys), timeout, now, out);
}

// The answer to a call whose keys are all there.
Payload StoreEngine::Collect(Awaited awaited,
                             absl::Span<const std::string> keys) const {
  switch (awaited) {
    case Awaited::kPresence:
      return std::monostate();
    case Awaited::kValue: {
      const Entry* entry = Find(keys.front());
      return ValueReply{entry->value, entry->revision};
    }
    case Awaited::kValues:
      break;
  }
  ValuesReply reply;
  reply.values.reserve(keys.size());
  for (const std::string& key : keys) {
    const Entry* entry = Find(key);
    reply.values.push_back(ValueReply{entry->value, entry->revision});
  }
  return reply;
}

// Answers at once where nothing is missing or the call will not wait, else
// parks it.
void StoreEngine::Park(const Call& call, Awaited awaited,
                       std::vector<std::string> keys, Duration timeout,
                       Instant now, Outbox& out) {
  absl::Status status = CheckKeys(keys);
  if (status.ok()) status = CheckParkedTime(limits_, timeout);
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  std::vector<std::string> distinct = keys;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  const int64_t missing = std::count_if(
      distinct.begin(), distinct.end(),
      [&](const std::string& key) { return Find(key) == nullptr; });
  if (missing == 0) return out.Answer(call.waiter, Collect(awaited, keys));

  auto waiter = std::make_unique<Waiter>(Waiter{
      .id = call.waiter,
      .member = call.member,
      .awaited = awaited,
      .keys = std::move(keys),
      .distinct = std::move(distinct),
      .missing = missing,
      .order = next_order_++,
      .timeout = timeout,
      .deadline = DeadlineAfter(now, timeout),
  });
  if (timeout <= Duration::zero()) {
    return out.Fail(call.waiter,
                    absl::DeadlineExceededError(TimeoutText(*waiter)));
  }
  status = quota_.Take();
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  for (const std::string& key : waiter->distinct) {
    waiters_by_key_[key].emplace(waiter->order, waiter.get());
  }
  if (!waiter->member.value().empty()) {
    waiters_by_member_[waiter->member].emplace(waiter->order, waiter.get());
  }
  waiters_by_order_.emplace(waiter->order, waiter.get());
  deadlines_.emplace(waiter->deadline, waiter->order);
  const WaiterId id = waiter->id;
  waiters_.emplace(id, std::move(waiter));
}

// The key has appeared.
void StoreEngine::WakeWaiters(absl::string_view key, Outbox& out) {
  const auto it = waiters_by_key_.find(key);
  if (it == waiters_by_key_.end()) return;
  std::vector<Waiter*> complete;
  for (const auto& [order, waiter] : it->second) {
    if (--waiter->missing == 0) complete.push_back(waiter);
  }
  for (Waiter* waiter : complete) {
    out.Answer(waiter->id, Collect(waiter->awaited, waiter->keys));
    Remove(waiter);
  }
}

void StoreEngine::Remove(Waiter* waiter) {
  for (const std::string& key : waiter->distinct) {
    const auto it = waiters_by_key_.find(key);
    it->second.erase(waiter->order);
    if (it->second.empty()) waiters_by_key_.erase(it);
  }
  if (const auto it = waiters_by_member_.find(waiter->member);
      it != waiters_by_member_.end()) {
    it->second.erase(waiter->order);
    if (it->second.empty()) waiters_by_member_.erase(it);
  }
  waiters_by_order_.erase(waiter->order);
  deadlines_.erase({waiter->deadline, waiter->order});
  quota_.Release();
  waiters_.erase(waiter->id);
}

std::string StoreEngine::TimeoutText(const Waiter& waiter) const {
  std::string text = absl::StrCat("wait timeout after ",
                                  FormatDuration(waiter.timeout), ", keys: ");
  size_t named = 0;
  size_t unnamed = 0;
  for (const std::string& key : waiter.distinct) {
    if (Find(key) != nullptr) continue;
    if (named == kKeysInTextMax) {
      ++unnamed;
      continue;
    }
    absl::StrAppend(&text, named == 0 ? "" : ", ", absl::CHexEscape(key));
    ++named;
  }
  if (unnamed > 0) absl::StrAppend(&text, " and ", unnamed, " more");
  return text;
}

void StoreEngine::Expire(Instant now, Outbox& out) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    Waiter* waiter = waiters_by_order_.at(deadlines_.begin()->second);
    out.Fail(waiter->id, absl::DeadlineExceededError(TimeoutText(*waiter)));
    Remove(waiter);
  }
}

bool StoreEngine::Cancel(WaiterId waiter, const absl::Status& status,
                         Outbox& out) {
  const auto it = waiters_.find(waiter);
  if (it == waiters_.end()) return false;
  out.Fail(waiter, status);
  Remove(it->second.get());
  return true;
}

void StoreEngine::FailMember(const MemberId& member, const absl::Status& status,
                             Outbox& out) {
  for (auto it = waiters_by_member_.find(member);
       it != waiters_by_member_.end(); it = waiters_by_member_.find(member)) {
    Cancel(it->second.begin()->second->id, status, out);
  }
}

std::optional<Instant> StoreEngine::NextDeadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

absl::Status StoreEngine::CheckInvariants() const {
  int64_t bytes = 0;
  for (const auto& [key, entry] : entries_) {
    bytes += static_cast<int64_t>(key.size() + entry.value->size());
    if (entry.revision <= 0 || entry.revision > revision_) {
      return absl::InternalError(absl::StrCat("store: key ", Excerpt(key),
                                              " has revision ", entry.revision,
                                              " of ", revision_));
    }
  }
  if (bytes != bytes_) {
    return absl::InternalError(
        absl::StrCat("store: counts ", bytes_, " bytes, holds ", bytes));
  }
  if (deadlines_.size() != waiters_.size() ||
      waiters_by_order_.size() != waiters_.size()) {
    return absl::InternalError("store: waiters and deadlines differ");
  }
  size_t listed = 0;
  for (const auto& [order, waiter] : waiters_by_order_) {
    listed += waiter->distinct.size();
    const int64_t missing = std::count_if(
        waiter->distinct.begin(), waiter->distinct.end(),
        [&](const std::string& key) { return Find(key) == nullptr; });
    if (missing != waiter->missing || missing == 0) {
      return absl::InternalError(
          absl::StrCat("store: waiter ", waiter->id.value(), " misses ",
                       missing, " keys, counts ", waiter->missing));
    }
  }
  for (const auto& [key, waiters] : waiters_by_key_) listed -= waiters.size();
  if (listed != 0) {
    return absl::InternalError("store: waiters_by_key_ and waiters_ differ");
  }
  return absl::OkStatus();
}

}  // namespace muster::coordinator::core
