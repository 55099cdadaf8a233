#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_TRANSPORT_ERRORS_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_TRANSPORT_ERRORS_H_

#include <exception>
#include <string>
#include <system_error>

#include "absl/strings/string_view.h"
#include "base/process_limits.h"
#include "base/status.h"

namespace muster::dataplane::cpu {

// Calls `function`, which uses Gloo, and converts its exceptions to
// kUnavailable, or to kResourceExhausted if a thread did not start. Gloo throws
// gloo::Exception and gloo::EnforceNotMet, whose only common base is
// std::exception.
template <typename Function>
Status Guard(Function&& function) {
  try {
    function();
    return OkStatus();
  } catch (const std::system_error& error) {
    return Status(IsOfThread(error) ? StatusCode::kResourceExhausted
                                    : StatusCode::kUnavailable,
                  DescribeSystemError(error));
  } catch (const std::exception& error) {
    return UnavailableError(error.what());
  }
}

// Removes the source position with which Gloo's texts begin: "[./a/b.cc:12]
// text".
std::string WithoutSourcePosition(absl::string_view text);

// `status` with `prefix` in front of its text and its payloads kept. A verdict
// is returned unchanged.
Status Prefixed(absl::string_view prefix, const Status& status);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_TRANSPORT_ERRORS_H_
