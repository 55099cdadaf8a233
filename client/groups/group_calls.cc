#include "client/groups/group_calls.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/control/stream_session.h"
#include "client/control/verbs.h"

namespace muster::internal {
namespace {

Deadline AnswerDeadline() {
  return Deadline::After(std::chrono::seconds(1), "1s for other ranks' calls");
}

// FNV-1a.
uint64_t ComputeHash(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : text) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  return hash;
}

v1::GroupCall ToProto(const SharedCall& call, v1::GroupCall::State state) {
  v1::GroupCall proto;
  proto.set_series(call.series);
  proto.set_number(call.number);
  proto.set_instance(call.instance);
  proto.set_state(state);
  if (state == v1::GroupCall::STILL_WAITS || state == v1::GroupCall::GAVE_UP) {
    return proto;
  }
  proto.mutable_ranks()->Add(call.ranks.begin(), call.ranks.end());
  proto.set_callers(call.callers);
  proto.set_arguments(call.meaning);
  proto.set_arguments_hash(ComputeHash(call.arguments));
  return proto;
}

}  // namespace

std::string StableHash(absl::string_view text) {
  return absl::StrCat(absl::Hex(ComputeHash(text), absl::kZeroPad16));
}

Status GroupCalls::Tell(v1::GroupCall call,
                        const std::vector<GroupDefinition>& groups,
                        const Deadline& deadline) const {
  return RegisterGroups(session_->stream(), generation_, groups,
                        std::move(call), deadline)
      .status();
}

Status GroupCalls::Begin(const SharedCall& call,
                         const std::vector<GroupDefinition>& groups,
                         const Deadline& deadline) const {
  v1::GroupCall begun = ToProto(call, v1::GroupCall::WAITS);
  if (!groups.empty()) begun.clear_ranks();
  return Tell(std::move(begun), groups, deadline);
}

void GroupCalls::Pass(const SharedCall& call) const {
  Tell(ToProto(call, v1::GroupCall::PASSES), {}, AnswerDeadline())
      .IgnoreError();
}

void GroupCalls::Refuse(const SharedCall& call, const std::string& why) const {
  v1::GroupCall refused = ToProto(call, v1::GroupCall::REFUSED);
  refused.clear_ranks();
  refused.set_arguments(why);
  Tell(std::move(refused), {}, AnswerDeadline()).IgnoreError();
}

GroupCalls::Waiting::~Waiting() {
  if (succeeded_ || !calls_->session_->stream().connected()) return;
  calls_->Tell(ToProto(call_, v1::GroupCall::GAVE_UP), {}, AnswerDeadline())
      .IgnoreError();
}

Status GroupCalls::Waiting::Check() {
  Status differ = calls_->Tell(ToProto(call_, v1::GroupCall::STILL_WAITS), {},
                               AnswerDeadline());
  // A coordinator that does not answer knows of no difference.
  return IsInvalidArgument(differ) ? differ : OkStatus();
}

}  // namespace muster::internal
