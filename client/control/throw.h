// Converts a status to an exception with its details.

#ifndef MUSTER_CLIENT_CONTROL_THROW_H_
#define MUSTER_CLIENT_CONTROL_THROW_H_

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "muster/base/status.h"
#include "muster/errors.h"

namespace muster::internal {

// The source of a status, which decides the class of the exception.
// kUnavailable from any source means that there was no answer:
// DistNetworkError.
enum class ErrorSource {
  // DistError.
  kControl,
  // DistStoreError.
  kStore,
  // DistBackendError.
  kBackend,
};

// `status` must not be OK.
[[noreturn]] void Throw(ErrorSource source, Status status);

// Throws DistError (kInvalidArgument): a caller's argument is wrong.
[[noreturn]] void Invalid(std::string text);

inline void ThrowIfFailed(ErrorSource source, Status status) {
  if (!status.ok()) Throw(source, std::move(status));
}

template <typename T>
T ValueOrThrow(ErrorSource source, StatusOr<T> value) {
  if (!value.ok()) Throw(source, value.status());
  return *std::move(value);
}

// Returns the item of a pop. Throws DistStoreError, and its subclass
// QueueEmptyError for kNotFound.
std::string ItemOrThrow(StatusOr<std::string> item);

// `timeout`. Throws DistError (kInvalidArgument) if it is negative.
[[noreturn]] void ThrowNegative(std::chrono::milliseconds timeout,
                                absl::string_view name);
inline std::chrono::milliseconds CheckNotNegative(
    std::chrono::milliseconds timeout, absl::string_view name = "timeout") {
  if (timeout.count() < 0) ThrowNegative(timeout, name);
  return timeout;
}

// The ranks that a status blames.
struct Culprits {
  std::vector<MemberInfo> members;
  // Further culprits, of which only the rank is known.
  std::vector<RankRange> others = {};

  bool empty() const { return members.empty() && others.empty(); }
  size_t size() const;
  bool Include(int rank) const;
};

// Stores them in the status as the protocol's payload.
Status WithCulprits(Status status, const Culprits& culprits);
Culprits ToCulprits(const Status& status);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_THROW_H_
