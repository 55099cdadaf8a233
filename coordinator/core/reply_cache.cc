#include "coordinator/core/reply_cache.h"

#include <algorithm>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "coordinator/core/payload.h"

namespace muster::coordinator::core {
namespace {

// What `reply` keeps alive beyond its own fixed size. Formations and barrier
// results are shared by all members and not counted.
int64_t HeldBytes(const Reply& reply) {
  int64_t bytes = static_cast<int64_t>(reply.status.message().size());
  if (const auto* set = std::get_if<CompareSetReply>(&reply.payload)) {
    if (set->value != nullptr)
      bytes += static_cast<int64_t>(set->value->size());
  }
  return bytes;
}

}  // namespace

void ReplyCache::Acknowledge(SequenceNumber through) {
  while (!window_.empty() && first_ <= through.value()) {
    bytes_ -= HeldBytes(window_.front().reply);
    window_.pop_front();
    ++first_;
  }
  if (first_ <= through.value()) first_ = through.value() + 1;
}

absl::StatusOr<ReplyCache::Entry*> ReplyCache::Find(SequenceNumber sequence,
                                                    const Limits& limits) {
  const uint64_t number = sequence.value();
  if (number < first_) {
    return absl::FailedPreconditionError(
        absl::StrCat("sequence ", number, " was acknowledged before (through ",
                     first_ - 1, ")"));
  }
  const uint64_t offset = number - first_;
  if (offset >= window_.size()) {
    if (offset >= static_cast<uint64_t>(limits.retained_replies)) {
      return CheckLimit(
          "retained_replies", limits.retained_replies,
          static_cast<int64_t>(std::min<uint64_t>(offset, INT64_MAX - 1)) + 1);
    }
    if (bytes_ >= limits.retained_reply_bytes) {
      return CheckLimit("retained_reply_bytes", limits.retained_reply_bytes,
                        bytes_ + 1);
    }
    window_.resize(offset + 1);
  }
  return &window_[offset];
}

ReplyCache::Entry* ReplyCache::Lookup(SequenceNumber sequence) {
  const uint64_t number = sequence.value();
  if (number < first_ || number - first_ >= window_.size()) return nullptr;
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
  bytes_ += HeldBytes(reply);
}

void ReplyCache::Forget(SequenceNumber sequence) {
  Entry* entry = Lookup(sequence);
  if (entry == nullptr) return;
  bytes_ -= HeldBytes(entry->reply);
  *entry = Entry();
}

int64_t ReplyCache::size() const {
  return std::count_if(window_.begin(), window_.end(), [](const Entry& entry) {
    return entry.state != State::kNew;
  });
}

}  // namespace muster::coordinator::core
