// Converts between the protocol's messages and the SDK's types.

#ifndef MUSTER_CLIENT_CONTROL_CONVERT_H_
#define MUSTER_CLIENT_CONTROL_CONVERT_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "google/protobuf/duration.pb.h"
#include "google/protobuf/message.h"
#include "google/protobuf/repeated_field.h"
#include "muster/errors.h"
#include "muster/session.h"
#include "muster/v1/membership.pb.h"
#include "muster/v1/session.pb.h"

namespace muster::internal {

google::protobuf::Duration ToProto(std::chrono::milliseconds duration);

MemberInfo FromProto(const v1::MemberInfo& proto);
v1::MemberInfo ToProto(const MemberInfo& member);
MemberEvent FromProto(const v1::MemberEvent& proto);
MemberEvent FromProto(const v1::GroupFailure& proto);

// Ranks as in Culprits.others, ascending. FromProto drops invalid ranges.
using Ranges = google::protobuf::RepeatedField<uint32_t>;
std::vector<RankRange> FromProto(const Ranges& proto);
Ranges ToProto(const std::vector<RankRange>& ranges);

// Escapes all bytes that are not UTF-8 in the texts of a message, the same way
// on every rank; one such byte would end the session. Leaves operations alone
// that carry only keys and values.
void EscapeTexts(google::protobuf::Message* message);
void EscapeTexts(v1::Operation* operation);

v1::HeartbeatRequest ToHeartbeat(const std::vector<GroupProgress>& groups);

// Returns a text that differs between two heartbeats if there was progress
// between them. A longer run of the same collective is no progress.
std::string Fingerprint(const v1::HeartbeatRequest& heartbeat);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_CONVERT_H_
