// How a call went, without an exception: a Status, or a StatusOr<T> that holds
// a value or says why there is none.
//
//   muster::StatusOr<int> port = ParsePort(text);
//   if (!port.ok()) return port.status();
//   Listen(*port);
//
// The codes and their meanings are gRPC's. Any thread may use an object; an
// object that one thread changes is that thread's alone.

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

namespace muster {

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

// "INVALID_ARGUMENT"; empty if it is no code.
const char* StatusCodeToString(StatusCode code);
std::ostream& operator<<(std::ostream& out, StatusCode code);

// The code for an error number of the system; kUnknown for most.
StatusCode ErrnoToStatusCode(int error);

// A code, a text for people, and payloads: bytes under a name, for programs.
// OK has neither a text nor payloads.
class [[nodiscard]] Status {
 public:
  // OK.
  Status() = default;
  // A number that is no code becomes kUnknown.
  Status(StatusCode code, std::string message);

  bool ok() const { return failure_ == nullptr; }
  StatusCode code() const;
  // Lives as long as this status is neither changed nor destroyed.
  const std::string& message() const;

  // "OK", or the code, ": ", the text, and each payload as " [name='bytes']".
  std::string ToString() const;

  // Takes `other` if this one is OK: the first failure stays.
  void Update(Status other) {
    if (ok()) *this = std::move(other);
  }

  // None if there is no payload of this name.
  std::optional<std::string> GetPayload(std::string_view name) const;
  // Replaces the one of this name. Does nothing if the status is OK.
  void SetPayload(std::string_view name, std::string bytes);
  // Whether there was one.
  bool ErasePayload(std::string_view name);
  // In the order in which they were set.
  void ForEachPayload(
      const std::function<void(const std::string& name,
                               const std::string& bytes)>& visit) const;

  // Says to the compiler that the caller does not mind a failure.
  void IgnoreError() const {}

  // Whether code, text and payloads are equal.
  friend bool operator==(const Status& a, const Status& b);

 private:
  struct Failure;

  // Null: OK. Copies share it, so it never changes.
  std::shared_ptr<const Failure> failure_;
};

std::ostream& operator<<(std::ostream& out, const Status& status);

// The error number's code, and `message`, ": ", the system's text for it.
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

// Ends the process: a value was read where `status` says that there is none.
[[noreturn]] void NoValue(const Status& status);

template <typename T>
inline constexpr bool kIsStatusOr = false;
template <typename T>
inline constexpr bool kIsStatusOr<StatusOr<T>> = true;

}  // namespace internal

// A T, or a status that is not OK. Reading the value of one that has none ends
// the process with the status's text.
template <typename T>
class [[nodiscard]] StatusOr {
 public:
  using value_type = T;

  // Without a value: kUnknown.
  StatusOr() : status_(UnknownError("")) {}
  // `status` is not OK; an OK one becomes kInternal.
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

  // As Status's.
  void IgnoreError() const {}

  // Whether the values are equal, or the failures.
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
