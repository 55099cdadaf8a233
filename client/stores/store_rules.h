// Rules that the in-process and file stores share with the coordinator's store:
// results and error texts.

#ifndef MUSTER_CLIENT_STORES_STORE_RULES_H_
#define MUSTER_CLIENT_STORES_STORE_RULES_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/control/deadline.h"
#include "muster/base/status.h"

namespace muster::internal {

// Prefix of the SDK's own keys. Lists of keys omit them unless the `prefix`
// that the user gives includes this one.
inline constexpr char kReservedKeyPrefix[] = "muster/";
bool IsReservedKey(absl::string_view key);
void DropReservedKeys(absl::string_view prefix, std::vector<std::string>& keys);

// Returns the value that Add stores; `present` is null if there is no key.
// Errors: kInvalidArgument (`present` is no whole decimal number), kOutOfRange.
StatusOr<int64_t> Sum(absl::string_view key, const std::string* present,
                      int64_t delta);

// The effect and the result of CompareSet; `present` is null if there is no
// key.
struct CompareSetDecision {
  bool write = false;
  absl::string_view result;
};
CompareSetDecision DecideCompareSet(const std::string* present,
                                    absl::string_view expected,
                                    absl::string_view desired);

// Errors: kInvalidArgument.
Status CheckSameLength(const std::vector<std::string>& keys,
                       const std::vector<std::string>& values);
// Checks that `timeout` is positive. The error begins with `call`.
Status CheckTimeout(std::chrono::milliseconds timeout,
                    absl::string_view call = "Store::SetTimeout");

// The deadline of one call of a store.
Deadline StoreDeadline(std::chrono::milliseconds timeout);
// The deadline of Store::Wait, which has a timeout argument.
Deadline WaitDeadline(std::chrono::milliseconds timeout);

// Returns "wait timeout after 100ms, keys: a, b (timeout: Store::SetTimeout)".
Status WaitTimeout(const std::vector<std::string>& missing,
                   const Deadline& deadline);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_STORES_STORE_RULES_H_
