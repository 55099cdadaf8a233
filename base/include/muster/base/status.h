// The result of a call that throws no exceptions: a Status, or a StatusOr<T>,
// which holds either a value or the reason why there is none.
//
//   muster::StatusOr<int> port = ParsePort(text);
//   if (!port.ok()) return port.status();
//   Listen(*port);
//
// The codes and their meanings are gRPC's. Several threads may read an object
// at the same time; a thread that changes it needs exclusive access.

#ifndef MUSTER_BASE_STATUS_H_
#define MUSTER_BASE_STATUS_H_

#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "muster/base/export.h"

namespace MUSTER_EXPORT muster {

enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// "INVALID_ARGUMENT"; empty if `code` is not a known code.
const char* StatusCodeToString(StatusCode code);
std::ostream& operator<<(std::ostream& out, StatusCode code);

// The code for an errno value; kUnknown for most.
StatusCode ErrnoToStatusCode(int error);

// A code, a text for people, and payloads for programs (named byte strings). An
// OK status has neither text nor payloads. A status that was moved from is OK:
// whoever moves one away must not ask it afterwards.
class [[nodiscard]] Status {
 public:
  // OK.
  Status() = default;
  // An unknown code becomes kUnknown.
  Status(StatusCode code, std::string message);

  bool ok() const { return failure_ == nullptr; }
  StatusCode code() const;
  // The reference is valid until this status is changed or destroyed.
  const std::string& message() const;

  // "OK", or the code, ": ", the text, and each payload as " [name='bytes']".
  std::string ToString() const;

  // Assigns `other` if this status is OK, so the first failure stays.
  void Update(Status other) {
    if (ok()) *this = std::move(other);
  }

  // Returns nullopt if there is no payload of this name.
  std::optional<std::string> GetPayload(std::string_view name) const;
  // Sets or replaces the payload of this name. Does nothing if the status is
  // OK.
  void SetPayload(std::string_view name, std::string bytes);
  // Returns whether there was a payload of this name.
  bool ErasePayload(std::string_view name);
  // Visits the payloads in the order in which they were set.
  void ForEachPayload(
      const std::function<void(const std::string& name,
                               const std::string& bytes)>& visit) const;

  // Silences the compiler's warning about an unused result.
  void IgnoreError() const {}

  // Compares code, text and payloads.
  friend bool operator==(const Status& a, const Status& b);

 private:
  struct Failure;

  // Null: OK. Copies share the object, so it never changes.
  std::shared_ptr<const Failure> failure_;
};

std::ostream& operator<<(std::ostream& out, const Status& status);

// The code for errno value `error`, with the text `message`, ": ", and the
// system's description.
Status ErrnoToStatus(int error, std::string message);

inline Status OkStatus() { return Status(); }

Status AbortedError(std::string message);
Status AlreadyExistsError(std::string message);
Status CancelledError(std::string message = "");
Status DataLossError(std::string message);
Status DeadlineExceededError(std::string message);
Status FailedPreconditionError(std::string message);
Status InternalError(std::string message);
Status InvalidArgumentError(std::string message);
Status NotFoundError(std::string message);
Status OutOfRangeError(std::string message);
Status PermissionDeniedError(std::string message);
Status ResourceExhaustedError(std::string message);
Status UnauthenticatedError(std::string message);
Status UnavailableError(std::string message);
Status UnimplementedError(std::string message);
Status UnknownError(std::string message);

bool IsAborted(const Status& status);
bool IsAlreadyExists(const Status& status);
bool IsCancelled(const Status& status);
bool IsDataLoss(const Status& status);
bool IsDeadlineExceeded(const Status& status);
bool IsFailedPrecondition(const Status& status);
bool IsInternal(const Status& status);
bool IsInvalidArgument(const Status& status);
bool IsNotFound(const Status& status);
bool IsOutOfRange(const Status& status);
bool IsPermissionDenied(const Status& status);
bool IsResourceExhausted(const Status& status);
bool IsUnauthenticated(const Status& status);
bool IsUnavailable(const Status& status);
bool IsUnimplemented(const Status& status);
bool IsUnknown(const Status& status);

template <typename T>
class StatusOr;

namespace internal {

// Ends the process: a value was read from a StatusOr that holds `status`
// instead.
[[noreturn]] void NoValue(const Status& status);

template <typename T>
inline constexpr bool kIsStatusOr = false;
template <typename T>
inline constexpr bool kIsStatusOr<StatusOr<T>> = true;

}  // namespace internal

// A T, or a status that is not OK. Reading the value when there is none ends
// the process with the status's text. A move leaves ok() as it was; the status
// that was moved away is OK then, as Status says.
template <typename T>
class [[nodiscard]] StatusOr {
 public:
  using value_type = T;

  // Holds no value; the status is kUnknown.
  StatusOr() : status_(UnknownError("")) {}
  // `status` must not be OK; an OK one becomes kInternal.
  StatusOr(Status status) : status_(std::move(status)) {
    if (status_.ok()) status_ = InternalError("an OK status without a value");
  }
  template <typename U = T>
  requires(std::is_constructible_v<T, U&&> &&
           !std::is_same_v<std::remove_cvref_t<U>, Status> &&
           !internal::kIsStatusOr<
               std::remove_cvref_t<U>>) explicit(!std::is_convertible_v<U&&, T>)
      StatusOr(U&& value)
      : value_(std::in_place, std::forward<U>(value)) {}
  template <typename U>
  requires(std::is_constructible_v<T, U&&> &&
           !std::is_same_v<T, U>) explicit(!std::is_convertible_v<U&&, T>)
      StatusOr(StatusOr<U> other) {
    if (other.ok()) {
      value_.emplace(*std::move(other));
    } else {
      status_ = std::move(other).status();
    }
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const& { return status_; }
  Status status() && { return std::move(status_); }

  T& operator*() & { return Checked(); }
  const T& operator*() const& { return Checked(); }
  T&& operator*() && { return std::move(Checked()); }
  T* operator->() { return &Checked(); }
  const T* operator->() const { return &Checked(); }
  T& value() & { return Checked(); }
  const T& value() const& { return Checked(); }
  T&& value() && { return std::move(Checked()); }

  template <typename U>
  T value_or(U&& otherwise) const& {
    return value_.value_or(std::forward<U>(otherwise));
  }
  template <typename U>
  T value_or(U&& otherwise) && {
    return std::move(value_).value_or(std::forward<U>(otherwise));
  }

  // See Status::IgnoreError.
  void IgnoreError() const {}

  // Compares the values, or the failures.
  friend bool operator==(const StatusOr& a, const StatusOr& b) {
    return a.value_ == b.value_ && a.status_ == b.status_;
  }

 private:
  T& Checked() {
    if (!value_.has_value()) internal::NoValue(status_);
    return *value_;
  }
  const T& Checked() const {
    if (!value_.has_value()) internal::NoValue(status_);
    return *value_;
  }

  std::optional<T> value_;
  Status status_;  // OK if there is a value
};

}  // namespace muster

#endif  // MUSTER_BASE_STATUS_H_
