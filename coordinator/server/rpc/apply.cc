#include "coordinator/server/rpc/apply.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/store.h"
#include "coordinator/server/rpc/convert.h"
#include "google/protobuf/repeated_field.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "muster/base/status.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {
namespace {

// The most bytes of the culprits of a failure report.
constexpr size_t kCulpritsBytesMax = 64 << 10;

std::vector<core::GroupProgress> ToProgress(
    const v1::HeartbeatRequest& request) {
  std::vector<core::GroupProgress> progress;
  progress.reserve(request.groups_size());
  for (const v1::GroupProgress& group : request.groups()) {
    progress.push_back({group.group(), group.last_enqueued(),
                        group.last_completed(), group.current(),
                        ToDuration(group.running_for())});
    if (group.has_arguments_hash()) {
      progress.back().arguments_hash = group.arguments_hash();
    }
    if (!group.has_peer_call()) continue;
    progress.back().peer_call = {group.peer_call().sends(),
                                 group.peer_call().number(),
                                 group.peer_call().peer()};
  }
  return progress;
}

// The ranks of the culprits, ascending; of very many some.
std::vector<core::Rank> ToRanks(const v1::Culprits& culprits) {
  constexpr size_t kRanksMax = 1024;
  std::vector<core::Rank> ranks;
  for (const v1::MemberInfo& member : culprits.members()) {
    ranks.emplace_back(member.rank());
  }
  int64_t end = 0;  // of the last range
  for (int i = 0; i + 1 < culprits.others_size(); i += 2) {
    const int64_t first = end + culprits.others(i);
    end = first + culprits.others(i + 1);
    for (int64_t rank = first;
         rank < end && rank <= INT32_MAX && ranks.size() < kRanksMax; ++rank) {
      ranks.emplace_back(static_cast<int32_t>(rank));
    }
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// Takes the text, code and culprits of a report.
template <typename Request>
core::FailureReport ToError(const Request& request, size_t culprits_bytes_max) {
  core::FailureReport report;
  report.text = request.error();
  v1::WireStatus verdict;
  verdict.set_code(request.code() == 0 ? static_cast<int>(StatusCode::kAborted)
                                       : request.code());
  report.verdict = v1::FromWire(verdict);
  v1::SetCulprits(v1::FitCulprits(request.culprits(), culprits_bytes_max),
                  &report.verdict);
  report.blames = ToRanks(request.culprits());
  return report;
}

core::FailureReport ToReport(const v1::ReportFailureRequest& request) {
  if (request.code() == 0 && request.culprits().members().empty() &&
      request.culprits().others().empty()) {
    return {.text = request.error()};
  }
  return ToError(request, kCulpritsBytesMax);
}

core::GroupFailureKind ToKind(v1::ReportGroupFailureRequest::Kind kind) {
  switch (kind) {
    case v1::ReportGroupFailureRequest::TIMEOUT:
      return core::GroupFailureKind::kTimeout;
    case v1::ReportGroupFailureRequest::MISMATCH:
      return core::GroupFailureKind::kMismatch;
    case v1::ReportGroupFailureRequest::DECISION:
      return core::GroupFailureKind::kDecision;
    default:
      return core::GroupFailureKind::kSymptom;
  }
}

void FillCulprits(const core::BarrierResult& result, v1::Culprits* culprits) {
  culprits->Clear();
  for (const core::MissingRank& missing : result.missing) {
    FillMember(missing, culprits->add_members());
  }
  culprits->mutable_others()->Add(result.others.begin(), result.others.end());
}

// Fills in the culprits of a failure that is described as in an Event.
void FillCulprits(const Status& verdict, const core::BarrierReply& culprits,
                  v1::Culprits* message) {
  if (culprits != nullptr) return FillCulprits(*culprits, message);
  const auto given = v1::GetCulprits(verdict);
  if (given.has_value()) *message = *given;
}

void FillFailure(const core::GroupFailure& failure, v1::GroupFailure* message) {
  message->set_generation(failure.generation.value());
  message->set_group(failure.group);
  message->set_instance(failure.instance);
  message->set_error(failure.error.text);
  if (failure.error.verdict.ok()) return;
  message->set_code(static_cast<int>(failure.error.verdict.code()));
  FillCulprits(failure.error.verdict, failure.error.culprits,
               message->mutable_culprits());
}

// Estimate.
int64_t ErrorBytes(const core::FailureReport& error) {
  constexpr int64_t kMember = 192;
  int64_t bytes = static_cast<int64_t>(error.text.size());
  error.verdict.ForEachPayload(
      [&](const std::string&, const std::string& value) {
        bytes += static_cast<int64_t>(value.size());
      });
  if (error.culprits != nullptr) {
    bytes += kMember * static_cast<int64_t>(error.culprits->missing.size()) +
             2 * static_cast<int64_t>(error.culprits->others.size());
  }
  return bytes;
}

std::vector<core::Rank> ToRanks(
    const google::protobuf::RepeatedField<int32_t>& ranks) {
  return {ranks.begin(), ranks.end()};
}

// The columns of the verb table for a request.
template <typename Request>
struct Verb;
#define MUSTER_OPERATION(service, name, field, role, mutates, may_wait, ...) \
  template <>                                                                \
  struct Verb<v1::name##Request> {                                           \
    static constexpr char kName[] = #name;                                   \
    static constexpr bool kMutates = mutates;                                \
    static constexpr bool kMayWait = may_wait;                               \
  };
#include "proto/muster/v1/verbs.inc"

// Reads the time that the call may wait. Answers the call and returns false if
// it is invalid.
template <typename Request>
bool ReadTimeout(const Request& request, const core::Call& call,
                 JobContext& context, core::Duration* timeout) {
  *timeout = context.limits.parked_time;
  if (!request.has_timeout()) return true;
  const Status status = CheckDuration("timeout", request.timeout());
  if (!status.ok()) {
    context.out.Fail(call.waiter, status);
    return false;
  }
  *timeout = ToDuration(request.timeout());
  return true;
}

// Runs `verb`, a verb of the store, if the caller may call it. A mutation runs
// once for its sequence number.
template <typename Request>
void RunOnStore(const Request& request, core::Call& call, JobContext& context,
                absl::FunctionRef<void(core::StoreEngine&)> verb) {
  if constexpr (!Verb<Request>::kMutates) {
    context.core.Read(call, context.now, context.out, verb);
  } else {
    call.sequence = core::SequenceNumber(request.sequence());
    if constexpr (Verb<Request>::kMayWait) {
      context.core.MutateAndPark(call, Verb<Request>::kName, context.now,
                                 context.out, verb);
    } else {
      context.core.Mutate(call, Verb<Request>::kName, context.now, context.out,
                          verb);
    }
  }
}

int64_t ValueBytes(const core::Value& value) {
  return value == nullptr ? 0 : static_cast<int64_t>(value->size());
}

}  // namespace

void Apply(v1::RegisterRequest& request, core::Call& call,
           JobContext& context) {
  context.core.Register(call, ToRegistration(request), context.now,
                        context.out);
}

void Apply(v1::HeartbeatRequest& request, core::Call& call,
           JobContext& context) {
  context.core.Heartbeat(call, ToProgress(request), context.now, context.out);
}

void Apply(v1::LeaveRequest& request, core::Call& call, JobContext& context) {
  context.core.Leave(call, request.reason(), context.now, context.out);
}

void Apply(v1::ReportFailureRequest& request, core::Call& call,
           JobContext& context) {
  context.core.ReportFailure(call, ToReport(request), context.now, context.out);
}

void Apply(v1::ReportGroupFailureRequest& request, core::Call& call,
           JobContext& context) {
  for (const auto& [field, duration] :
       {std::pair("wait", &request.wait()),
        std::pair("overtime", &request.overtime())}) {
    const Status status = CheckDuration(field, *duration);
    if (!status.ok()) return context.out.Fail(call.waiter, status);
  }
  core::GroupFailureReport report;
  report.generation = core::Generation(request.generation());
  report.group = std::move(*request.mutable_group());
  report.instance = std::move(*request.mutable_instance());
  report.kind = ToKind(request.kind());
  // All members of the group get them.
  report.error = ToError(request, core::kMissingInResultBytes);
  report.culprits = std::exchange(report.error.blames, {});
  report.call = std::move(*request.mutable_call());
  report.fingerprint = std::move(*request.mutable_fingerprint());
  report.wait = ToDuration(request.wait());
  report.overtime = ToDuration(request.overtime());
  report.late = request.late();
  context.core.ReportGroupFailure(call, std::move(report), context.now,
                                  context.out);
}

void Apply(v1::JoinRequest& request, core::Call& call, JobContext& context) {
  call.sequence = core::SequenceNumber(request.sequence());
  core::JoinRequest join;
  if (request.rank() != -1) join.rank = core::Rank(request.rank());
  join.world_size = request.world_size();
  join.min_world_size = request.min_world_size();
  join.max_world_size = request.max_world_size();
  if (request.has_last_call()) {
    const Status status = CheckDuration("last_call", request.last_call());
    if (!status.ok()) return context.out.Fail(call.waiter, status);
    join.last_call = ToDuration(request.last_call());
  }
  join.address = std::move(*request.mutable_address());
  if (!ReadTimeout(request, call, context, &join.timeout)) return;
  context.core.Join(call, std::move(join), context.now, context.out);
}

void Apply(v1::AwaitBarrierRequest& request, core::Call& call,
           JobContext& context) {
  call.sequence = core::SequenceNumber(request.sequence());
  core::BarrierRequest barrier;
  barrier.generation = core::Generation(request.generation());
  barrier.group = std::move(*request.mutable_group());
  barrier.barrier = std::move(*request.mutable_name());
  barrier.ranks = ToRanks(request.ranks());
  barrier.rank = core::Rank(request.rank());
  if (!ReadTimeout(request, call, context, &barrier.timeout)) return;
  barrier.wait_all_ranks = request.wait_all_ranks();
  context.core.Arrive(call, barrier, context.now, context.out);
}

void Apply(v1::CloseRendezvousRequest& request, core::Call& call,
           JobContext& context) {
  call.sequence = core::SequenceNumber(request.sequence());
  context.core.CloseRendezvous(call, request.reason(), context.now,
                               context.out);
}

// Returns nullopt for a state that this version does not know.
std::optional<core::GroupCallState> ToState(v1::GroupCall::State state) {
  switch (state) {
    case v1::GroupCall::WAITS:
      return core::GroupCallState::kWaits;
    case v1::GroupCall::STILL_WAITS:
      return core::GroupCallState::kStillWaits;
    case v1::GroupCall::PASSES:
      return core::GroupCallState::kPasses;
    case v1::GroupCall::REFUSED:
      return core::GroupCallState::kRefused;
    case v1::GroupCall::GAVE_UP:
      return core::GroupCallState::kGaveUp;
    default:
      return std::nullopt;
  }
}

std::optional<core::GroupCall> ToGroupCall(v1::GroupCall& call) {
  const std::optional<core::GroupCallState> state = ToState(call.state());
  if (!state.has_value()) return std::nullopt;
  return core::GroupCall{.series = std::move(*call.mutable_series()),
                         .number = call.number(),
                         .instance = call.instance(),
                         .state = *state,
                         .ranks = ToRanks(call.ranks()),
                         .callers = call.callers(),
                         .arguments = std::move(*call.mutable_arguments()),
                         .arguments_hash = call.arguments_hash()};
}

void Apply(v1::RegisterGroupsRequest& request, core::Call& call,
           JobContext& context) {
  call.sequence = core::SequenceNumber(request.sequence());
  core::GroupsRequest wanted = {
      .generation = core::Generation(request.generation()),
      .left = {request.left().begin(), request.left().end()}};
  wanted.groups.reserve(request.groups_size());
  for (v1::GroupDefinition& group : *request.mutable_groups()) {
    core::GroupDefinition& definition = wanted.groups.emplace_back();
    definition.name = std::move(*group.mutable_name());
    definition.ranks = ToRanks(group.ranks());
    definition.description = std::move(*group.mutable_description());
  }
  if (request.has_call()) wanted.call = ToGroupCall(*request.mutable_call());
  context.core.RegisterGroups(call, std::move(wanted), context.now,
                              context.out);
}

void ApplyOperation(v1::Operation& operation, core::Call& call,
                    JobContext& context) {
  // Clears the number of the previous operation in the batch.
  call.sequence = core::SequenceNumber();
  switch (operation.request_case()) {
#define MUSTER_OPERATION(service, name, field, ...) \
  case v1::Operation::k##name:                      \
    return Apply(*operation.mutable_##field(), call, context);
#include "proto/muster/v1/verbs.inc"
    case v1::Operation::kCancel:
    case v1::Operation::REQUEST_NOT_SET:
      return;
  }
}

bool OperationNeedsSpace(const v1::Operation& operation, const core::Call& call,
                         bool behind, const core::Coordinator& core) {
  switch (operation.request_case()) {
#define MUSTER_OPERATION(service, name, field, ...) \
  case v1::Operation::k##name:                      \
    return NeedsSpace(operation.field(), Method::k##name, call, behind, core);
#include "proto/muster/v1/verbs.inc"
    case v1::Operation::kCancel:
    case v1::Operation::REQUEST_NOT_SET:
      break;
  }
  return false;
}

Method GetMethod(const v1::Operation& operation) {
  switch (operation.request_case()) {
#define MUSTER_OPERATION(service, name, ...) \
  case v1::Operation::k##name:               \
    return Method::k##name;
#include "proto/muster/v1/verbs.inc"
    case v1::Operation::kCancel:
    case v1::Operation::REQUEST_NOT_SET:
      break;
  }
  return Method::kStream;
}

void FillResult(const Answer& answer, const core::MemberId& caller,
                v1::Result* result) {
  result->set_id(answer.tag);
  if (!answer.status.ok()) {
    *result->mutable_status() = v1::ToWire(ToStatus(answer));
    return;
  }
  switch (answer.method) {
#define MUSTER_OPERATION(service, name, field, ...) \
  case Method::k##name:                             \
    return Fill(answer, caller, result->mutable_##field());
#include "proto/muster/v1/verbs.inc"
    default:
      return;
  }
}

void Fill(const core::Payload& payload, v1::RegisterResponse* response) {
  const auto& reply = As<core::RegisterReply>(payload);
  response->set_coordinator_epoch(reply.epoch.value());
  FillDuration(reply.lease, response->mutable_lease());
  response->set_generation(reply.generation.value());
  response->set_generation_running(reply.generation_running);
  response->set_rank(reply.rank.has_value() ? reply.rank->value() : -1);
  response->set_members_waiting(reply.waiting);
}

void Fill(const core::Payload& payload, v1::HeartbeatResponse* response) {
  const auto& reply = As<core::HeartbeatReply>(payload);
  response->set_generation(reply.generation.value());
  response->set_generation_running(reply.generation_running);
  response->set_members_waiting(reply.waiting);
}

void Fill(const core::Payload&, v1::LeaveResponse*) {}

void Fill(const core::Payload&, v1::CloseRendezvousResponse*) {}

void Fill(const core::Payload& payload, v1::RegisterGroupsResponse* response) {
  for (const int32_t count : As<core::GroupsReply>(payload).registered) {
    response->add_registered(count);
  }
}

void Fill(const core::Payload&, v1::ReportFailureResponse*) {}

void Fill(const core::Payload& payload,
          v1::ReportGroupFailureResponse* response) {
  const auto& verdict = As<core::GroupFailureReply>(payload);
  if (verdict != nullptr) FillFailure(*verdict, response->mutable_verdict());
}

void Fill(const Answer& answer, const core::MemberId& caller,
          v1::JoinResponse* response) {
  const auto& reply = As<core::FormationReply>(answer.payload);
  if (reply == nullptr) return;
  const auto size = static_cast<int>(reply->world.size());
  response->set_generation(reply->generation.value());
  response->set_world_size(size);
  const auto own = reply->ranks.find(caller);
  if (own != reply->ranks.end()) response->set_rank(own->second.value());
  if (answer.without_seats) return;
  response->mutable_seats()->Reserve(size);
  int32_t rank = 0;
  for (const core::Seat& seat : reply->world) {
    v1::Seat* message = response->add_seats();
    message->set_rank(rank++);
    message->set_member(seat.member.value());
    message->set_incarnation(seat.incarnation.value());
    message->set_host(seat.host);
    message->set_pid(seat.pid);
    message->set_address(seat.address);
  }
}

void Fill(const core::Payload& payload, v1::AwaitBarrierResponse* response) {
  const auto& reply = As<core::BarrierReply>(payload);
  if (reply != nullptr) response->set_instance(reply->instance);
}

Status ToStatus(const Answer& answer) {
  Status status = answer.status;
  if (const auto& absence = As<core::AbsenceReply>(answer.payload);
      absence != nullptr) {
    v1::Culprits culprits;
    for (const core::AbsentRank& absent : absence->described) {
      FillMember(absent, culprits.add_members());
    }
    culprits.mutable_others()->Add(absence->others.begin(),
                                   absence->others.end());
    v1::SetCulprits(culprits, &status);
    return status;
  }
  const auto& barrier = As<core::BarrierReply>(answer.payload);
  if (status.ok() || barrier == nullptr || barrier->missing.empty()) {
    return status;
  }
  v1::Culprits culprits;
  FillCulprits(*barrier, &culprits);
  // Not 0 for a decision that was stored before there were ranges.
  int32_t unknown = barrier->expected - barrier->arrived -
                    static_cast<int32_t>(barrier->missing.size());
  core::ForEachRank(barrier->others, [&](core::Rank) { --unknown; });
  culprits.set_omitted(std::max(0, unknown));
  v1::SetCulprits(culprits, &status);
  return status;
}

// Estimate.
int64_t RangesBytes(const core::RankRanges& ranges) {
  return 2 * static_cast<int64_t>(ranges.size());
}

int64_t PayloadBytes(const core::Payload& payload) {
  constexpr int64_t kMember = 192;
  struct Visitor {
    int64_t operator()(const core::ValueReply& r) const {
      return ValueBytes(r.value);
    }
    int64_t operator()(const core::ValuesReply& r) const {
      int64_t bytes = 0;
      for (const core::ValueReply& v : r.values) {
        bytes += ValueBytes(v.value) + 4;
      }
      return bytes;
    }
    int64_t operator()(const core::CompareSetReply& r) const {
      return ValueBytes(r.value);
    }
    int64_t operator()(const core::KeysReply& r) const {
      int64_t bytes = 0;
      for (const std::string& key : r.keys) {
        bytes += static_cast<int64_t>(key.size()) + 4;
      }
      return bytes;
    }
    int64_t operator()(const core::WatchReply& r) const {
      constexpr int64_t kChange = 24;
      int64_t bytes = 0;
      for (const auto& change : r.changes) {
        bytes += kChange + static_cast<int64_t>(change->key.size()) +
                 ValueBytes(change->value);
      }
      return bytes;
    }
    int64_t operator()(const core::FormationReply& r) const {
      if (r == nullptr) return 0;
      int64_t bytes = 0;
      for (const core::Seat& seat : r->world) {
        bytes += kMember + static_cast<int64_t>(seat.address.size());
      }
      return bytes;
    }
    int64_t operator()(const core::BarrierReply& r) const {
      if (r == nullptr) return 0;
      return kMember * static_cast<int64_t>(r->missing.size()) +
             RangesBytes(r->others);
    }
    int64_t operator()(const core::AbsenceReply& r) const {
      if (r == nullptr) return 0;
      return kMember * static_cast<int64_t>(r->described.size()) +
             RangesBytes(r->others);
    }
    int64_t operator()(const core::GroupFailureReply& r) const {
      return r == nullptr ? 0 : ErrorBytes(r->error);
    }
    int64_t operator()(const core::GroupsReply& r) const {
      return 3 * static_cast<int64_t>(r.registered.size());
    }
    int64_t operator()(const std::monostate&) const { return 0; }
    int64_t operator()(const core::RevisionReply&) const { return 0; }
    int64_t operator()(const core::NumberReply&) const { return 0; }
    int64_t operator()(const core::FlagReply&) const { return 0; }
    int64_t operator()(const core::RegisterReply&) const { return 0; }
    int64_t operator()(const core::HeartbeatReply&) const { return 0; }
  };
  return std::visit(Visitor(), payload);
}

int64_t AnswerBytes(const Answer& answer) {
  // The tags and lengths around the bytes.
  constexpr int64_t kFrame = 32;
  if (answer.status.ok() && answer.without_seats) return kFrame;
  return kFrame + static_cast<int64_t>(answer.status.message().size()) +
         PayloadBytes(answer.payload);
}

Status CheckAnswerBytes(const Answer& answer, int64_t message_bytes_max) {
  return core::CheckLimit("message_bytes", message_bytes_max,
                          AnswerBytes(answer));
}

std::vector<core::SequenceNumber> ToSequenceNumbers(
    const google::protobuf::RepeatedField<uint64_t>& numbers,
    const core::Limits& limits) {
  const int64_t count =
      std::min<int64_t>(numbers.size(), limits.retained_replies + 1);
  std::vector<core::SequenceNumber> sorted(numbers.begin(),
                                           numbers.begin() + count);
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

core::Call ToCall(const v1::Caller& caller, const core::Limits& limits) {
  core::Call call;
  call.member = core::MemberId(caller.member());
  call.incarnation = core::Incarnation(caller.incarnation());
  call.acknowledged_through =
      core::SequenceNumber(caller.acknowledged_through());
  call.unanswered = ToSequenceNumbers(caller.unanswered(), limits);
  return call;
}

core::Registration ToRegistration(const v1::RegisterRequest& request) {
  return {request.host(), request.pid(), request.debug_address()};
}

int64_t EventBytes(const core::Event& event) {
  constexpr int64_t kEvent = 64;
  int64_t bytes = kEvent + static_cast<int64_t>(
                               event.member.value().size() + event.host.size() +
                               event.cause.size() + event.last_progress.size());
  bytes += ErrorBytes({.verdict = event.verdict, .culprits = event.culprits});
  if (event.group_failure != nullptr) {
    bytes += ErrorBytes(event.group_failure->error);
  }
  if (event.together != nullptr) {
    bytes += RangesBytes(event.together->ranks);
    for (const core::Event& left : event.together->described) {
      bytes += EventBytes(left);
    }
  }
  return bytes;
}

void FillEvent(const core::Event& event, v1::MemberEvent* message) {
  if (event.group_failure != nullptr) {
    FillFailure(*event.group_failure, message->mutable_group_failure());
  }
  FillMember(event, message->mutable_member());
  message->set_generation(event.generation.value());
  message->set_generation_ended(event.generation_over);
  message->set_members_waiting(event.waiting);
  if (event.together != nullptr) {
    v1::LeftTogether& together = *message->mutable_together();
    const core::RankRanges& ranks = event.together->ranks;
    together.mutable_ranges()->Add(ranks.begin(), ranks.end());
    for (const core::Event& left : event.together->described) {
      FillMember(left, together.add_members());
    }
  }
  if (event.verdict.ok()) return;
  message->set_code(static_cast<int>(event.verdict.code()));
  if (event.culprits != nullptr || v1::GetCulprits(event.verdict).has_value()) {
    FillCulprits(event.verdict, event.culprits, message->mutable_culprits());
  }
}

// The verbs of the store.

namespace {

using Bytes = google::protobuf::RepeatedPtrField<std::string>;

std::vector<std::string> Take(Bytes* bytes) {
  std::vector<std::string> out;
  out.reserve(bytes->size());
  for (std::string& b : *bytes) out.push_back(std::move(b));
  return out;
}

void SetValue(const core::Value& value, std::string* to) {
  if (value != nullptr) *to = *value;
}

// Answers the call and returns false if its time to live is invalid.
template <typename Request>
bool ReadOptions(const Request& request, const core::Call& call,
                 JobContext& context, core::SetOptions* options) {
  options->ephemeral = request.ephemeral();
  if (!request.has_ttl()) return true;
  const Status status = CheckDuration("ttl", request.ttl());
  if (!status.ok()) {
    context.out.Fail(call.waiter, status);
    return false;
  }
  options->ttl = ToDuration(request.ttl());
  return true;
}

v1::ChangeKind ToChangeKind(core::ChangeKind kind) {
  switch (kind) {
    case core::ChangeKind::kPut:
      return v1::CHANGE_KIND_PUT;
    case core::ChangeKind::kDeleted:
      return v1::CHANGE_KIND_DELETED;
    case core::ChangeKind::kExpired:
      return v1::CHANGE_KIND_EXPIRED;
    case core::ChangeKind::kOrphaned:
      return v1::CHANGE_KIND_ORPHANED;
  }
  return v1::CHANGE_KIND_UNSPECIFIED;
}

}  // namespace

void Apply(v1::SetRequest& request, core::Call& call, JobContext& context) {
  core::SetOptions options;
  if (!ReadOptions(request, call, context, &options)) return;
  RunOnStore(request, call, context, [&](core::StoreEngine& store) {
    store.Set(call, request.key(), std::move(*request.mutable_value()), options,
              context.now, context.out);
  });
}

void Apply(v1::GetRequest& request, core::Call& call, JobContext& context) {
  core::Duration timeout;
  if (!ReadTimeout(request, call, context, &timeout)) return;
  RunOnStore(request, call, context, [&](core::StoreEngine& store) {
    store.Get(call, request.key(), timeout, context.now, context.out);
  });
}

void Apply(v1::TryGetRequest& request, core::Call& call, JobContext& context) {
  RunOnStore(request, call, context, [&](core::StoreEngine& store) {
    store.TryGet(call, request.key(), context.out);
  });
}

void Apply(v1::AddRequest& request, core::Call& call, JobContext& context) {
  RunOnStore(request, call, context, [&](core::StoreEngine& store) {
    store.Add(call, request.key(), request.delta(), context.out);
  });
}

void Apply(v1::AppendRequest& request, core::Call& call, JobContext& context) {
  RunOnStore(request, call, context, [&](core::StoreEngine& store) {
    store.Append(call, request.key(), request.value(), context.out);
  });
}

void Apply(v1::CheckRequest& request, core::Call& call, JobContext& context) {
  RunOnStore(request, call, context, [&](core::StoreEngine& store) {
    store.Check(call, Take(request.mutable_keys()), context.out);
  });
}

void Apply(v1::WaitRequest& request, core::Call& call, JobContext& context) {
  core::Duration timeout;
  if (!ReadTimeout(request, call, context, &timeout)) return;
  RunOnStore(request, call, context, [&](core::StoreEngine& store) {
    store.Wait(call, Take(request.mutable_keys()), timeout, context.now,
               context.out);
  });
}

void Apply(v1::CompareSetRequest& request, core::Call& call,
           JobContext& context) {
  RunOnStore(request, call, context, [&](core::StoreEngine& store) {
    store.CompareSet(call, request.key(), request.expected(),
                     std::move(*request.mutable_desired()), context.out);
  });
}

void Apply(v1::DeleteRequest& request, core::Call& call, JobContext& context) {
  RunOnStore(request, call, context, [&](core::StoreEngine& store) {
    store.DeleteKey(call, request.key(), context.out);
  });
}

void Apply(v1::NumKeysRequest& request, core::Call& call, JobContext& context) {
  RunOnStore(request, call, context, [&](core::StoreEngine& store) {
    store.NumKeys(call, context.out);
  });
}

void Apply(v1::MultiGetRequest& request, core::Call& call,
           JobContext& context) {
  core::Duration timeout;
  if (!ReadTimeout(request, call, context, &timeout)) return;
  RunOnStore(request, call, context, [&](core::StoreEngine& store) {
    store.MultiGet(call, Take(request.mutable_keys()), timeout, context.now,
                   context.out);
  });
}

void Apply(v1::MultiSetRequest& request, core::Call& call,
           JobContext& context) {
  RunOnStore(request, call, context, [&](core::StoreEngine& store) {
    std::vector<std::string> keys;
    std::vector<std::string> values;
    keys.reserve(request.entries_size());
    values.reserve(request.entries_size());
    for (v1::KeyValue& entry : *request.mutable_entries()) {
      keys.push_back(std::move(*entry.mutable_key()));
      values.push_back(std::move(*entry.mutable_value()));
    }
    store.MultiSet(call, keys, std::move(values), context.out);
  });
}

void Apply(v1::ListKeysRequest& request, core::Call& call,
           JobContext& context) {
  const int64_t count_max =
      request.limit() == 0 ? context.limits.keys_per_call : request.limit();
  RunOnStore(request, call, context, [&](core::StoreEngine& store) {
    store.ListKeys(call, request.prefix(), request.start_after(), count_max,
                   context.out);
  });
}

void Apply(v1::CompareAndSetRequest& request, core::Call& call,
           JobContext& context) {
  core::SetOptions options;
  if (!ReadOptions(request, call, context, &options)) return;
  RunOnStore(request, call, context, [&](core::StoreEngine& store) {
    store.CompareAndSet(call, request.key(), request.expected_revision(),
                        std::move(*request.mutable_value()), options,
                        context.now, context.out);
  });
}

void Apply(v1::DeletePrefixRequest& request, core::Call& call,
           JobContext& context) {
  RunOnStore(request, call, context, [&](core::StoreEngine& store) {
    store.DeletePrefix(call, request.prefix(), context.out);
  });
}

void Apply(v1::QueuePushRequest& request, core::Call& call,
           JobContext& context) {
  RunOnStore(request, call, context, [&](core::StoreEngine& store) {
    store.QueuePush(call, request.key(), std::move(*request.mutable_value()),
                    context.out);
  });
}

void Apply(v1::QueuePopRequest& request, core::Call& call,
           JobContext& context) {
  core::Duration timeout;
  if (!ReadTimeout(request, call, context, &timeout)) return;
  RunOnStore(request, call, context, [&](core::StoreEngine& store) {
    store.QueuePop(
        call, request.key(),
        request.no_wait() ? std::nullopt : std::make_optional(timeout),
        context.now, context.out);
  });
}

void Apply(v1::QueueLenRequest& request, core::Call& call,
           JobContext& context) {
  RunOnStore(request, call, context, [&](core::StoreEngine& store) {
    store.QueueLen(call, request.key(), context.out);
  });
}

void Apply(v1::WatchRequest& request, core::Call& call, JobContext& context) {
  core::WatchRequest watch;
  watch.selector = {request.key(), request.prefix()};
  if (request.has_after_revision()) watch.after = request.after_revision();
  if (!ReadTimeout(request, call, context, &watch.timeout)) return;
  RunOnStore(request, call, context, [&](core::StoreEngine& store) {
    store.Watch(call, std::move(watch), context.now, context.out);
  });
}

void Fill(const core::Payload& payload, v1::SetResponse* response) {
  response->set_revision(As<core::RevisionReply>(payload).revision);
}

void Fill(const core::Payload& payload, v1::GetResponse* response) {
  const auto& reply = As<core::ValueReply>(payload);
  SetValue(reply.value, response->mutable_value());
  response->set_revision(reply.revision);
}

void Fill(const core::Payload& payload, v1::TryGetResponse* response) {
  const auto& reply = As<core::ValueReply>(payload);
  response->set_found(reply.value != nullptr);
  SetValue(reply.value, response->mutable_value());
  response->set_revision(reply.revision);
}

void Fill(const core::Payload& payload, v1::AddResponse* response) {
  const auto& reply = As<core::NumberReply>(payload);
  response->set_value(reply.number);
  response->set_revision(reply.revision);
}

void Fill(const core::Payload& payload, v1::AppendResponse* response) {
  response->set_revision(As<core::RevisionReply>(payload).revision);
}

void Fill(const core::Payload& payload, v1::CheckResponse* response) {
  response->set_all_present(As<core::FlagReply>(payload).flag);
}

void Fill(const core::Payload&, v1::WaitResponse*) {}

void Fill(const core::Payload& payload, v1::CompareSetResponse* response) {
  const auto& reply = As<core::CompareSetReply>(payload);
  SetValue(reply.value, response->mutable_value());
  response->set_written(reply.stored);
  response->set_revision(reply.revision);
}

void Fill(const core::Payload& payload, v1::DeleteResponse* response) {
  const auto& reply = As<core::FlagReply>(payload);
  response->set_deleted(reply.flag);
  response->set_revision(reply.revision);
}

void Fill(const core::Payload& payload, v1::NumKeysResponse* response) {
  response->set_count(As<core::NumberReply>(payload).number);
}

void Fill(const core::Payload& payload, v1::MultiGetResponse* response) {
  const auto& reply = As<core::ValuesReply>(payload);
  response->mutable_values()->Reserve(static_cast<int>(reply.values.size()));
  for (const core::ValueReply& value : reply.values) {
    SetValue(value.value, response->add_values());
  }
}

void Fill(const core::Payload& payload, v1::MultiSetResponse* response) {
  response->set_revision(As<core::RevisionReply>(payload).revision);
}

void Fill(const core::Payload& payload, v1::ListKeysResponse* response) {
  const auto& reply = As<core::KeysReply>(payload);
  response->mutable_keys()->Reserve(static_cast<int>(reply.keys.size()));
  for (const std::string& key : reply.keys) response->add_keys(key);
  response->set_more(reply.more);
  response->set_revision(reply.revision);
}

void Fill(const core::Payload& payload, v1::CompareAndSetResponse* response) {
  const auto& reply = As<core::CompareSetReply>(payload);
  response->set_written(reply.stored);
  response->set_revision(reply.revision);
  if (reply.value != nullptr) response->set_present(*reply.value);
}

void Fill(const core::Payload& payload, v1::DeletePrefixResponse* response) {
  const auto& reply = As<core::NumberReply>(payload);
  response->set_deleted(reply.number);
  response->set_revision(reply.revision);
}

void Fill(const core::Payload& payload, v1::QueuePushResponse* response) {
  response->set_revision(As<core::RevisionReply>(payload).revision);
}

void Fill(const core::Payload& payload, v1::QueuePopResponse* response) {
  const auto& reply = As<core::ValueReply>(payload);
  SetValue(reply.value, response->mutable_value());
  response->set_revision(reply.revision);
}

void Fill(const core::Payload& payload, v1::QueueLenResponse* response) {
  response->set_length(As<core::NumberReply>(payload).number);
}

void Fill(const core::Payload& payload, v1::WatchResponse* response) {
  const auto& reply = As<core::WatchReply>(payload);
  response->mutable_changes()->Reserve(static_cast<int>(reply.changes.size()));
  for (const auto& change : reply.changes) {
    v1::KeyChange* message = response->add_changes();
    message->set_kind(ToChangeKind(change->kind));
    message->set_key(change->key);
    SetValue(change->value, message->mutable_value());
    message->set_revision(change->revision);
  }
  response->set_revision(reply.revision);
}

}  // namespace muster::coordinator
