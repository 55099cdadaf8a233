#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_TRANSPORT_ERRORS_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_TRANSPORT_ERRORS_H_

#include <exception>
#include <string>
#include <system_error>

#include "absl/strings/string_view.h"
#include "base/process_limits.h"
#include "base/status.h"

namespace muster::dataplane::cpu {

// Calls `function`, which calls Gloo, and turns what it throws into
// kUnavailable, or kResourceExhausted if a thread did not start. Gloo throws
// gloo::Exception and gloo::EnforceNotMet, which have only std::exception in
// common.
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

// Gloo's texts begin with where in Gloo they were made: "[./a/b.cc:12] text".
std::string WithoutSourcePosition(absl::string_view text);

// A status with text in front and its payload kept; a verdict as it is.
Status Prefixed(absl::string_view prefix, const Status& status);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_TRANSPORT_ERRORS_H_
