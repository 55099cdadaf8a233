#include "coordinator/core/limits.h"

#include "absl/strings/str_cat.h"

namespace muster::coordinator::core {

absl::Status CheckLimit(absl::string_view name, int64_t limit,
                        int64_t offered) {
  if (offered <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("limit ", name, " is ", limit, ", offered ", offered));
}

absl::Status CheckParkedTime(const Limits& limits, Duration timeout) {
  if (timeout <= limits.parked_time) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("limit parked_time is ", FormatDuration(limits.parked_time),
                   ", offered ", FormatDuration(timeout)));
}

absl::Status WaiterQuota::Take() {
  absl::Status status = CheckLimit("waiters", limit_, parked_ + 1);
  if (status.ok()) ++parked_;
  return status;
}

}  // namespace muster::coordinator::core
