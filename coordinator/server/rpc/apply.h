#ifndef MUSTER_COORDINATOR_SERVER_RPC_APPLY_H_
#define MUSTER_COORDINATOR_SERVER_RPC_APPLY_H_

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "coordinator/core/call.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/payload.h"
#include "coordinator/server/jobs/job.h"
#include "coordinator/server/method.h"
#include "coordinator/server/rpc/convert.h"
#include "google/protobuf/repeated_field.h"
#include "muster/v1/barrier.pb.h"
#include "muster/v1/membership.pb.h"
#include "muster/v1/session.pb.h"
#include "muster/v1/store.pb.h"

// The one place that turns messages into verbs of the core, and the core's
// answers into messages: for unary calls and for streams alike. There are no
// rules here, only conversions.
namespace muster::coordinator {

// Makes the call that `request` asks for. `call` brings the caller and the
// waiter; the request's sequence number is put into it. Keys and values are
// taken out of the request.
#define MUSTER_OPERATION(service, name, ...) \
  void Apply(v1::name##Request& request, core::Call& call, Turn& turn);
#include "proto/muster/v1/verbs.inc"
void Apply(v1::RegisterRequest& request, core::Call& call, Turn& turn);
void Apply(v1::HeartbeatRequest& request, core::Call& call, Turn& turn);

// Makes the call that an operation of a stream asks for. It must hold one of
// the above.
void ApplyOperation(v1::Operation& operation, core::Call& call, Turn& turn);

// The method of an operation that holds one of the above.
Method MethodOf(const v1::Operation& operation);

// Fills the response to a call that went well; a Join's has the other form.
#define MUSTER_OPERATION(service, name, ...) \
  void Fill(const core::Payload& payload, v1::name##Response* response);
#include "proto/muster/v1/verbs.inc"
void Fill(const core::Payload& payload, v1::RegisterResponse* response);
void Fill(const core::Payload& payload, v1::HeartbeatResponse* response);

// The response to a Join tells its caller which of the seats is its own.
void Fill(const Answer& answer, const core::MemberId& caller,
          v1::JoinResponse* response);
template <typename Response>
void Fill(const Answer& answer, const core::MemberId&, Response* response) {
  Fill(answer.payload, response);
}

// The same for an answer of a stream, failed ones included.
void FillResult(const Answer& answer, const core::MemberId& caller,
                v1::Result* result);

// The status of an answer, with the culprits that its payload names.
Status StatusOf(const Answer& answer);

// About how many bytes an answer has on the wire.
int64_t PayloadBytes(const core::Payload& payload);
int64_t AnswerBytes(const Answer& answer);

// RESOURCE_EXHAUSTED when the answer would not fit a message: the transport
// would fail a whole stream for it.
Status CheckAnswerBytes(const Answer& answer, int64_t message_bytes_max);

// About how many bytes an event has on the wire; more than none.
int64_t EventBytes(const core::Event& event);

core::Call CallOf(const v1::Caller& caller, const core::Limits& limits);
// In ascending order, as the core wants them. Of more than retained_replies
// one more than that: enough for the core to refuse them.
std::vector<core::SequenceNumber> SequenceNumbersOf(
    const google::protobuf::RepeatedField<uint64_t>& numbers,
    const core::Limits& limits);
core::Registration RegistrationOf(const v1::RegisterRequest& request);
void FillEvent(const core::Event& event, v1::MemberEvent* message);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_APPLY_H_
