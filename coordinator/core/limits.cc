#include "coordinator/core/limits.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/text.h"
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

Status CheckLimit(absl::string_view name, int64_t limit, int64_t offered,
                  const Offer& offer) {
  if (offered <= limit) return OkStatus();
  return LimitError(name, limit, offered, offer);
}

Status LimitError(absl::string_view name, int64_t limit, int64_t offered,
                  const Offer& offer, absl::string_view how) {
  std::string text =
      absl::StrCat("limit ", name, " is ", limit, ", offered ", offered);
  if (!offer.kind.empty()) {
    constexpr size_t kNameBytesMax = 64;
    absl::StrAppend(&text, " (", offer.kind);
    if (!offer.name.empty()) {
      absl::StrAppend(&text, " ", base::Quote(offer.name, kNameBytesMax));
    }
    absl::StrAppend(&text, ")");
  }
  absl::StrAppend(&text, how, LimitAdvice(name));
  return ResourceExhaustedError(text);
}

std::string LimitAdvice(absl::string_view name) {
  const absl::Span<const absl::string_view> flags = LimitsWithFlag();
  if (std::find(flags.begin(), flags.end(), name) == flags.end()) return "";
  const std::string flag = absl::StrCat("limit_", name);
  if (limits_have_flags) {
    return absl::StrCat("; the coordinator's --", flag, " sets it");
  }
  return absl::StrCat(
      name == "value_bytes" ? "; divide the value among several keys" : "",
      "; a coordinator inside a program, as a TcpStore's, keeps this limit, "
      "muster-coordinator's --",
      flag, " sets another");
}

Status CheckParkedTime(const Limits& limits, Duration timeout) {
  if (timeout <= limits.parked_time) return OkStatus();
  return ResourceExhaustedError(
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
  return base::Quote(text, CutText(text, kTextInNoticeMax).size());
}

Status WaiterQuota::Take(int64_t bytes, const Offer& offer) {
  Status status = CheckLimit("waiters", limit_, parked_ + 1, offer);
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
