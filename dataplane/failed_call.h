#ifndef MUSTER_DATAPLANE_FAILED_CALL_H_
#define MUSTER_DATAPLANE_FAILED_CALL_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "muster/base/status.h"

namespace muster::dataplane {

struct Collective;

// The call in which a group failed. Programs read this payload instead of
// parsing the error's text.
struct FailedCall {
  std::string label;  // Collective::Label(): "all_reduce #418"
  bool is_point_to_point = false;

  static FailedCall Of(const Collective& collective);

  friend bool operator==(const FailedCall&, const FailedCall&) = default;
};

// The type URL of the status payload.
inline constexpr char kFailedCallUrl[] = "muster/failed_call";

void SetFailedCall(Status& status, const FailedCall& call);

// Empty if the error names no call.
std::optional<FailedCall> FindFailedCall(const Status& status);

// The beginning of such an error's text: `all_reduce #418 on group "world"`.
std::string MakeLabel(const FailedCall& call, absl::string_view group_name);

// Returns `failure` as the error of `call`: the same code and payloads, with
// MakeLabel in front of the text.
Status Labelled(const FailedCall& call, absl::string_view group_name,
                const Status& failure);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_FAILED_CALL_H_
