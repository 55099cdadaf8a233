#include "client/control/verbs.h"

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/control/convert.h"
#include "client/control/stream_session.h"
#include "client/control/throw.h"
#include "muster/v1/session.pb.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::internal {
namespace {

template <typename Repeated>
void Assign(const std::vector<std::string>& from, Repeated* to) {
  to->Reserve(static_cast<int>(from.size()));
  for (const std::string& each : from) *to->Add() = each;
}

void Assign(absl::string_view from, std::string* to) {
  to->assign(from.data(), from.size());
}

// Copies the options into a Set or CompareAndSet.
template <typename Request>
void Assign(const SetOptions& options, Request& request) {
  if (options.ttl.has_value()) {
    const auto count = options.ttl->count();
    request.mutable_ttl()->set_seconds(count / 1000);
    request.mutable_ttl()->set_nanos(static_cast<int32_t>(count % 1000) *
                                     1'000'000);
  }
  request.set_ephemeral(options.ephemeral);
}

template <typename Repeated>
std::vector<std::string> Taken(Repeated* from) {
  std::vector<std::string> to;
  to.reserve(from->size());
  for (std::string& each : *from) to.push_back(std::move(each));
  return to;
}

}  // namespace

Status SetKey(StreamSession& session, absl::string_view key,
              absl::string_view value, const Deadline& deadline) {
  return SetKey(session, key, value, {}, deadline);
}

Status SetKey(StreamSession& session, absl::string_view key,
              absl::string_view value, const SetOptions& options,
              const Deadline& deadline) {
  v1::Operation operation;
  v1::SetRequest& request = *operation.mutable_set();
  Assign(key, request.mutable_key());
  Assign(value, request.mutable_value());
  Assign(options, request);
  return session.Call(std::move(operation), deadline).status();
}

StatusOr<CompareAndSetResult> CompareAndSetKey(StreamSession& session,
                                               absl::string_view key,
                                               int64_t expected_revision,
                                               absl::string_view desired,
                                               const SetOptions& options,
                                               const Deadline& deadline) {
  v1::Operation operation;
  v1::CompareAndSetRequest& request = *operation.mutable_compare_and_set();
  Assign(key, request.mutable_key());
  request.set_expected_revision(expected_revision);
  Assign(desired, request.mutable_value());
  Assign(options, request);
  auto result = session.Call(std::move(operation), deadline);
  if (!result.ok()) return result.status();
  v1::CompareAndSetResponse& response = *result->mutable_compare_and_set();
  CompareAndSetResult compared;
  compared.written = response.written();
  compared.revision = response.revision();
  if (response.has_present()) {
    compared.present = std::move(*response.mutable_present());
  }
  return compared;
}

StatusOr<std::optional<StoreValue>> TryGetKey(StreamSession& session,
                                              absl::string_view key,
                                              const Deadline& deadline) {
  v1::Operation operation;
  Assign(key, operation.mutable_try_get()->mutable_key());
  auto result = session.Call(std::move(operation), deadline);
  if (!result.ok()) return result.status();
  v1::TryGetResponse& response = *result->mutable_try_get();
  if (!response.found()) return std::optional<StoreValue>();
  return std::optional<StoreValue>(
      {std::move(*response.mutable_value()), response.revision()});
}

StatusOr<std::string> GetKey(StreamSession& session, absl::string_view key,
                             const Deadline& deadline) {
  v1::Operation operation;
  Assign(key, operation.mutable_get()->mutable_key());
  auto result = session.Call(std::move(operation), deadline);
  if (!result.ok()) return result.status();
  return std::move(*result->mutable_get()->mutable_value());
}

StatusOr<int64_t> AddToKey(StreamSession& session, absl::string_view key,
                           int64_t delta, const Deadline& deadline) {
  v1::Operation operation;
  Assign(key, operation.mutable_add()->mutable_key());
  operation.mutable_add()->set_delta(delta);
  const auto result = session.Call(std::move(operation), deadline);
  if (!result.ok()) return result.status();
  return result->add().value();
}

StatusOr<bool> DeleteKey(StreamSession& session, absl::string_view key,
                         const Deadline& deadline) {
  v1::Operation operation;
  Assign(key, operation.mutable_delete_()->mutable_key());
  const auto result = session.Call(std::move(operation), deadline);
  if (!result.ok()) return result.status();
  return result->delete_().deleted();
}

StatusOr<std::vector<std::string>> ListKeys(StreamSession& session,
                                            absl::string_view prefix,
                                            const Deadline& deadline) {
  std::vector<std::string> keys;
  for (;;) {
    v1::Operation operation;
    Assign(prefix, operation.mutable_list_keys()->mutable_prefix());
    if (!keys.empty()) {
      operation.mutable_list_keys()->set_start_after(keys.back());
    }
    auto result = session.Call(std::move(operation), deadline);
    if (!result.ok()) return result.status();
    v1::ListKeysResponse& page = *result->mutable_list_keys();
    const bool more = page.more() && page.keys_size() > 0;
    for (std::string& key : *page.mutable_keys()) {
      keys.push_back(std::move(key));
    }
    if (!more) return keys;
  }
}

StatusOr<std::vector<std::string>> GetKeys(StreamSession& session,
                                           const std::vector<std::string>& keys,
                                           const Deadline& deadline,
                                           Canceller* canceller) {
  v1::Operation operation;
  Assign(keys, operation.mutable_multi_get()->mutable_keys());
  auto result = session.Call(std::move(operation), deadline, canceller);
  if (!result.ok()) return result.status();
  return Taken(result->mutable_multi_get()->mutable_values());
}

StatusOr<v1::WatchResponse> WatchOnce(StreamSession& session,
                                      v1::WatchRequest request,
                                      const Deadline& deadline,
                                      Canceller* canceller) {
  v1::Operation operation;
  *operation.mutable_watch() = std::move(request);
  auto result = session.Call(std::move(operation), deadline, canceller);
  if (!result.ok()) return result.status();
  return std::move(*result->mutable_watch());
}

StatusOr<Formation> Join(StreamSession& session, const JoinOptions& options) {
  v1::Operation operation;
  v1::JoinRequest& request = *operation.mutable_join();
  request.set_rank(options.rank);
  request.set_world_size(options.world_size);
  request.set_min_world_size(options.min_world_size);
  request.set_max_world_size(options.max_world_size);
  if (options.last_call.has_value()) {
    *request.mutable_last_call() = ToProto(*options.last_call);
  }
  request.set_without_seats(options.without_seats);
  const Deadline deadline =
      Deadline::After(options.timeout, options.timeout_name);
  const auto result = session.Call(std::move(operation), deadline);
  if (IsDeadlineExceeded(result.status())) {
    // The coordinator does not know the name of the timeout.
    const Status& late = result.status();
    return WithCulprits(Status(late.code(), absl::StrCat(late.message(), " ",
                                                         deadline.Blame())),
                        ToCulprits(late));
  }
  if (!result.ok()) return result.status();
  const v1::JoinResponse& response = result->join();
  Formation formation;
  formation.generation = response.generation();
  formation.rank = response.rank();
  formation.world_size = response.world_size();
  formation.seats.reserve(response.seats_size());
  for (const v1::Seat& seat : response.seats()) {
    formation.seats.push_back({.rank = seat.rank(),
                               .member = seat.member(),
                               .host = seat.host(),
                               .pid = seat.pid()});
  }
  return formation;
}

Status CloseRendezvous(StreamSession& session, const std::string& reason,
                       const Deadline& deadline) {
  v1::Operation operation;
  operation.mutable_close_rendezvous()->set_reason(reason);
  return session.Call(std::move(operation), deadline).status();
}

StatusOr<std::vector<int>> RegisterGroups(
    StreamSession& session, int64_t generation,
    const std::vector<GroupDefinition>& groups,
    std::optional<v1::GroupCall> call, const Deadline& deadline) {
  v1::Operation operation;
  v1::RegisterGroupsRequest& request = *operation.mutable_register_groups();
  request.set_generation(generation);
  for (const GroupDefinition& group : groups) {
    v1::GroupDefinition& definition = *request.add_groups();
    definition.set_name(group.name);
    definition.mutable_ranks()->Add(group.ranks.begin(), group.ranks.end());
    definition.set_description(group.description);
  }
  if (call.has_value()) *request.mutable_call() = *std::move(call);
  const auto result = session.Call(std::move(operation), deadline);
  if (!result.ok()) return result.status();
  const auto& registered = result->register_groups().registered();
  return std::vector<int>(registered.begin(), registered.end());
}

Status LeaveGroup(StreamSession& session, int64_t generation,
                  const std::string& group, const Deadline& deadline) {
  v1::Operation operation;
  operation.mutable_register_groups()->set_generation(generation);
  operation.mutable_register_groups()->add_left(group);
  return session.Call(std::move(operation), deadline).status();
}

Status AwaitBarrier(StreamSession& session, const std::string& group,
                    const std::string& name, int64_t generation, int rank,
                    bool wait_all_ranks, const Deadline& deadline) {
  v1::Operation operation;
  v1::AwaitBarrierRequest& request = *operation.mutable_await_barrier();
  request.set_group(group);
  request.set_name(name);
  request.set_generation(generation);
  request.set_rank(rank);
  request.set_wait_all_ranks(wait_all_ranks);
  return session.Call(std::move(operation), deadline).status();
}

Status ReportFailure(StreamSession& session, const std::string& error,
                     const Deadline& deadline) {
  v1::Operation operation;
  operation.mutable_report_failure()->set_error(error);
  return session.Call(std::move(operation), deadline).status();
}

namespace {

template <typename Request>
void FillError(const Status& error, Request& request) {
  request.set_error(v1::ToWire(error).message());
  request.set_code(static_cast<int>(error.code()));
  const absl::optional<v1::Culprits> culprits = v1::GetCulprits(error);
  if (culprits.has_value()) *request.mutable_culprits() = *culprits;
}

}  // namespace

Status ReportError(StreamSession& session, const Status& error,
                   const Deadline& deadline) {
  v1::Operation operation;
  FillError(error, *operation.mutable_report_failure());
  return session.Call(std::move(operation), deadline).status();
}

StatusOr<std::optional<MemberEvent>> ReportGroupFailure(
    StreamSession& session, v1::ReportGroupFailureRequest request,
    const Status& error, const Deadline& deadline) {
  v1::Operation operation;
  FillError(error, request);
  *operation.mutable_report_group_failure() = std::move(request);
  auto result = session.Call(std::move(operation), deadline);
  if (!result.ok()) return result.status();
  const v1::ReportGroupFailureResponse& response =
      result->report_group_failure();
  if (!response.has_verdict()) return std::optional<MemberEvent>();
  return std::optional(FromProto(response.verdict()));
}

Status Leave(StreamSession& session, const std::string& reason,
             const Deadline& deadline) {
  v1::Operation operation;
  operation.mutable_leave()->set_reason(reason);
  return session.Call(std::move(operation), deadline).status();
}

}  // namespace muster::internal
