#include "client/stores/store_rules.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace muster::internal {

bool IsReservedKey(absl::string_view key) {
  return absl::StartsWith(key, kReservedKeyPrefix);
}

void DropReservedKeys(absl::string_view prefix,
                      std::vector<std::string>& keys) {
  if (!IsReservedKey(prefix)) std::erase_if(keys, IsReservedKey);
}

StatusOr<int64_t> Sum(absl::string_view key, const std::string* present,
                      int64_t delta) {
  if (present == nullptr) return delta;
  int64_t number = 0;
  const char* const end = present->data() + present->size();
  const auto [stop, error] = std::from_chars(present->data(), end, number);
  if (error != std::errc() || stop != end) {
    return InvalidArgumentError(absl::StrCat("add: key ", base::Excerpt(key),
                                             " holds ", base::Excerpt(*present),
                                             ", which is not a decimal int64"));
  }
  int64_t sum = 0;
  if (__builtin_add_overflow(number, delta, &sum)) {
    return OutOfRangeError(absl::StrCat("add: key ", base::Excerpt(key),
                                        " holds ", number, ", and adding ",
                                        delta, " overflows an int64"));
  }
  return sum;
}

CompareSetDecision DecideCompareSet(const std::string* present,
                                    absl::string_view expected,
                                    absl::string_view desired) {
  if (present == nullptr) {
    const bool write = expected.empty();
    return {.write = write, .result = write ? desired : expected};
  }
  const bool write = *present == expected;
  return {.write = write, .result = write ? desired : *present};
}

Status CheckSameLength(const std::vector<std::string>& keys,
                       const std::vector<std::string>& values) {
  if (keys.size() == values.size()) return OkStatus();
  return InvalidArgumentError(absl::StrCat(
      "multiSet keys and values vectors must be of same size: ", keys.size(),
      " keys, ", values.size(), " values"));
}

Status CheckTimeout(std::chrono::milliseconds timeout, absl::string_view call) {
  if (timeout.count() > 0) return OkStatus();
  return InvalidArgumentError(absl::StrCat(
      call, ": the timeout must be positive but was ", timeout.count(), " ms"));
}

Deadline StoreDeadline(std::chrono::milliseconds timeout) {
  return Deadline::After(timeout, "Store::SetTimeout");
}

Deadline WaitDeadline(std::chrono::milliseconds timeout) {
  return Deadline::After(timeout, "timeout of Store::Wait");
}

Status WaitTimeout(const std::vector<std::string>& missing,
                   const Deadline& deadline) {
  const std::vector<absl::string_view> keys(missing.begin(), missing.end());
  return DeadlineExceededError(absl::StrCat(
      base::WaitTimeoutText(deadline.timeout, keys), " ", deadline.Blame()));
}

}  // namespace muster::internal
