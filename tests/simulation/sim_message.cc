#include "tests/simulation/sim_message.h"

#include "absl/strings/str_cat.h"

namespace muster::simulation {
namespace {

std::string Milliseconds(core::Duration duration) {
  using std::chrono::duration_cast;
  using std::chrono::milliseconds;
  return absl::StrCat(duration_cast<milliseconds>(duration).count(), "ms");
}

std::string VerbName(const Request& request) {
  switch (request.verb) {
    case Verb::kRegister:
      return "register";
    case Verb::kHeartbeat:
      return "heartbeat";
    case Verb::kLeave:
      return "leave";
    case Verb::kFail:
      return "fail";
    case Verb::kJoin:
      return "join";
    case Verb::kArrive:
      return "arrive";
    case Verb::kSet:
      return "set";
    case Verb::kAppend:
      return "append";
    case Verb::kAdd:
      return "add";
    case Verb::kCompareSet:
      return "cas";
    case Verb::kDelete:
      return "delete";
    case Verb::kGet:
      return "get";
  }
  return "unknown";
}

}  // namespace

std::string ToCommand(const Request& request) {
  std::string line =
      absl::StrCat(VerbName(request), " ", request.call.member.value(), "/",
                   request.call.incarnation.value());
  if (!request.key.empty()) absl::StrAppend(&line, " k=", request.key);
  switch (request.verb) {
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
    case Verb::kGet:
      absl::StrAppend(&line, " t=", Milliseconds(request.timeout));
      break;
    case Verb::kJoin:
      if (request.join.rank.has_value()) {
        absl::StrAppend(&line, " rank=", request.join.rank->value());
      }
      absl::StrAppend(&line, " world=", request.join.world_size,
                      " t=", Milliseconds(request.join.timeout));
      break;
    case Verb::kArrive:
      absl::StrAppend(&line, " rank=", request.barrier.rank.value(),
                      " name=", request.barrier.barrier,
                      " generation=", request.barrier.generation.value(),
                      " t=", Milliseconds(request.barrier.timeout),
                      request.barrier.wait_all_ranks ? " all=1" : "");
      break;
    default:
      break;
  }
  if (request.call.sequence != core::SequenceNumber()) {
    absl::StrAppend(&line, " seq=", request.call.sequence.value(),
                    " ack=", request.call.acknowledged_through.value());
  }
  return line;
}

}  // namespace muster::simulation
