#include "coordinator/storage/record_values.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/string_view.h"

namespace muster::coordinator {
namespace {

struct PayloadFiller {
  storage::v1::Reply& message;

  void operator()(const std::monostate&) {}
  void operator()(const core::RevisionReply& reply) {
    message.set_revision(reply.revision);
  }
  void operator()(const core::NumberReply& reply) {
    message.mutable_number()->set_number(reply.number);
    message.mutable_number()->set_revision(reply.revision);
  }
  void operator()(const core::FlagReply& reply) {
    message.mutable_flag()->set_flag(reply.flag);
    message.mutable_flag()->set_revision(reply.revision);
  }
  void operator()(const core::ValueReply& reply) {
    if (reply.value == nullptr) return;
    message.mutable_popped()->set_value(*reply.value);
    message.mutable_popped()->set_revision(reply.revision);
  }
  void operator()(const core::CompareSetReply& reply) {
    storage::v1::Reply::CompareSet* set = message.mutable_compare_set();
    if (reply.value != nullptr) set->set_value(*reply.value);
    set->set_stored(reply.stored);
    set->set_revision(reply.revision);
  }
  void operator()(const core::FormationReply& reply) {
    if (reply != nullptr) message.set_formation(reply->generation.value());
  }
  void operator()(const core::BarrierReply& reply) {
    if (reply != nullptr) FillBarrier(*reply, message.mutable_barrier());
  }
  void operator()(const core::GroupsReply& reply) {
    for (const int32_t registered : reply.registered) {
      message.mutable_groups()->add_registered(registered);
    }
    message.mutable_groups();
  }
  // Answers to reads are not stored, except to a pop.
  template <typename Other>
  void operator()(const Other&) {}
};

}  // namespace

void FillStatus(const Status& status, storage::v1::Status* message) {
  message->set_code(static_cast<int32_t>(status.code()));
  message->set_message(status.message());
  status.ForEachPayload([&](const std::string& url, const std::string& bytes) {
    storage::v1::Status::Payload* payload = message->add_payloads();
    payload->set_type_url(std::string(url));
    payload->set_value(std::string(bytes));
  });
}

Status ToStatus(const storage::v1::Status& message) {
  Status status(static_cast<StatusCode>(message.code()), message.message());
  for (const storage::v1::Status::Payload& payload : message.payloads()) {
    status.SetPayload(payload.type_url(), payload.value());
  }
  return status;
}

void FillBarrier(const core::BarrierResult& result,
                 storage::v1::Barrier* message) {
  message->set_group(result.group);
  message->set_barrier(result.barrier);
  message->set_instance(result.instance);
  message->set_outcome(static_cast<int32_t>(result.outcome));
  message->set_expected(result.expected);
  message->set_arrived(result.arrived);
  message->set_first_to_arrive(result.first_to_arrive.value());
  message->set_waited_ns(result.waited.count());
  for (const core::MissingRank& rank : result.missing) {
    storage::v1::Barrier::Missing* missing = message->add_missing();
    missing->set_rank(rank.rank.value());
    missing->set_member(rank.member.value());
    missing->set_host(rank.host);
    missing->set_pid(rank.pid);
    missing->set_cause(static_cast<int32_t>(rank.cause));
    missing->set_cause_text(rank.cause_text);
    missing->set_last_progress(rank.last_progress);
    missing->set_last_heard_ago_ns(rank.last_heard_ago.count());
  }
  message->mutable_others()->Add(result.others.begin(), result.others.end());
}

core::BarrierReply ToBarrierReply(const storage::v1::Barrier& message) {
  auto result = std::make_shared<core::BarrierResult>();
  result->group = message.group();
  result->barrier = message.barrier();
  result->instance = message.instance();
  result->outcome = static_cast<core::BarrierOutcome>(message.outcome());
  result->expected = message.expected();
  result->arrived = message.arrived();
  result->first_to_arrive = core::Rank(message.first_to_arrive());
  result->waited = core::Duration(message.waited_ns());
  for (const storage::v1::Barrier::Missing& missing : message.missing()) {
    core::MissingRank& rank = result->missing.emplace_back();
    rank.rank = core::Rank(missing.rank());
    rank.member = core::MemberId(missing.member());
    rank.host = missing.host();
    rank.pid = missing.pid();
    rank.cause = static_cast<core::MissingCause>(missing.cause());
    rank.cause_text = missing.cause_text();
    rank.last_progress = missing.last_progress();
    rank.last_heard_ago = core::Duration(missing.last_heard_ago_ns());
  }
  result->others.assign(message.others().begin(), message.others().end());
  return result;
}

void FillPayload(const core::Payload& payload, storage::v1::Reply* message) {
  std::visit(PayloadFiller{*message}, payload);
}

core::Payload ToPayload(const storage::v1::Reply& message) {
  switch (message.payload_case()) {
    case storage::v1::Reply::kRevision:
      return core::RevisionReply{message.revision()};
    case storage::v1::Reply::kNumber:
      return core::NumberReply{message.number().number(),
                               message.number().revision()};
    case storage::v1::Reply::kFlag:
      return core::FlagReply{message.flag().flag(), message.flag().revision()};
    case storage::v1::Reply::kCompareSet: {
      const storage::v1::Reply::CompareSet& set = message.compare_set();
      core::CompareSetReply reply;
      if (set.has_value()) {
        reply.value = std::make_shared<const std::string>(set.value());
      }
      reply.stored = set.stored();
      reply.revision = set.revision();
      return reply;
    }
    case storage::v1::Reply::kPopped:
      return core::ValueReply{
          std::make_shared<const std::string>(message.popped().value()),
          message.popped().revision()};
    case storage::v1::Reply::kFormation: {
      // Only the number; Coordinator::Restore replaces it with the newest
      // formation.
      auto formation = std::make_shared<core::Formation>();
      formation->generation = core::Generation(message.formation());
      return core::FormationReply(std::move(formation));
    }
    case storage::v1::Reply::kBarrier:
      return ToBarrierReply(message.barrier());
    case storage::v1::Reply::kGroups: {
      const auto& registered = message.groups().registered();
      return core::GroupsReply{{registered.begin(), registered.end()}};
    }
    case storage::v1::Reply::PAYLOAD_NOT_SET:
      break;
  }
  return std::monostate();
}

}  // namespace muster::coordinator
