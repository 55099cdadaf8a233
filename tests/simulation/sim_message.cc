#include "tests/simulation/sim_message.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace muster::simulation {
namespace {

std::string Milliseconds(core::Duration duration) {
  using std::chrono::duration_cast;
  using std::chrono::milliseconds;
  return absl::StrCat(duration_cast<milliseconds>(duration).count(), "ms");
}

std::string RanksText(const std::vector<core::Rank>& ranks) {
  return absl::StrJoin(ranks, ",", [](std::string* out, core::Rank rank) {
    absl::StrAppend(out, rank.value());
  });
}

}  // namespace

std::string VerbName(Verb verb) {
  constexpr const char* kNames[] = {
#define MUSTER_OPERATION(service, name, ...) #name,
#define MUSTER_RPC(service, name, role) #name,
#include "proto/muster/v1/verbs.inc"
  };
  return kNames[static_cast<size_t>(verb)];
}

void ApplyToStore(const Request& request, core::Instant now,
                  core::StoreEngine& store, core::Outbox& out) {
  const core::Call& call = request.call;
  const std::string& key = request.key;
  switch (request.verb) {
    case Verb::kSet:
      return store.Set(call, key, request.value, request.options, now, out);
    case Verb::kAppend:
      return store.Append(call, key, request.value, out);
    case Verb::kAdd:
      return store.Add(call, key, request.delta, out);
    case Verb::kCompareSet:
      return store.CompareSet(call, key, request.expected, request.value, out);
    case Verb::kCompareAndSet:
      return store.CompareAndSet(call, key, request.expected_revision,
                                 request.value, request.options, now, out);
    case Verb::kDelete:
      return store.DeleteKey(call, key, out);
    case Verb::kDeletePrefix:
      return store.DeletePrefix(call, key, out);
    case Verb::kQueuePush:
      return store.QueuePush(call, key, request.value, out);
    case Verb::kQueuePop:
      return store.QueuePop(call, key,
                            request.timeout > core::Duration::zero()
                                ? std::make_optional(request.timeout)
                                : std::nullopt,
                            now, out);
    case Verb::kMultiSet:
      return store.MultiSet(
          call, request.keys,
          std::vector<std::string>(request.keys.size(), request.value), out);
    case Verb::kGet:
      return store.Get(call, key, request.timeout, now, out);
    case Verb::kWait:
      return store.Wait(call, request.keys, request.timeout, now, out);
    case Verb::kMultiGet:
      return store.MultiGet(call, request.keys, request.timeout, now, out);
    case Verb::kWatch:
      return store.Watch(call, {{key, true}, request.after, request.timeout},
                         now, out);
    default:
      return;
  }
}

std::string ToCommand(const Request& request) {
  std::string line =
      absl::StrCat(VerbName(request.verb), " ", request.call.member.value(),
                   "/", request.call.incarnation.value());
  const bool prefix =
      request.verb == Verb::kDeletePrefix || request.verb == Verb::kWatch;
  if (prefix || !request.key.empty()) {
    absl::StrAppend(&line, prefix ? " prefix=" : " k=", request.key);
  }
  if (!request.keys.empty()) {
    absl::StrAppend(&line, " k=", absl::StrJoin(request.keys, ","));
  }
  if (request.options.ttl.has_value()) {
    absl::StrAppend(&line, " ttl=", Milliseconds(*request.options.ttl));
  }
  if (request.options.ephemeral) absl::StrAppend(&line, " ephemeral=1");
  switch (request.verb) {
    case Verb::kCompareAndSet:
      absl::StrAppend(&line, " at=", request.expected_revision,
                      " v=", request.value);
      break;
    case Verb::kQueuePop:
      if (request.timeout > core::Duration::zero()) {
        absl::StrAppend(&line, " t=", Milliseconds(request.timeout));
      }
      break;
    case Verb::kWatch:
      if (request.after.has_value()) {
        absl::StrAppend(&line, " after=", *request.after);
      }
      absl::StrAppend(&line, " t=", Milliseconds(request.timeout));
      break;
    case Verb::kQueuePush:
    case Verb::kSet:
    case Verb::kAppend:
      absl::StrAppend(&line, " v=", request.value);
      break;
    case Verb::kAdd:
      absl::StrAppend(&line, " by=", request.delta);
      break;
    case Verb::kCompareSet:
      absl::StrAppend(&line, " old=", request.expected, " new=", request.value);
      break;
    case Verb::kMultiSet:
      absl::StrAppend(&line, " v=",
                      absl::StrJoin(std::vector<std::string>(
                                        request.keys.size(), request.value),
                                    ","));
      break;
    case Verb::kGet:
    case Verb::kWait:
    case Verb::kMultiGet:
      absl::StrAppend(&line, " t=", Milliseconds(request.timeout));
      break;
    case Verb::kJoin:
      if (request.join.rank.has_value()) {
        absl::StrAppend(&line, " rank=", request.join.rank->value());
      }
      if (request.join.world_size != 0) {
        absl::StrAppend(&line, " world=", request.join.world_size);
      } else {
        absl::StrAppend(&line, " min=", request.join.min_world_size,
                        " max=", request.join.max_world_size,
                        " last=", Milliseconds(*request.join.last_call));
      }
      absl::StrAppend(&line, " t=", Milliseconds(request.join.timeout));
      break;
    case Verb::kRegisterGroups:
      absl::StrAppend(&line, " generation=", request.generation.value(), " of=",
                      absl::StrJoin(request.groups, ";",
                                    [](std::string* out, const auto& group) {
                                      absl::StrAppend(out, group.name, ":",
                                                      RanksText(group.ranks));
                                    }),
                      " left=", absl::StrJoin(request.groups_left, ","));
      if (request.group_call.has_value()) {
        const core::GroupCall& call = *request.group_call;
        absl::StrAppend(
            &line,
            call.state == core::GroupCallState::kWaits        ? " waits="
            : call.state == core::GroupCallState::kStillWaits ? " still="
                                                              : " passes=",
            call.series, ":", call.number,
            " does=", absl::StrReplaceAll(call.arguments, {{" ", "+"}}));
      }
      break;
    case Verb::kReportGroupFailure: {
      constexpr const char* kKinds[] = {"symptom", "timeout", "mismatch",
                                        "decision"};
      absl::StrAppend(
          &line, " generation=", request.failure.generation.value(),
          " group=", request.failure.group,
          " instance=", request.failure.instance,
          " kind=", kKinds[static_cast<int>(request.failure.kind)], " why=",
          absl::StrReplaceAll(request.failure.error.text, {{" ", "+"}}),
          " blames=", RanksText(request.failure.culprits),
          request.failure.late ? " late=1" : "");
      break;
    }
    case Verb::kAwaitBarrier:
      absl::StrAppend(&line, " rank=", request.barrier.rank.value(),
                      " name=", request.barrier.barrier,
                      " generation=", request.barrier.generation.value(),
                      " t=", Milliseconds(request.barrier.timeout),
                      request.barrier.wait_all_ranks ? " all=1" : "");
      if (!request.barrier.group.empty()) {
        absl::StrAppend(&line, " group=", request.barrier.group);
      }
      if (!request.barrier.ranks.empty()) {
        absl::StrAppend(&line, " ranks=", RanksText(request.barrier.ranks));
      }
      break;
    default:
      break;
  }
  if (request.call.sequence != core::SequenceNumber()) {
    absl::StrAppend(&line, " seq=", request.call.sequence.value(),
                    " ack=", request.call.acknowledged_through.value());
  }
  if (!request.call.unanswered.empty()) {
    absl::StrAppend(&line, " open=",
                    absl::StrJoin(request.call.unanswered, ",",
                                  [](std::string* out, const auto& number) {
                                    absl::StrAppend(out, number.value());
                                  }));
  }
  return line;
}

}  // namespace muster::simulation
