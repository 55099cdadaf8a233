#ifndef MUSTER_COORDINATOR_SERVER_RPC_CONVERT_H_
#define MUSTER_COORDINATOR_SERVER_RPC_CONVERT_H_

#include <chrono>
#include <variant>

#include "absl/strings/string_view.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/payload.h"
#include "coordinator/core/snapshot.h"
#include "google/protobuf/duration.pb.h"
#include "muster/base/status.h"
#include "muster/v1/common.pb.h"

// Conversions of single values between the core's types and the protocol's.
namespace muster::coordinator {

// Durations outside the core's range (about 292 years) become its ends.
core::Duration ToDuration(const google::protobuf::Duration& duration);

// Whether a request may have `duration` in `field`.
// Errors: INVALID_ARGUMENT (negative, or nanos that are not 0 to 999999999; the
//   text names field and value).
Status CheckDuration(absl::string_view field,
                     const google::protobuf::Duration& duration);
void FillDuration(core::Duration duration, google::protobuf::Duration* message);

// The payload as a T, or an empty T if the call has failed and has none.
template <typename T>
const T& As(const core::Payload& payload) {
  static const T kEmpty{};
  const T* found = std::get_if<T>(&payload);
  return found == nullptr ? kEmpty : *found;
}

void FillMember(const core::MemberSnapshot& member, v1::MemberInfo* info);
void FillMember(const core::MissingRank& missing, v1::MemberInfo* info);
void FillMember(const core::AbsentRank& absent, v1::MemberInfo* info);
void FillMember(const core::Event& event, v1::MemberInfo* info);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_CONVERT_H_
