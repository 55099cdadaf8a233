#include "muster/base/status.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr std::array<const char*, 17> kCodeNames = {"OK",
                                                    "CANCELLED",
                                                    "UNKNOWN",
                                                    "INVALID_ARGUMENT",
                                                    "DEADLINE_EXCEEDED",
                                                    "NOT_FOUND",
                                                    "ALREADY_EXISTS",
                                                    "PERMISSION_DENIED",
                                                    "RESOURCE_EXHAUSTED",
                                                    "FAILED_PRECONDITION",
                                                    "ABORTED",
                                                    "OUT_OF_RANGE",
                                                    "UNIMPLEMENTED",
                                                    "INTERNAL",
                                                    "UNAVAILABLE",
                                                    "DATA_LOSS",
                                                    "UNAUTHENTICATED"};

bool IsCode(StatusCode code) {
  return static_cast<size_t>(code) < kCodeNames.size();
}

struct Payload {
  std::string name;
  std::string bytes;

  friend bool operator==(const Payload&, const Payload&) = default;
};

const std::string& NoMessage() {
  static const std::string& empty = *new std::string;
  return empty;
}

}  // namespace

struct Status::Failure {
  StatusCode code;
  std::string message;
  std::vector<Payload> payloads = {};

  friend bool operator==(const Failure& a, const Failure& b) {
    return a.code == b.code && a.message == b.message &&
           std::is_permutation(a.payloads.begin(), a.payloads.end(),
                               b.payloads.begin(), b.payloads.end());
  }
};

const char* StatusCodeToString(StatusCode code) {
  return IsCode(code) ? kCodeNames[static_cast<size_t>(code)] : "";
}

std::ostream& operator<<(std::ostream& out, StatusCode code) {
  return out << StatusCodeToString(code);
}

StatusCode ErrnoToStatusCode(int error) {
  return static_cast<StatusCode>(absl::ErrnoToStatusCode(error));
}

Status ErrnoToStatus(int error, std::string message) {
  return Status(
      ErrnoToStatusCode(error),
      std::move(message) + ": " + std::generic_category().message(error));
}

Status::Status(StatusCode code, std::string message) {
  if (code == StatusCode::kOk) return;
  failure_ = std::make_shared<const Failure>(
      Failure{.code = IsCode(code) ? code : StatusCode::kUnknown,
              .message = std::move(message)});
}

StatusCode Status::code() const {
  return ok() ? StatusCode::kOk : failure_->code;
}

const std::string& Status::message() const {
  return ok() ? NoMessage() : failure_->message;
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  std::string text =
      absl::StrCat(StatusCodeToString(failure_->code), ": ", failure_->message);
  for (const Payload& payload : failure_->payloads) {
    absl::StrAppend(&text, " [", payload.name, "='",
                    absl::CHexEscape(payload.bytes), "']");
  }
  return text;
}

std::optional<std::string> Status::GetPayload(std::string_view name) const {
  if (ok()) return std::nullopt;
  for (const Payload& payload : failure_->payloads) {
    if (payload.name == name) return payload.bytes;
  }
  return std::nullopt;
}

void Status::SetPayload(std::string_view name, std::string bytes) {
  if (ok()) return;
  auto changed = std::make_shared<Failure>(*failure_);
  const auto found = std::find_if(
      changed->payloads.begin(), changed->payloads.end(),
      [&](const Payload& payload) { return payload.name == name; });
  if (found == changed->payloads.end()) {
    changed->payloads.push_back({std::string(name), std::move(bytes)});
  } else {
    found->bytes = std::move(bytes);
  }
  failure_ = std::move(changed);
}

bool Status::ErasePayload(std::string_view name) {
  if (!GetPayload(name).has_value()) return false;
  auto changed = std::make_shared<Failure>(*failure_);
  std::erase_if(changed->payloads,
                [&](const Payload& payload) { return payload.name == name; });
  failure_ = std::move(changed);
  return true;
}

void Status::ForEachPayload(
    const std::function<void(const std::string& name,
                             const std::string& bytes)>& visit) const {
  if (ok()) return;
  for (const Payload& payload : failure_->payloads) {
    visit(payload.name, payload.bytes);
  }
}

bool operator==(const Status& a, const Status& b) {
  if (a.failure_ == b.failure_) return true;
  return !a.ok() && !b.ok() && *a.failure_ == *b.failure_;
}

std::ostream& operator<<(std::ostream& out, const Status& status) {
  return out << status.ToString();
}

#define MUSTER_STATUS(Name)                                 \
  Status Name##Error(std::string message) {                 \
    return Status(StatusCode::k##Name, std::move(message)); \
  }                                                         \
  bool Is##Name(const Status& status) {                     \
    return status.code() == StatusCode::k##Name;            \
  }

MUSTER_STATUS(Aborted)
MUSTER_STATUS(AlreadyExists)
MUSTER_STATUS(Cancelled)
MUSTER_STATUS(DataLoss)
MUSTER_STATUS(DeadlineExceeded)
MUSTER_STATUS(FailedPrecondition)
MUSTER_STATUS(Internal)
MUSTER_STATUS(InvalidArgument)
MUSTER_STATUS(NotFound)
MUSTER_STATUS(OutOfRange)
MUSTER_STATUS(PermissionDenied)
MUSTER_STATUS(ResourceExhausted)
MUSTER_STATUS(Unauthenticated)
MUSTER_STATUS(Unavailable)
MUSTER_STATUS(Unimplemented)
MUSTER_STATUS(Unknown)

#undef MUSTER_STATUS

namespace internal {

void NoValue(const Status& status) {
  std::fprintf(stderr, "a StatusOr without a value was read: %s\n",
               status.ToString().c_str());
  std::abort();
}

}  // namespace internal
}  // namespace muster
