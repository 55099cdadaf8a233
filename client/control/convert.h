// Between the protocol's messages and the SDK's types.

#ifndef MUSTER_CLIENT_CONTROL_CONVERT_H_
#define MUSTER_CLIENT_CONTROL_CONVERT_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "client/errors.h"
#include "client/session.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/message.h"
#include "google/protobuf/repeated_field.h"
#include "muster/v1/membership.pb.h"
#include "muster/v1/session.pb.h"

namespace muster::internal {

google::protobuf::Duration ToProto(std::chrono::milliseconds duration);

MemberInfo FromProto(const v1::MemberInfo& proto);
v1::MemberInfo ToProto(const MemberInfo& member);
MemberEvent FromProto(const v1::MemberEvent& proto);

// As Culprits.others has them: ascending. Those that nobody can mean are left
// out.
using Ranges = google::protobuf::RepeatedField<uint32_t>;
std::vector<RankRange> FromProto(const Ranges& proto);
Ranges ToProto(const std::vector<RankRange>& ranges);

// The protocol's texts are UTF-8: a message with another one in it would end
// the session, and the member with it. What is none is escaped, byte for byte,
// the same on every rank. Of what only carries keys and values nothing is
// looked at.
void EscapeTexts(google::protobuf::Message* message);
void EscapeTexts(v1::Operation* operation);

v1::HeartbeatRequest ToHeartbeat(const std::vector<GroupProgress>& groups);

// Differs between two heartbeats when there was progress between them: that
// what runs has run for longer is none.
std::string Fingerprint(const v1::HeartbeatRequest& heartbeat);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_CONVERT_H_
