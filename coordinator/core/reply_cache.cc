#include "coordinator/core/reply_cache.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/payload.h"
#include "coordinator/core/payload_bytes.h"

namespace muster::coordinator::core {
namespace {

// A member may always hold this much, even if the job's memory is full: then a
// member that makes one call at a time can delete keys.
constexpr int64_t kUncheckedBytes = 8 * kReplyMemory;

// Returns the memory that `reply` takes beyond its own fixed size.
int64_t CountBytes(const Reply& reply) {
  return static_cast<int64_t>(reply.status.message().size()) +
         HeldBytes(reply.payload);
}

}  // namespace

Status CheckAcknowledged(SequenceNumber through) {
  constexpr uint64_t kMax = INT64_MAX;
  if (through.value() <= kMax) return OkStatus();
  return InvalidArgumentError(absl::StrCat(
      "acknowledged_through is ", through.value(), ", must be at most ", kMax));
}

Status ReplyCache::Acknowledge(
    SequenceNumber through, absl::Span<const SequenceNumber> unanswered,
    const Limits& limits, absl::FunctionRef<void(SequenceNumber)> forgotten) {
  Status status = CheckAcknowledged(through);
  if (status.ok()) {
    status = CheckLimit("retained_replies", limits.retained_replies,
                        static_cast<int64_t>(unanswered.size()));
  }
  const auto open_bytes =
      kReplyMemory * static_cast<int64_t>(unanswered.size());
  if (status.ok() && open_bytes > kUncheckedBytes) {
    status = held_.Check(std::max(open_bytes, held_.bytes()));
  }
  if (!status.ok()) return status;
  const auto is_unanswered = [&](uint64_t number) {
    return std::binary_search(unanswered.begin(), unanswered.end(),
                              SequenceNumber(number));
  };
  const auto drop = [&](uint64_t number, const Entry& entry) {
    bytes_ -= CountBytes(entry.reply);
    if (entry.state == State::kDone) forgotten(SequenceNumber(number));
  };
  // An overtaken acknowledgement says nothing about numbers above it.
  for (auto it = stragglers_.begin();
       it != stragglers_.end() && it->first <= through.value();) {
    if (is_unanswered(it->first)) {
      ++it;
    } else {
      drop(it->first, it->second);
      it = stragglers_.erase(it);
    }
  }
  if (first_ > through.value()) {
    Account();
    return OkStatus();
  }
  // Includes numbers that never arrived: their retries are under way and must
  // be applied.
  for (const SequenceNumber number : unanswered) {
    if (number.value() < first_ || number > through) continue;
    Entry* entry = Lookup(number);
    stragglers_.emplace(number.value(),
                        entry == nullptr ? Entry() : std::move(*entry));
    if (entry != nullptr) *entry = Entry();
  }
  while (!window_.empty() && first_ <= through.value()) {
    drop(first_, window_.front());
    window_.pop_front();
    ++first_;
  }
  first_ = through.value() + 1;
  Account();
  return OkStatus();
}

void ReplyCache::Account() {
  held_.Set(bytes_ + kReplyMemory * static_cast<int64_t>(window_.size() +
                                                         stragglers_.size()));
}

StatusOr<ReplyCache::Entry*> ReplyCache::Claim(Entry& entry,
                                               SequenceNumber sequence,
                                               absl::string_view method) {
  if (entry.state == State::kNew) {
    entry.method = std::string(method);
  } else if (entry.method != method) {
    return InvalidArgumentError(absl::StrCat("sequence ", sequence.value(),
                                             " of ", method, " was used for ",
                                             entry.method, " before"));
  }
  return &entry;
}

StatusOr<ReplyCache::Entry*> ReplyCache::Find(SequenceNumber sequence,
                                              absl::string_view method,
                                              const Limits& limits) {
  const uint64_t number = sequence.value();
  if (number < first_) {
    if (Entry* straggler = Lookup(sequence); straggler != nullptr) {
      return Claim(*straggler, sequence, method);
    }
    return FailedPreconditionError(
        absl::StrCat("sequence ", number, " was acknowledged before (through ",
                     first_ - 1, ")"));
  }
  const uint64_t offset = number - first_;
  if (offset >= window_.size()) {
    const uint64_t before = stragglers_.size() + offset;
    if (before >= static_cast<uint64_t>(limits.retained_replies)) {
      return CheckLimit(
          "retained_replies", limits.retained_replies,
          static_cast<int64_t>(std::min<uint64_t>(before, INT64_MAX - 1)) + 1);
    }
    if (bytes_ >= limits.retained_reply_bytes) {
      return CheckLimit("retained_reply_bytes", limits.retained_reply_bytes,
                        bytes_ + 1);
    }
    const auto bytes =
        held_.bytes() +
        kReplyMemory * static_cast<int64_t>(offset + 1 - window_.size());
    if (bytes > kUncheckedBytes) {
      Status status = held_.Check(bytes, {"kept answer of", method});
      if (!status.ok()) return status;
    }
    window_.resize(offset + 1);
    Account();
  }
  return Claim(window_[offset], sequence, method);
}

ReplyCache::Entry* ReplyCache::Lookup(SequenceNumber sequence) {
  return const_cast<Entry*>(std::as_const(*this).Lookup(sequence));
}

const ReplyCache::Entry* ReplyCache::Lookup(SequenceNumber sequence) const {
  const uint64_t number = sequence.value();
  if (number < first_) {
    const auto straggler = stragglers_.find(number);
    return straggler == stragglers_.end() ? nullptr : &straggler->second;
  }
  if (number - first_ >= window_.size()) return nullptr;
  return &window_[number - first_];
}

void ReplyCache::SetParked(SequenceNumber sequence, WaiterId waiter) {
  Entry* entry = Lookup(sequence);
  if (entry == nullptr) return;
  entry->state = State::kParked;
  entry->waiter = waiter;
}

void ReplyCache::SetDone(SequenceNumber sequence, const Reply& reply) {
  Entry* entry = Lookup(sequence);
  if (entry == nullptr) return;
  entry->state = State::kDone;
  entry->waiter = WaiterId();
  entry->reply = reply;
  bytes_ += CountBytes(reply);
  Account();
}

void ReplyCache::Forget(SequenceNumber sequence) {
  Entry* entry = Lookup(sequence);
  if (entry == nullptr) return;
  bytes_ -= CountBytes(entry->reply);
  *entry = Entry();
  Account();
}

std::vector<SequenceNumber> ReplyCache::Answered() const {
  std::vector<SequenceNumber> answered;
  for (const auto& [number, entry] : stragglers_) {
    if (entry.state == State::kDone) answered.emplace_back(number);
  }
  for (size_t i = 0; i < window_.size(); ++i) {
    if (window_[i].state == State::kDone) answered.emplace_back(first_ + i);
  }
  return answered;
}

void ReplyCache::Record(ReplyRecord& record) const {
  const Entry* entry = Lookup(record.sequence);
  record.erased = entry == nullptr || entry->state != State::kDone;
  if (record.erased) return;
  record.acknowledged_through = SequenceNumber(first_ - 1);
  for (const auto& [number, straggler] : stragglers_) {
    if (straggler.state != State::kDone) record.open.emplace_back(number);
  }
  record.method = entry->method;
  record.status = entry->reply.status;
  record.payload = entry->reply.payload;
}

void ReplyCache::Restore(std::vector<ReplyRecord> records) {
  for (const ReplyRecord& record : records) {
    first_ = std::max(first_, record.acknowledged_through.value() + 1);
  }
  for (ReplyRecord& record : records) {
    // A number that was answered later counts as open until the member's next
    // acknowledgement. The member sends again only calls that it has no answer
    // to.
    for (const SequenceNumber number : record.open) {
      if (number.value() < first_) stragglers_.try_emplace(number.value());
    }
    const uint64_t number = record.sequence.value();
    if (number < first_) {
      stragglers_.try_emplace(number);
    } else if (number - first_ >= window_.size()) {
      window_.resize(number - first_ + 1);
    }
    Lookup(record.sequence)->method = std::move(record.method);
    SetDone(record.sequence, Reply{WaiterId(), std::move(record.status),
                                   std::move(record.payload)});
  }
}

int64_t ReplyCache::CountMemory() const {
  int64_t bytes = 0;
  for (const auto& [number, entry] : stragglers_) {
    bytes += kReplyMemory + CountBytes(entry.reply);
  }
  for (const Entry& entry : window_) {
    bytes += kReplyMemory + CountBytes(entry.reply);
  }
  return bytes;
}

int64_t ReplyCache::size() const {
  const auto count = [](int64_t sum, const Entry& entry) {
    return sum + (entry.state != State::kNew ? 1 : 0);
  };
  int64_t entries =
      std::accumulate(window_.begin(), window_.end(), int64_t{0}, count);
  for (const auto& [number, entry] : stragglers_) {
    entries = count(entries, entry);
  }
  return entries;
}

}  // namespace muster::coordinator::core
