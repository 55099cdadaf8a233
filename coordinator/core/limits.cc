#include "coordinator/core/limits.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/total_memory.h"

namespace muster::coordinator::core {

absl::Span<const absl::string_view> LimitsWithFlag() {
  static constexpr absl::string_view kNames[] = {
      "groups",      "inbound_bytes", "jobs",          "jobs_per_token",
      "keys",        "members",       "message_bytes", "queue_items",
      "sessions",    "store_bytes",   "total_bytes",   "unsent_bytes",
      "value_bytes", "waiter_bytes",  "waiters"};
  return kNames;
}

absl::Status CheckLimit(absl::string_view name, int64_t limit, int64_t offered,
                        const Offer& offer) {
  if (offered <= limit) return absl::OkStatus();
  return LimitError(name, limit, offered, offer);
}

absl::Status LimitError(absl::string_view name, int64_t limit, int64_t offered,
                        const Offer& offer, absl::string_view how) {
  std::string text =
      absl::StrCat("limit ", name, " is ", limit, ", offered ", offered);
  if (!offer.kind.empty()) {
    constexpr size_t kNameBytesMax = 64;
    absl::StrAppend(&text, " (", offer.kind, " \"",
                    absl::CHexEscape(offer.name.substr(0, kNameBytesMax)),
                    offer.name.size() > kNameBytesMax ? "..." : "", "\")");
  }
  absl::StrAppend(&text, how);
  const absl::Span<const absl::string_view> flags = LimitsWithFlag();
  if (std::find(flags.begin(), flags.end(), name) != flags.end()) {
    absl::StrAppend(&text, "; the coordinator's --limit_", name, " sets it");
  }
  return absl::ResourceExhaustedError(text);
}

absl::Status CheckParkedTime(const Limits& limits, Duration timeout) {
  if (timeout <= limits.parked_time) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("limit parked_time is ", FormatDuration(limits.parked_time),
                   ", offered ", FormatDuration(timeout)));
}

std::string CutText(absl::string_view text, int64_t bytes_max) {
  size_t keep = static_cast<size_t>(bytes_max);
  if (text.size() <= keep) return std::string(text);
  while (keep > 0 && (static_cast<uint8_t>(text[keep]) & 0xC0) == 0x80) --keep;
  return std::string(text.substr(0, keep));
}

std::string TextInNotice(absl::string_view text) {
  const std::string shown = CutText(text, kTextInNoticeMax);
  return absl::StrCat("\"", absl::CEscape(shown),
                      shown.size() < text.size() ? "...\"" : "\"");
}

absl::Status WaiterQuota::Take(int64_t bytes, const Offer& offer) {
  absl::Status status = CheckLimit("waiters", limit_, parked_ + 1, offer);
  if (status.ok()) {
    status = CheckLimit("waiter_bytes", bytes_limit_, bytes_ + bytes, offer);
  }
  if (status.ok() && memory_ != nullptr) {
    status = memory_->Check(bytes + kWaiterMemory, offer);
  }
  if (!status.ok()) return status;
  ++parked_;
  bytes_ += bytes;
  if (memory_ != nullptr) memory_->Add(bytes + kWaiterMemory);
  return status;
}

void WaiterQuota::Release(int64_t bytes) {
  --parked_;
  bytes_ -= bytes;
  if (memory_ != nullptr) memory_->Add(-bytes - kWaiterMemory);
}

}  // namespace muster::coordinator::core
