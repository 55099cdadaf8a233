// The part of StoreEngine that parks, wakes and ends waiters.

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "coordinator/core/store.h"

namespace muster::coordinator::core {
namespace {

using Awaited = StoreWaiter::Awaited;

}  // namespace

void StoreEngine::Watch(const Call& call, WatchRequest request, Instant now,
                        Outbox& out) {
  absl::Status status = CheckKey(request.selector.key);
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  if (!request.after.has_value()) {
    return out.Answer(call.waiter, WatchReply{{}, revision()});
  }
  status = data_.history().CheckComplete(*request.after, revision());
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
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

// Ends a step that may have changed something.
void StoreEngine::AnswerWatches(Outbox& out) {
  if (!woken_watches_.empty()) {
    const WatchHistory& history = data_.history();
    const absl::Status status = history.CheckComplete(seen_, revision());
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

// The answer to a call whose keys are all there.
absl::StatusOr<Payload> StoreEngine::Collect(
    Awaited awaited, absl::Span<const std::string> keys) const {
  if (awaited == Awaited::kPresence) return std::monostate();
  ValuesReply reply;
  reply.values.reserve(keys.size());
  for (const std::string& key : keys) {
    absl::Status status = data_.CheckIsNoQueue("get", key);
    if (!status.ok()) return status;
    const StoreData::Entry* entry = data_.Find(key);
    reply.values.push_back(ValueReply{entry->value, entry->revision});
  }
  if (awaited == Awaited::kValue) return std::move(reply.values.front());
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
    absl::StatusOr<Payload> payload = Collect(awaited, waiter.keys);
    if (!payload.ok()) return out.Fail(call.waiter, payload.status());
    return out.Answer(call.waiter, *std::move(payload));
  }
  Park(call, std::move(waiter), timeout, now, out);
}

void StoreEngine::Park(const Call& call, StoreWaiter waiter, Duration timeout,
                       Instant now, Outbox& out) {
  absl::Status status = CheckParkedTime(limits_, timeout);
  waiter.id = call.waiter;
  waiter.member = call.member;
  waiter.timeout = timeout;
  waiter.since = now;
  waiter.deadline = DeadlineAfter(now, timeout);
  if (status.ok() && timeout <= Duration::zero()) {
    status = absl::DeadlineExceededError(TimeoutText(waiter));
  }
  if (status.ok()) {
    status = waiters_.Park(std::make_unique<StoreWaiter>(std::move(waiter)));
  }
  if (!status.ok()) out.Fail(call.waiter, std::move(status));
}

// The key has come to hold something.
void StoreEngine::Appeared(absl::string_view key, Outbox& out) {
  for (StoreWaiter* waiter : waiters_.Appeared(key)) {
    absl::StatusOr<Payload> payload = Collect(waiter->awaited, waiter->keys);
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
      out.Fail(waiter->id, absl::DeadlineExceededError(TimeoutText(*waiter)));
    }
    waiters_.Remove(waiter);
  }
}

std::vector<KeyWaitSnapshot> StoreEngine::KeyWaits(Instant now,
                                                   int64_t& more) const {
  std::vector<KeyWaitSnapshot> waits;
  int64_t lookups = 0;
  // Of the waiter before: many wait for the same one.
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

bool StoreEngine::Cancel(WaiterId id, const absl::Status& status, Outbox& out) {
  StoreWaiter* waiter = waiters_.Find(id);
  if (waiter == nullptr) return false;
  waiters_.Remove(waiter);
  out.Fail(id, status);
  return true;
}

void StoreEngine::MemberDeparted(const MemberId& member,
                                 const absl::Status& status, Outbox& out) {
  for (StoreWaiter* waiter = waiters_.FirstOf(member); waiter != nullptr;
       waiter = waiters_.FirstOf(member)) {
    Cancel(WaiterId(waiter->id), status, out);
  }
  for (const std::string& key : data_.OwnedBy(member)) {
    Remove(key, ChangeKind::kOrphaned);
  }
  AnswerWatches(out);
}

std::optional<Instant> StoreEngine::NextDeadline() const {
  const std::optional<Instant> expiry = data_.NextExpiry();
  const std::optional<Instant> deadline = waiters_.NextDeadline();
  if (!expiry.has_value()) return deadline;
  return deadline.has_value() ? std::min(*expiry, *deadline) : *expiry;
}

absl::Status StoreEngine::CheckInvariants() const {
  for (const absl::Status& status :
       {data_.CheckInvariants(), waiters_.CheckInvariants()}) {
    if (!status.ok()) return status;
  }
  if (!woken_watches_.empty() || seen_ != revision()) {
    return absl::InternalError(absl::StrCat("store: a step ended at revision ",
                                            revision(), " with watches at ",
                                            seen_));
  }
  for (const auto& [order, waiter] : waiters_.all()) {
    if (waiter->awaited == Awaited::kChanges) continue;
    if (waiter->awaited == Awaited::kItem) {
      if (data_.FindQueue(waiter->keys.front()) == nullptr) continue;
      return absl::InternalError(absl::StrCat("store: waiter ",
                                              waiter->id.value(),
                                              " awaits an item that is there"));
    }
    const int64_t missing = std::count_if(
        waiter->distinct.begin(), waiter->distinct.end(),
        [&](absl::string_view key) { return !data_.Contains(key); });
    if (missing != waiter->missing || missing == 0) {
      return absl::InternalError(
          absl::StrCat("store: waiter ", waiter->id.value(), " misses ",
                       missing, " keys, counts ", waiter->missing));
    }
  }
  return absl::OkStatus();
}

}  // namespace muster::coordinator::core
