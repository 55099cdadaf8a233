#ifndef MUSTER_COORDINATOR_SERVER_RPC_APPLY_H_
#define MUSTER_COORDINATOR_SERVER_RPC_APPLY_H_

#include <cstdint>
#include <vector>

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
#include "muster/base/status.h"
#include "muster/v1/barrier.pb.h"
#include "muster/v1/membership.pb.h"
#include "muster/v1/session.pb.h"
#include "muster/v1/store.pb.h"

// Converts messages into calls of the core's verbs, and the core's answers into
// messages, for unary calls and for streams. All conversions are here, and no
// rules.
namespace muster::coordinator {

// Makes the call of `request`. `call` has the caller and the waiter, and gets
// the request's sequence number. Moves keys and values out of the request.
#define MUSTER_OPERATION(service, name, ...) \
  void Apply(v1::name##Request& request, core::Call& call, JobContext& context);
#include "proto/muster/v1/verbs.inc"
void Apply(v1::RegisterRequest& request, core::Call& call, JobContext& context);
void Apply(v1::HeartbeatRequest& request, core::Call& call,
           JobContext& context);

// Makes the call of a stream's operation, which must hold one of the requests
// above.
void ApplyOperation(v1::Operation& operation, core::Call& call,
                    JobContext& context);

// Whether a call must be refused while the storage has no space: it would
// change the job, and is no retry of a call that has; or it reads, and the job
// is behind already. Members go on to leave and to report failures.
template <typename Request>
bool NeedsSpace(const Request& request, Method method, const core::Call& call,
                bool behind, const core::Coordinator& core) {
  if constexpr (requires { request.sequence(); }) {
    return !core.WasApplied(call.member, call.incarnation,
                            core::SequenceNumber(request.sequence()));
  } else {
    return behind && IsRead(method);
  }
}
bool OperationNeedsSpace(const v1::Operation& operation, const core::Call& call,
                         bool behind, const core::Coordinator& core);

// The method of an operation that holds one of the requests above.
Method GetMethod(const v1::Operation& operation);

// Fills the response to a successful call; for a Join, use the form below.
#define MUSTER_OPERATION(service, name, ...) \
  void Fill(const core::Payload& payload, v1::name##Response* response);
#include "proto/muster/v1/verbs.inc"
void Fill(const core::Payload& payload, v1::RegisterResponse* response);
void Fill(const core::Payload& payload, v1::HeartbeatResponse* response);

// The response to a Join tells the caller which seat is its own.
void Fill(const Answer& answer, const core::MemberId& caller,
          v1::JoinResponse* response);
template <typename Response>
void Fill(const Answer& answer, const core::MemberId&, Response* response) {
  Fill(answer.payload, response);
}

// Fills the result of a stream's call, which may have failed.
void FillResult(const Answer& answer, const core::MemberId& caller,
                v1::Result* result);

// The status of an answer, with the culprits from its payload.
Status ToStatus(const Answer& answer);

// Estimates the size of an answer on the wire.
int64_t PayloadBytes(const core::Payload& payload);
int64_t AnswerBytes(const Answer& answer);

// RESOURCE_EXHAUSTED if the answer does not fit into a message: the transport
// would fail the whole stream.
Status CheckAnswerBytes(const Answer& answer, int64_t message_bytes_max);

// Estimates the size of an event on the wire; more than 0.
int64_t EventBytes(const core::Event& event);

core::Call ToCall(const v1::Caller& caller, const core::Limits& limits);
// Sorts the numbers in ascending order, as the core requires. Of more than
// retained_replies numbers it returns one more than that, which the core
// refuses.
std::vector<core::SequenceNumber> ToSequenceNumbers(
    const google::protobuf::RepeatedField<uint64_t>& numbers,
    const core::Limits& limits);
core::Registration ToRegistration(const v1::RegisterRequest& request);
void FillEvent(const core::Event& event, v1::MemberEvent* message);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_APPLY_H_
