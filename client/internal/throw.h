// Where a status becomes an exception, and what a status carries until then.

#ifndef MUSTER_CLIENT_INTERNAL_THROW_H_
#define MUSTER_CLIENT_INTERNAL_THROW_H_

#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/errors.h"

namespace muster::internal {

// Who gave the status: it decides the class. kUnavailable means everywhere
// that there was no answer: DistNetworkError.
enum class Origin {
  // DistError.
  kControl,
  // DistStoreError.
  kStore,
  // DistBackendError.
  kBackend,
};

// `status` must not be OK.
[[noreturn]] void Throw(Origin origin, absl::Status status);

inline void ThrowIfFailed(Origin origin, absl::Status status) {
  if (!status.ok()) Throw(origin, std::move(status));
}

template <typename T>
T ValueOrThrow(Origin origin, absl::StatusOr<T> value) {
  if (!value.ok()) Throw(origin, value.status());
  return *std::move(value);
}

// `timeout`. Throws DistError (kInvalidArgument) if it is negative.
std::chrono::milliseconds CheckNotNegative(std::chrono::milliseconds timeout,
                                           absl::string_view name = "timeout");

// The members to blame, as part of a status (the protocol's payload).
// `omitted`: how many more there are than `culprits`.
absl::Status WithCulprits(absl::Status status,
                          const std::vector<MemberInfo>& culprits,
                          size_t omitted = 0);
std::vector<MemberInfo> CulpritsOf(const absl::Status& status);
size_t OmittedCulprits(const absl::Status& status);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_INTERNAL_THROW_H_
