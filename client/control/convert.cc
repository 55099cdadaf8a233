#include "client/control/convert.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/stubs/common.h"
#include "muster/base/status.h"

namespace muster::internal {
namespace {

// More than the ranks of any world.
constexpr int64_t kRanksMax = 1 << 20;

// Does not count Caller, which the session's hello sends.
bool HoldsText(const google::protobuf::FieldDescriptor& field) {
  if (field.type() == google::protobuf::FieldDescriptor::TYPE_STRING) {
    return true;
  }
  const google::protobuf::Descriptor* const type = field.message_type();
  if (type == nullptr || type == v1::Caller::descriptor()) return false;
  for (int i = 0; i < type->field_count(); ++i) {
    if (HoldsText(*type->field(i))) return true;
  }
  return false;
}

}  // namespace

std::string Fingerprint(const v1::HeartbeatRequest& heartbeat) {
  std::string fingerprint;
  for (const v1::GroupProgress& group : heartbeat.groups()) {
    absl::StrAppend(&fingerprint, group.group(), " ", group.last_enqueued(),
                    " ", group.last_completed(), ";");
  }
  return fingerprint;
}

google::protobuf::Duration ToProto(std::chrono::milliseconds duration) {
  google::protobuf::Duration proto;
  proto.set_seconds(duration.count() / 1000);
  proto.set_nanos(static_cast<int32_t>(duration.count() % 1000) * 1'000'000);
  return proto;
}

MemberInfo FromProto(const v1::MemberInfo& proto) {
  return {.rank = proto.rank(),
          .member = proto.member(),
          .host = proto.host(),
          .pid = proto.pid(),
          .cause = proto.cause(),
          .last_progress = proto.last_progress(),
          .debug_address = proto.debug_address()};
}

std::vector<RankRange> FromProto(const Ranges& proto) {
  std::vector<RankRange> ranges;
  int64_t end = 0;  // end of the last range
  for (int i = 0; i + 1 < proto.size(); i += 2) {
    const int64_t first = end + proto.Get(i);
    end = first + proto.Get(i + 1);
    if (end > kRanksMax) break;  // malformed
    ranges.push_back({.first = static_cast<int>(first),
                      .count = static_cast<int>(proto.Get(i + 1))});
  }
  return ranges;
}

Ranges ToProto(const std::vector<RankRange>& ranges) {
  Ranges proto;
  int end = 0;
  for (const RankRange& range : ranges) {
    proto.Add(static_cast<uint32_t>(range.first - end));
    proto.Add(static_cast<uint32_t>(range.count));
    end = range.first + range.count;
  }
  return proto;
}

namespace {

// Takes the fields that the messages of both kinds of errors have.
template <typename Proto>
void TakeError(const Proto& proto, MemberEvent& event) {
  event.generation = proto.generation();
  event.code = Status(static_cast<StatusCode>(proto.code()), "").code();
  for (const v1::MemberInfo& culprit : proto.culprits().members()) {
    event.culprits.push_back(FromProto(culprit));
  }
  event.other_culprits = FromProto(proto.culprits().others());
  event.unknown_culprits = std::max(0, proto.culprits().omitted());
}

}  // namespace

MemberEvent FromProto(const v1::GroupFailure& proto) {
  MemberEvent event;
  event.kind = MemberEvent::Kind::kGroupFailed;
  event.member.rank = -1;
  event.member.cause = proto.error();
  event.group = proto.group();
  event.group_instance = proto.instance();
  TakeError(proto, event);
  return event;
}

MemberEvent FromProto(const v1::MemberEvent& proto) {
  if (proto.has_group_failure()) return FromProto(proto.group_failure());
  MemberEvent event;
  switch (proto.member().state()) {
    case v1::MEMBER_STATE_LEFT:
      event.kind = MemberEvent::Kind::kLeft;
      break;
    case v1::MEMBER_STATE_FAILED:
      event.kind = MemberEvent::Kind::kFailed;
      break;
    case v1::MEMBER_STATE_REPLACED:
      event.kind = MemberEvent::Kind::kReplaced;
      break;
    case v1::MEMBER_STATE_ALIVE:
      event.kind = MemberEvent::Kind::kWaiting;
      break;
    default:
      event.kind = MemberEvent::Kind::kLost;
  }
  event.member = FromProto(proto.member());
  event.generation_ended = proto.generation_ended();
  event.waiting = proto.members_waiting();
  TakeError(proto, event);
  event.left_ranks = FromProto(proto.together().ranges());
  for (const v1::MemberInfo& member : proto.together().members()) {
    event.left_members.push_back(FromProto(member));
  }
  return event;
}

v1::MemberInfo ToProto(const MemberInfo& member) {
  v1::MemberInfo proto;
  proto.set_rank(member.rank);
  proto.set_member(member.member);
  proto.set_host(member.host);
  proto.set_pid(member.pid);
  proto.set_cause(member.cause);
  proto.set_last_progress(member.last_progress);
  proto.set_debug_address(member.debug_address);
  return proto;
}

void EscapeTexts(google::protobuf::Message* message) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection* const reflection =
      message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(*message, &fields);
  for (const FieldDescriptor* const field : fields) {
    const int count =
        field->is_repeated() ? reflection->FieldSize(*message, field) : 1;
    for (int i = 0; i < count; ++i) {
      if (field->type() == FieldDescriptor::TYPE_STRING) {
        std::string scratch;
        const std::string& text =
            field->is_repeated()
                ? reflection->GetRepeatedStringReference(*message, field, i,
                                                         &scratch)
                : reflection->GetStringReference(*message, field, &scratch);
        if (google::protobuf::internal::IsStructurallyValidUTF8(
                text.data(), static_cast<int>(text.size()))) {
          continue;
        }
        std::string escaped = base::Escape(text);
        if (field->is_repeated()) {
          reflection->SetRepeatedString(message, field, i, std::move(escaped));
        } else {
          reflection->SetString(message, field, std::move(escaped));
        }
      } else if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
        EscapeTexts(field->is_repeated()
                        ? reflection->MutableRepeatedMessage(message, field, i)
                        : reflection->MutableMessage(message, field));
      }
    }
  }
}

void EscapeTexts(v1::Operation* operation) {
  // By field of the operation. Keys and values are bytes, so most requests have
  // no text and need no check.
  static const std::vector<bool> holds_text = [] {
    std::vector<bool> holds;
    const auto* const type = v1::Operation::descriptor();
    for (int i = 0; i < type->field_count(); ++i) {
      const auto number = static_cast<size_t>(type->field(i)->number());
      if (holds.size() <= number) holds.resize(number + 1);
      holds[number] = HoldsText(*type->field(i));
    }
    return holds;
  }();
  if (holds_text[operation->request_case()]) {
    EscapeTexts(static_cast<google::protobuf::Message*>(operation));
  }
}

v1::HeartbeatRequest ToHeartbeat(const std::vector<GroupProgress>& groups) {
  v1::HeartbeatRequest request;
  for (const GroupProgress& group : groups) {
    v1::GroupProgress& proto = *request.add_groups();
    proto.set_group(group.group);
    proto.set_last_enqueued(group.last_enqueued);
    proto.set_last_completed(group.last_completed);
    proto.set_current(group.current);
    *proto.mutable_running_for() = ToProto(group.running_for);
    if (group.arguments_hash.has_value()) {
      proto.set_arguments_hash(*group.arguments_hash);
    }
    if (!group.peer_call.has_value()) continue;
    v1::PeerCall& call = *proto.mutable_peer_call();
    call.set_sends(group.peer_call->sends);
    call.set_number(group.peer_call->number);
    call.set_peer(group.peer_call->peer);
  }
  return request;
}

}  // namespace muster::internal
