// The store's part of apply.h.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/store.h"
#include "coordinator/server/rpc/apply.h"
#include "coordinator/server/rpc/convert.h"
#include "google/protobuf/repeated_ptr_field.h"

namespace muster::coordinator {
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

// Answers the call when its time to live cannot be meant.
template <typename Request>
bool ReadOptions(const Request& request, const core::Call& call, Turn& turn,
                 core::SetOptions* options) {
  options->ephemeral = request.ephemeral();
  if (!request.has_ttl()) return true;
  const absl::Status status = CheckDuration("ttl", request.ttl());
  if (!status.ok()) {
    turn.out.Fail(call.waiter, status);
    return false;
  }
  options->ttl = DurationOf(request.ttl());
  return true;
}

v1::ChangeKind KindOf(core::ChangeKind kind) {
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

void Apply(v1::SetRequest& request, core::Call& call, Turn& turn) {
  call.sequence = core::SequenceNumber(request.sequence());
  core::SetOptions options;
  if (!ReadOptions(request, call, turn, &options)) return;
  turn.core.Set(call, request.key(), std::move(*request.mutable_value()),
                turn.now, turn.out, options);
}

void Apply(v1::GetRequest& request, core::Call& call, Turn& turn) {
  core::Duration timeout;
  if (!ReadTimeout(request, call, turn, &timeout)) return;
  turn.core.Get(call, request.key(), timeout, turn.now, turn.out);
}

void Apply(v1::TryGetRequest& request, core::Call& call, Turn& turn) {
  turn.core.TryGet(call, request.key(), turn.now, turn.out);
}

void Apply(v1::AddRequest& request, core::Call& call, Turn& turn) {
  call.sequence = core::SequenceNumber(request.sequence());
  turn.core.Add(call, request.key(), request.delta(), turn.now, turn.out);
}

void Apply(v1::AppendRequest& request, core::Call& call, Turn& turn) {
  call.sequence = core::SequenceNumber(request.sequence());
  turn.core.Append(call, request.key(), request.value(), turn.now, turn.out);
}

void Apply(v1::CheckRequest& request, core::Call& call, Turn& turn) {
  turn.core.Check(call, Take(request.mutable_keys()), turn.now, turn.out);
}

void Apply(v1::WaitRequest& request, core::Call& call, Turn& turn) {
  core::Duration timeout;
  if (!ReadTimeout(request, call, turn, &timeout)) return;
  turn.core.Wait(call, Take(request.mutable_keys()), timeout, turn.now,
                 turn.out);
}

void Apply(v1::CompareSetRequest& request, core::Call& call, Turn& turn) {
  call.sequence = core::SequenceNumber(request.sequence());
  turn.core.CompareSet(call, request.key(), request.expected(),
                       std::move(*request.mutable_desired()), turn.now,
                       turn.out);
}

void Apply(v1::DeleteRequest& request, core::Call& call, Turn& turn) {
  call.sequence = core::SequenceNumber(request.sequence());
  turn.core.DeleteKey(call, request.key(), turn.now, turn.out);
}

void Apply(v1::NumKeysRequest& request, core::Call& call, Turn& turn) {
  turn.core.NumKeys(call, turn.now, turn.out);
}

void Apply(v1::MultiGetRequest& request, core::Call& call, Turn& turn) {
  core::Duration timeout;
  if (!ReadTimeout(request, call, turn, &timeout)) return;
  turn.core.MultiGet(call, Take(request.mutable_keys()), timeout, turn.now,
                     turn.out);
}

void Apply(v1::MultiSetRequest& request, core::Call& call, Turn& turn) {
  call.sequence = core::SequenceNumber(request.sequence());
  std::vector<std::string> keys;
  std::vector<std::string> values;
  keys.reserve(request.entries_size());
  values.reserve(request.entries_size());
  for (v1::KeyValue& entry : *request.mutable_entries()) {
    keys.push_back(std::move(*entry.mutable_key()));
    values.push_back(std::move(*entry.mutable_value()));
  }
  turn.core.MultiSet(call, keys, std::move(values), turn.now, turn.out);
}

void Apply(v1::ListKeysRequest& request, core::Call& call, Turn& turn) {
  const int64_t count_max =
      request.limit() == 0 ? turn.limits.keys_per_call : request.limit();
  turn.core.ListKeys(call, request.prefix(), request.start_after(), count_max,
                     turn.now, turn.out);
}

void Apply(v1::CompareAndSetRequest& request, core::Call& call, Turn& turn) {
  call.sequence = core::SequenceNumber(request.sequence());
  core::SetOptions options;
  if (!ReadOptions(request, call, turn, &options)) return;
  turn.core.CompareAndSet(call, request.key(), request.expected_revision(),
                          std::move(*request.mutable_value()), turn.now,
                          turn.out, options);
}

void Apply(v1::DeletePrefixRequest& request, core::Call& call, Turn& turn) {
  call.sequence = core::SequenceNumber(request.sequence());
  turn.core.DeletePrefix(call, request.prefix(), turn.now, turn.out);
}

void Apply(v1::QueuePushRequest& request, core::Call& call, Turn& turn) {
  call.sequence = core::SequenceNumber(request.sequence());
  turn.core.QueuePush(call, request.key(), std::move(*request.mutable_value()),
                      turn.now, turn.out);
}

void Apply(v1::QueuePopRequest& request, core::Call& call, Turn& turn) {
  call.sequence = core::SequenceNumber(request.sequence());
  core::Duration timeout;
  if (!ReadTimeout(request, call, turn, &timeout)) return;
  turn.core.QueuePop(
      call, request.key(),
      request.no_wait() ? std::nullopt : std::make_optional(timeout), turn.now,
      turn.out);
}

void Apply(v1::QueueLenRequest& request, core::Call& call, Turn& turn) {
  turn.core.QueueLen(call, request.key(), turn.now, turn.out);
}

void Apply(v1::WatchRequest& request, core::Call& call, Turn& turn) {
  core::WatchRequest watch;
  watch.selector = {request.key(), request.prefix()};
  if (request.has_after_revision()) watch.after = request.after_revision();
  if (!ReadTimeout(request, call, turn, &watch.timeout)) return;
  turn.core.Watch(call, std::move(watch), turn.now, turn.out);
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
    message->set_kind(KindOf(change->kind));
    message->set_key(change->key);
    SetValue(change->value, message->mutable_value());
    message->set_revision(change->revision);
  }
  response->set_revision(reply.revision);
}

}  // namespace muster::coordinator
