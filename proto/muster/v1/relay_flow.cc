#include "proto/muster/v1/relay_flow.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::v1 {
namespace {

// A part takes up this beside its bytes, so that empty ones are limited, too.
constexpr int64_t kPartCost = 16;
constexpr size_t kPartBytesMax = 16 << 10;
// Less is not worth a frame. The sender is not held up: it has the rest of the
// window.
constexpr int64_t kCreditMin = kRelayWindowBytes / 4;

int64_t ComputeCost(size_t bytes) {
  return static_cast<int64_t>(bytes) + kPartCost;
}

}  // namespace

void RelaySender::Begin(std::string message) {
  sending_ = true;
  message_ = std::move(message);
  sent_ = 0;
}

bool RelaySender::ready() const {
  if (!sending_) return false;
  const int64_t left = kRelayWindowBytes - used_ - kPartCost;
  return sent_ == message_.size() ? left >= 0 : left > 0;
}

bool RelaySender::MakePart(RelayFrame* frame) {
  const int64_t left = kRelayWindowBytes - used_ - kPartCost;
  const size_t bytes =
      std::min({message_.size() - sent_, kPartBytesMax,
                static_cast<size_t>(std::max<int64_t>(left, 0))});
  used_ += ComputeCost(bytes);
  const bool last = sent_ + bytes == message_.size();
  if (last && sent_ == 0) {
    frame->set_last_part(std::move(message_));
  } else if (last) {
    frame->set_last_part(message_.data() + sent_, bytes);
  } else {
    frame->set_part(message_.data() + sent_, bytes);
  }
  sent_ += bytes;
  if (!last) return false;
  sending_ = false;
  std::string().swap(message_);
  return true;
}

Status RelaySender::AddCredit(int64_t bytes) {
  if (bytes > used_) {
    return InvalidArgumentError(absl::StrCat(
        "a credit of ", bytes, " bytes, of which ", used_, " were used"));
  }
  used_ -= bytes;
  return OkStatus();
}

Status RelayReceiver::Add(std::string part, bool last) {
  const int64_t cost = ComputeCost(part.size());
  if (outstanding_ + cost > kRelayWindowBytes) {
    return InvalidArgumentError(absl::StrCat("a part of ", part.size(),
                                             " bytes, with credit for ",
                                             kRelayWindowBytes - outstanding_));
  }
  outstanding_ += cost;
  if (reading_ && !complete_) {
    Consume(std::move(part), last);
  } else {
    waiting_bytes_ += part.size();
    waiting_.push_back({std::move(part), last});
  }
  return OkStatus();
}

void RelayReceiver::Consume(std::string&& bytes, bool last) {
  consumed_ += ComputeCost(bytes.size());
  if (message_.empty()) {
    message_ = std::move(bytes);
  } else {
    message_.append(bytes);
  }
  complete_ = last;
}

void RelayReceiver::Read() {
  reading_ = true;
  while (!complete_ && next_ < waiting_.size()) {
    Part& part = waiting_[next_++];
    waiting_bytes_ -= part.bytes.size();
    Consume(std::move(part.bytes), part.last);
  }
  if (next_ < waiting_.size()) return;
  std::vector<Part>().swap(waiting_);
  next_ = 0;
}

std::string RelayReceiver::TakeMessage() {
  reading_ = false;
  complete_ = false;
  return std::exchange(message_, std::string());
}

int64_t RelayReceiver::TakeCredit() {
  if (consumed_ < kCreditMin) return 0;
  outstanding_ -= consumed_;
  return std::exchange(consumed_, 0);
}

}  // namespace muster::v1
