#include "coordinator/core/store.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace muster::coordinator::core {
namespace {

using Awaited = StoreWaiter::Awaited;

// How long the history is stored after the last watch has ended, or after a
// restart. It may be twice as long.
constexpr Duration kHistoryKept = std::chrono::minutes(5);

Value MakeValue(std::string bytes) {
  return std::make_shared<const std::string>(std::move(bytes));
}

int64_t Size(absl::string_view bytes) {
  return static_cast<int64_t>(bytes.size());
}

// Parses all of `text` as a number.
std::optional<int64_t> ParseWhole(absl::string_view text) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

}  // namespace

StoreEngine::StoreEngine(const Limits* limits, WaiterQuota* quota,
                         Journal* journal)
    : limits_(*limits), data_(limits, journal), waiters_(quota) {}

Status StoreEngine::CheckKey(absl::string_view key) const {
  return CheckLimit("key_bytes", limits_.key_bytes, Size(key), {"key", key});
}

Status StoreEngine::CheckKeys(absl::Span<const std::string> keys) const {
  Status status = CheckLimit("keys_per_call", limits_.keys_per_call,
                             static_cast<int64_t>(keys.size()));
  for (const std::string& key : keys) {
    if (!status.ok()) return status;
    status = CheckKey(key);
  }
  return status;
}

StatusOr<Lifetime> StoreEngine::ComputeLifetime(const Call& call,
                                                absl::string_view verb,
                                                const SetOptions& options,
                                                Instant now) const {
  Lifetime lifetime;
  if (options.ttl.has_value()) {
    if (*options.ttl <= Duration::zero()) {
      return InvalidArgumentError(absl::StrCat(verb, ": ttl is ",
                                               FormatDuration(*options.ttl),
                                               ", must be positive"));
    }
    lifetime.ttl = options.ttl;
    lifetime.expires_at = DeadlineAfter(now, *options.ttl);
  }
  if (options.ephemeral) {
    if (call.member.value().empty()) {
      return InvalidArgumentError(absl::StrCat(
          verb, ": an ephemeral key needs a member, the caller is none"));
    }
    lifetime.owner = call.member;
  }
  return lifetime;
}

// Puts the value in the current revision and wakes the waiters of the key.
void StoreEngine::Write(absl::string_view key, Value value,
                        std::optional<Lifetime> lifetime, Outbox& out) {
  const bool fresh = data_.Put(key, std::move(value), std::move(lifetime));
  waiters_.FindWatches(key, woken_watches_);
  if (fresh) Appeared(key, out);
}

// Removes a value, in a revision of its own.
void StoreEngine::Remove(absl::string_view key, ChangeKind why) {
  data_.Advance();
  data_.Erase(key, why);
  waiters_.FindWatches(key, woken_watches_);
  waiters_.Vanished(key);
}

void StoreEngine::RemoveQueue(absl::string_view key) {
  data_.Advance();
  data_.EraseQueue(key);
  waiters_.Vanished(key);
}

void StoreEngine::Set(const Call& call, absl::string_view key,
                      std::string value, const SetOptions& options, Instant now,
                      Outbox& out) {
  Status status = data_.CheckIsNoQueue("set", key);
  if (status.ok()) status = data_.CheckRoom(key, Size(value));
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  StatusOr<Lifetime> lifetime = ComputeLifetime(call, "set", options, now);
  if (!lifetime.ok()) return out.Fail(call.waiter, lifetime.status());
  out.Answer(call.waiter, RevisionReply{data_.Advance()});
  Write(key, MakeValue(std::move(value)), *std::move(lifetime), out);
  AnswerWatches(out);
}

void StoreEngine::Add(const Call& call, absl::string_view key, int64_t delta,
                      Outbox& out) {
  Status status = data_.CheckIsNoQueue("add", key);
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  const StoreData::Entry* present = data_.Find(key);
  int64_t sum = delta;
  if (present != nullptr) {
    const std::optional<int64_t> number = ParseWhole(*present->value);
    if (!number.has_value()) {
      return out.Fail(call.waiter,
                      InvalidArgumentError(absl::StrCat(
                          "add: key ", base::Excerpt(key), " holds ",
                          base::Excerpt(*present->value),
                          ", which is not a decimal int64")));
    }
    if (__builtin_add_overflow(*number, delta, &sum)) {
      return out.Fail(call.waiter,
                      OutOfRangeError(absl::StrCat(
                          "add: key ", base::Excerpt(key), " holds ", *number,
                          ", and adding ", delta, " overflows an int64")));
    }
  }
  std::string text = absl::StrCat(sum);
  status = data_.CheckRoom(key, Size(text));
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  out.Answer(call.waiter, NumberReply{sum, data_.Advance()});
  Write(key, MakeValue(std::move(text)), std::nullopt, out);
  AnswerWatches(out);
}

void StoreEngine::Append(const Call& call, absl::string_view key,
                         absl::string_view bytes, Outbox& out) {
  const StoreData::Entry* present = data_.Find(key);
  const size_t present_bytes = present == nullptr ? 0 : present->value->size();
  Status status = data_.CheckIsNoQueue("append", key);
  if (status.ok()) {
    status = data_.CheckRoom(
        key, static_cast<int64_t>(present_bytes + bytes.size()));
  }
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  std::string value;
  value.reserve(present_bytes + bytes.size());
  if (present != nullptr) value = *present->value;
  value.append(bytes.data(), bytes.size());
  out.Answer(call.waiter, RevisionReply{data_.Advance()});
  Write(key, MakeValue(std::move(value)), std::nullopt, out);
  AnswerWatches(out);
}

void StoreEngine::CompareSet(const Call& call, absl::string_view key,
                             absl::string_view expected, std::string desired,
                             Outbox& out) {
  Status status = data_.CheckIsNoQueue("compare set", key);
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  const StoreData::Entry* present = data_.Find(key);
  if (present != nullptr && *present->value != expected) {
    return out.Answer(
        call.waiter, CompareSetReply{present->value, false, present->revision});
  }
  status = data_.CheckRoom(key, Size(desired));
  if (status.ok() && present == nullptr && !expected.empty()) {
    status = CheckLimit("value_bytes", limits_.value_bytes, Size(expected),
                        {"key", key});
    if (status.ok()) {
      return out.Answer(
          call.waiter,
          CompareSetReply{MakeValue(std::string(expected)), false, 0});
    }
  }
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  Value value = MakeValue(std::move(desired));
  out.Answer(call.waiter, CompareSetReply{value, true, data_.Advance()});
  Write(key, std::move(value), std::nullopt, out);
  AnswerWatches(out);
}

void StoreEngine::CompareAndSet(const Call& call, absl::string_view key,
                                int64_t expected_revision, std::string value,
                                const SetOptions& options, Instant now,
                                Outbox& out) {
  if (expected_revision < 0) {
    return out.Fail(call.waiter,
                    InvalidArgumentError(absl::StrCat(
                        "compare and set: revision is ", expected_revision,
                        ", must not be negative")));
  }
  Status status = data_.CheckIsNoQueue("compare and set", key);
  if (status.ok()) status = data_.CheckRoom(key, Size(value));
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  StatusOr<Lifetime> lifetime =
      ComputeLifetime(call, "compare and set", options, now);
  if (!lifetime.ok()) return out.Fail(call.waiter, lifetime.status());
  const StoreData::Entry* present = data_.Find(key);
  const int64_t revision = present == nullptr ? 0 : present->revision;
  if (revision != expected_revision) {
    return out.Answer(
        call.waiter,
        CompareSetReply{present == nullptr ? nullptr : present->value, false,
                        revision});
  }
  out.Answer(call.waiter, CompareSetReply{nullptr, true, data_.Advance()});
  Write(key, MakeValue(std::move(value)), *std::move(lifetime), out);
  AnswerWatches(out);
}

void StoreEngine::DeleteKey(const Call& call, absl::string_view key,
                            Outbox& out) {
  const bool queue = data_.FindQueue(key) != nullptr;
  if (!queue && data_.Find(key) == nullptr) {
    return out.Answer(call.waiter, FlagReply{false, revision()});
  }
  if (queue) {
    RemoveQueue(key);
  } else {
    Remove(key, ChangeKind::kDeleted);
  }
  out.Answer(call.waiter, FlagReply{true, revision()});
  AnswerWatches(out);
}

void StoreEngine::DeletePrefix(const Call& call, absl::string_view prefix,
                               Outbox& out) {
  int64_t deleted = 0;
  for (auto it = data_.entries().lower_bound(prefix);
       it != data_.entries().end() && absl::StartsWith(it->first, prefix);
       it = data_.entries().lower_bound(prefix)) {
    Remove(std::string(it->first), ChangeKind::kDeleted);
    ++deleted;
  }
  for (auto it = data_.queues().lower_bound(prefix);
       it != data_.queues().end() && absl::StartsWith(it->first, prefix);
       it = data_.queues().lower_bound(prefix)) {
    RemoveQueue(std::string(it->first));
    ++deleted;
  }
  out.Answer(call.waiter, NumberReply{deleted, revision()});
  AnswerWatches(out);
}

void StoreEngine::MultiSet(const Call& call, absl::Span<const std::string> keys,
                           std::vector<std::string> values, Outbox& out) {
  if (keys.size() != values.size()) {
    return out.Fail(call.waiter,
                    InvalidArgumentError(absl::StrCat(
                        "multiSet keys and values vectors must be of same "
                        "size, not ",
                        keys.size(), " and ", values.size())));
  }
  Status status = CheckKeys(keys);
  // Finds the last value of each key: the sum of the sizes must be right before
  // anything is written.
  absl::btree_map<absl::string_view, size_t> last;
  int64_t bytes = data_.bytes();
  int64_t count = this->keys();
  for (size_t i = 0; status.ok() && i < keys.size(); ++i) {
    status = CheckLimit("value_bytes", limits_.value_bytes, Size(values[i]),
                        {"key", keys[i]});
    if (status.ok()) status = data_.CheckIsNoQueue("multi set", keys[i]);
    last[keys[i]] = i;
  }
  for (const auto& [key, i] : last) {
    const StoreData::Entry* present = data_.Find(key);
    bytes += Size(values[i]);
    if (present == nullptr) {
      ++count;
      bytes += Size(key);
    } else {
      bytes -= Size(*present->value);
    }
  }
  if (status.ok()) status = CheckLimit("keys", limits_.keys, count);
  if (status.ok()) {
    status = CheckLimit("store_bytes", limits_.store_bytes, bytes);
  }
  if (status.ok()) {
    status = data_.CheckMemoryFor(count - this->keys(), bytes - data_.bytes());
  }
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  if (!last.empty()) data_.Advance();
  out.Answer(call.waiter, RevisionReply{revision()});
  // Wakes nobody before all is written, so that a waiter sees the whole batch.
  std::vector<absl::string_view> appeared;
  for (const auto& [key, i] : last) {
    if (data_.Put(key, MakeValue(std::move(values[i])), Lifetime())) {
      appeared.push_back(key);
    }
    waiters_.FindWatches(key, woken_watches_);
  }
  for (absl::string_view key : appeared) Appeared(key, out);
  AnswerWatches(out);
}

void StoreEngine::TryGet(const Call& call, absl::string_view key,
                         Outbox& out) const {
  Status status = CheckKey(key);
  if (status.ok()) status = data_.CheckIsNoQueue("get", key);
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  const StoreData::Entry* present = data_.Find(key);
  if (present == nullptr) return out.Answer(call.waiter, ValueReply{});
  out.Answer(call.waiter, ValueReply{present->value, present->revision});
}

void StoreEngine::Check(const Call& call, absl::Span<const std::string> keys,
                        Outbox& out) const {
  Status status = CheckKeys(keys);
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  const bool all = std::all_of(keys.begin(), keys.end(), [&](const auto& key) {
    return data_.Contains(key);
  });
  out.Answer(call.waiter, FlagReply{all, revision()});
}

void StoreEngine::NumKeys(const Call& call, Outbox& out) const {
  out.Answer(call.waiter, NumberReply{keys(), revision()});
}

void StoreEngine::ListKeys(const Call& call, absl::string_view prefix,
                           absl::string_view after, int64_t count_max,
                           Outbox& out) const {
  if (count_max < 0) {
    return out.Fail(call.waiter, InvalidArgumentError(absl::StrCat(
                                     "list keys: limit is ", count_max,
                                     ", must not be negative")));
  }
  const int64_t count = std::min(count_max, limits_.keys_per_call);
  KeysReply reply;
  reply.revision = revision();
  const StoreData::Entries& entries = data_.entries();
  auto it =
      after < prefix ? entries.lower_bound(prefix) : entries.upper_bound(after);
  // An empty prefix may include the empty key, which does not come after an
  // empty `after`.
  if (prefix.empty() && after.empty()) it = entries.begin();
  for (; it != entries.end() && absl::StartsWith(it->first, prefix); ++it) {
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
  const StoreData::Entry* present = data_.Find(key);
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

void StoreEngine::QueuePush(const Call& call, absl::string_view key,
                            std::string item, Outbox& out) {
  Status status = data_.CheckItemRoom(key, Size(item));
  if (status.ok() && data_.Find(key) != nullptr) {
    status = InvalidArgumentError(absl::StrCat(
        "queue push: key ", base::Excerpt(key), " holds a value, no queue"));
  }
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  out.Answer(call.waiter, RevisionReply{data_.Advance()});
  const bool fresh = data_.Push(key, MakeValue(std::move(item)));
  if (StoreWaiter* pop = waiters_.FirstPop(key); pop != nullptr) {
    // No pop waits while there are items, so this is the only item. Calls that
    // wait for the key's presence are not woken by an item that is gone again.
    const int64_t revision = data_.Advance();
    out.Answer(pop->id, ValueReply{data_.Pop(key), revision});
    waiters_.Remove(pop);
  } else if (fresh) {
    Appeared(key, out);
  }
  AnswerWatches(out);
}

void StoreEngine::QueuePop(const Call& call, absl::string_view key,
                           std::optional<Duration> timeout, Instant now,
                           Outbox& out) {
  Status status = CheckKey(key);
  if (status.ok() && data_.Find(key) != nullptr) {
    status = InvalidArgumentError(absl::StrCat(
        "queue pop: key ", base::Excerpt(key), " holds a value, no queue"));
  }
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  if (data_.FindQueue(key) != nullptr) {
    const int64_t revision = data_.Advance();
    out.Answer(call.waiter, ValueReply{data_.Pop(key), revision});
    if (data_.FindQueue(key) == nullptr) waiters_.Vanished(key);
    return AnswerWatches(out);
  }
  if (!timeout.has_value()) {
    return out.Fail(call.waiter,
                    NotFoundError(absl::StrCat("queue is empty, key: ",
                                               base::Excerpt(key))));
  }
  StoreWaiter waiter;
  waiter.awaited = Awaited::kItem;
  waiter.keys.emplace_back(key);
  Park(call, std::move(waiter), *timeout, now, out);
}

void StoreEngine::QueueLen(const Call& call, absl::string_view key,
                           Outbox& out) const {
  const StoreData::Queue* queue = data_.FindQueue(key);
  const int64_t items =
      queue == nullptr ? 0 : static_cast<int64_t>(queue->size());
  out.Answer(call.waiter, NumberReply{items, revision()});
}

// Parks, wakes and ends waiters.

namespace {

using Awaited = StoreWaiter::Awaited;

}  // namespace

void StoreEngine::Watch(const Call& call, WatchRequest request, Instant now,
                        Outbox& out) {
  Status status = CheckKey(request.selector.key);
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  if (!request.after.has_value()) {
    StoreHistory(revision(), now);
    return out.Answer(call.waiter, WatchReply{{}, revision()});
  }
  status = data_.history().CheckComplete(*request.after, revision());
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  StoreHistory(*request.after, now);
  WatchReply reply =
      data_.history().Collect(request.selector, *request.after, revision());
  if (!reply.changes.empty() || request.timeout <= Duration::zero()) {
    return out.Answer(call.waiter, std::move(reply));
  }
  StoreWaiter waiter;
  waiter.awaited = Awaited::kChanges;
  waiter.selector = std::move(request.selector);
  Park(call, std::move(waiter), request.timeout, now, out);
}

// A watch knows the changes up to `after`. It must find the later ones after a
// restart, too.
void StoreEngine::StoreHistory(int64_t after, Instant now) {
  data_.StoreHistory(after);
  history_used_ = true;
  if (!history_due_.has_value() && data_.history().stored_after().has_value()) {
    history_due_ = DeadlineAfter(now, kHistoryKept);
  }
}

void StoreEngine::ExpireHistory(Instant now) {
  if (!history_due_.has_value() || *history_due_ > now) return;
  if (std::exchange(history_used_, waiters_.has_watches())) {
    history_due_ = DeadlineAfter(now, kHistoryKept);
    return;
  }
  data_.StopStoringHistory();
  history_due_.reset();
}

void StoreEngine::Restore(const StoreRecord& record, Instant now) {
  data_.Restore(record);
  seen_ = record.revision;
  if (record.history_after.has_value()) {
    history_due_ = DeadlineAfter(now, kHistoryKept);
  }
}

// Wakes the watches at the end of a step that may have changed something.
void StoreEngine::AnswerWatches(Outbox& out) {
  if (!woken_watches_.empty()) {
    const WatchHistory& history = data_.history();
    const Status status = history.CheckComplete(seen_, revision());
    const WatchIndex index(history, seen_, revision());
    for (const auto& [order, waiter] : woken_watches_) {
      if (status.ok()) {
        out.Answer(waiter->id, index.Collect(waiter->selector));
      } else {
        out.Fail(waiter->id, status);
      }
      waiters_.Remove(waiter);
    }
  }
  woken_watches_.clear();
  seen_ = revision();
}

// The answer to a call all of whose keys are present.
StatusOr<Payload> StoreEngine::Collect(
    Awaited awaited, absl::Span<const std::string> keys) const {
  if (awaited == Awaited::kPresence) return std::monostate();
  ValuesReply reply;
  reply.values.reserve(keys.size());
  for (const std::string& key : keys) {
    Status status = data_.CheckIsNoQueue("get", key);
    if (!status.ok()) return status;
    const StoreData::Entry* entry = data_.Find(key);
    reply.values.push_back(ValueReply{entry->value, entry->revision});
  }
  if (awaited == Awaited::kValue) return std::move(reply.values.front());
  return reply;
}

// Answers at once if nothing is missing or the call does not wait, else parks
// it.
void StoreEngine::Park(const Call& call, Awaited awaited,
                       std::vector<std::string> keys, Duration timeout,
                       Instant now, Outbox& out) {
  Status status = CheckKeys(keys);
  if (status.ok()) status = CheckParkedTime(limits_, timeout);
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  StoreWaiter waiter;
  waiter.awaited = awaited;
  waiter.keys = std::move(keys);
  waiter.distinct.assign(waiter.keys.begin(), waiter.keys.end());
  std::sort(waiter.distinct.begin(), waiter.distinct.end());
  waiter.distinct.erase(
      std::unique(waiter.distinct.begin(), waiter.distinct.end()),
      waiter.distinct.end());
  waiter.missing = std::count_if(
      waiter.distinct.begin(), waiter.distinct.end(),
      [&](absl::string_view key) { return !data_.Contains(key); });
  if (waiter.missing == 0) {
    StatusOr<Payload> payload = Collect(awaited, waiter.keys);
    if (!payload.ok()) return out.Fail(call.waiter, payload.status());
    return out.Answer(call.waiter, *std::move(payload));
  }
  Park(call, std::move(waiter), timeout, now, out);
}

void StoreEngine::Park(const Call& call, StoreWaiter waiter, Duration timeout,
                       Instant now, Outbox& out) {
  Status status = CheckParkedTime(limits_, timeout);
  waiter.id = call.waiter;
  waiter.member = call.member;
  waiter.timeout = timeout;
  waiter.since = now;
  waiter.deadline = DeadlineAfter(now, timeout);
  if (status.ok() && timeout <= Duration::zero()) {
    status = DeadlineExceededError(TimeoutText(waiter));
  }
  if (status.ok()) {
    status = waiters_.Park(std::make_unique<StoreWaiter>(std::move(waiter)));
  }
  if (!status.ok()) out.Fail(call.waiter, std::move(status));
}

// Wakes the waiters of a key that now holds something.
void StoreEngine::Appeared(absl::string_view key, Outbox& out) {
  for (StoreWaiter* waiter : waiters_.Appeared(key)) {
    StatusOr<Payload> payload = Collect(waiter->awaited, waiter->keys);
    if (payload.ok()) {
      out.Answer(waiter->id, *std::move(payload));
    } else {
      out.Fail(waiter->id, payload.status());
    }
    waiters_.Remove(waiter);
  }
}

std::string StoreEngine::TimeoutText(const StoreWaiter& waiter) const {
  std::vector<absl::string_view> keys = waiter.distinct;
  if (waiter.awaited == Awaited::kItem) keys.push_back(waiter.keys.front());
  std::erase_if(keys,
                [&](absl::string_view key) { return data_.Contains(key); });
  return base::WaitTimeoutText(waiter.timeout, keys);
}

void StoreEngine::Expire(Instant now, Outbox& out) {
  ExpireHistory(now);
  for (std::optional<std::string> key = data_.FirstExpired(now);
       key.has_value(); key = data_.FirstExpired(now)) {
    Remove(*key, ChangeKind::kExpired);
  }
  AnswerWatches(out);
  for (StoreWaiter* waiter = waiters_.FirstDue(now); waiter != nullptr;
       waiter = waiters_.FirstDue(now)) {
    if (waiter->awaited == Awaited::kChanges) {
      out.Answer(waiter->id, WatchReply{{}, revision()});
    } else {
      out.Fail(waiter->id, DeadlineExceededError(TimeoutText(*waiter)));
    }
    waiters_.Remove(waiter);
  }
}

std::vector<KeyWaitSnapshot> StoreEngine::KeyWaits(Instant now,
                                                   int64_t& more) const {
  std::vector<KeyWaitSnapshot> waits;
  int64_t lookups = 0;
  // The missing key of the previous waiter: many wait for the same one.
  absl::string_view key;
  more = 0;
  for (const auto& [order, waiter] : waiters_.all()) {
    if (waiter->awaited == Awaited::kChanges ||
        waiter->member.value().empty()) {
      continue;
    }
    if (waits.size() == kKeyWaitsInSnapshotMax) {
      ++more;
      continue;
    }
    KeyWaitSnapshot wait;
    wait.member = waiter->member;
    wait.waiting_for = now - waiter->since;
    wait.item = waiter->awaited == Awaited::kItem;
    wait.missing = wait.item ? 1 : waiter->missing;
    const auto& keys = waiter->distinct;
    if (wait.item) {
      wait.key = waiter->keys.front().substr(0, kKeyBytesInSnapshotMax);
    } else if (std::binary_search(keys.begin(), keys.end(), key) &&
               !data_.Contains(key)) {
      wait.key = std::string(key.substr(0, kKeyBytesInSnapshotMax));
    } else {
      for (const absl::string_view each : keys) {
        if (lookups++ >= kLookupsInSnapshotMax) break;
        if (data_.Contains(each)) continue;
        key = each;
        wait.key = std::string(key.substr(0, kKeyBytesInSnapshotMax));
        break;
      }
    }
    waits.push_back(std::move(wait));
  }
  return waits;
}

bool StoreEngine::Cancel(WaiterId id, const Status& status, Outbox& out) {
  StoreWaiter* waiter = waiters_.Find(id);
  if (waiter == nullptr) return false;
  waiters_.Remove(waiter);
  out.Fail(id, status);
  return true;
}

void StoreEngine::MemberDeparted(const MemberId& member, const Status& status,
                                 Outbox& out) {
  for (StoreWaiter* waiter = waiters_.FindFirst(member); waiter != nullptr;
       waiter = waiters_.FindFirst(member)) {
    Cancel(WaiterId(waiter->id), status, out);
  }
  for (const std::string& key : data_.OwnedBy(member)) {
    Remove(key, ChangeKind::kOrphaned);
  }
  AnswerWatches(out);
}

std::optional<Instant> StoreEngine::NextDeadline() const {
  std::optional<Instant> next;
  for (const std::optional<Instant>& deadline :
       {data_.NextExpiry(), waiters_.NextDeadline(), history_due_}) {
    if (!deadline.has_value()) continue;
    next = next.has_value() ? std::min(*next, *deadline) : *deadline;
  }
  return next;
}

Status StoreEngine::CheckInvariants() const {
  for (const Status& status :
       {data_.CheckInvariants(), waiters_.CheckInvariants()}) {
    if (!status.ok()) return status;
  }
  if (!woken_watches_.empty() || seen_ != revision()) {
    return InternalError(absl::StrCat("store: a step ended at revision ",
                                      revision(), " with watches at ", seen_));
  }
  for (const auto& [order, waiter] : waiters_.all()) {
    if (waiter->awaited == Awaited::kChanges) continue;
    if (waiter->awaited == Awaited::kItem) {
      if (data_.FindQueue(waiter->keys.front()) == nullptr) continue;
      return InternalError(absl::StrCat("store: waiter ", waiter->id.value(),
                                        " awaits an item that is there"));
    }
    const int64_t missing = std::count_if(
        waiter->distinct.begin(), waiter->distinct.end(),
        [&](absl::string_view key) { return !data_.Contains(key); });
    if (missing != waiter->missing || missing == 0) {
      return InternalError(absl::StrCat("store: waiter ", waiter->id.value(),
                                        " misses ", missing, " keys, counts ",
                                        waiter->missing));
    }
  }
  return OkStatus();
}

}  // namespace muster::coordinator::core
