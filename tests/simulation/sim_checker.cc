#include "tests/simulation/sim_checker.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster::simulation {
namespace {

// The part of an answer that the reference store computes, too.
std::string AnswerText(const core::Payload& payload) {
  if (const auto* number = std::get_if<core::NumberReply>(&payload)) {
    return absl::StrCat(number->number);
  }
  if (const auto* set = std::get_if<core::CompareSetReply>(&payload)) {
    if (set->value != nullptr) return *set->value;
    return set->stored ? "stored" : "(absent)";
  }
  if (const auto* flag = std::get_if<core::FlagReply>(&payload)) {
    return flag->flag ? "true" : "false";
  }
  return "";
}

core::Duration GetTimeout(const Request& request) {
  switch (request.verb) {
    case Verb::kGet:
    case Verb::kQueuePop:
    case Verb::kWait:
    case Verb::kMultiGet:
    case Verb::kWatch:
      return request.timeout;
    case Verb::kJoin:
      return request.join.timeout;
    case Verb::kAwaitBarrier:
      // The first caller's timeout counts; the longest one that members use
      // bounds it.
      return std::chrono::seconds(10);
    default:
      return core::Duration::zero();
  }
}

// Whether the coordinator should accept the caller.
bool IsCurrent(const core::Coordinator& coordinator, const core::Call& call,
               core::Instant now) {
  for (const core::MemberSnapshot& member : coordinator.Snapshot(now).members) {
    if (member.id != call.member) continue;
    return member.incarnation == call.incarnation &&
           (member.state == core::MemberState::kAlive ||
            member.state == core::MemberState::kDisconnected);
  }
  return false;
}

bool SameChange(const std::shared_ptr<const core::StoreChange>& one,
                const std::shared_ptr<const core::StoreChange>& other) {
  const bool values = one->value != nullptr && other->value != nullptr;
  return one->kind == other->kind && one->key == other->key &&
         one->revision == other->revision &&
         (values ? *one->value == *other->value : one->value == other->value);
}

}  // namespace

void SimChecker::Restart(core::CoordinatorEpoch epoch) {
  epoch_ = epoch;
  waiting_.clear();
  store_ = ReferenceStore();
  applied_.clear();
  acknowledged_.clear();
  answers_.clear();
  popped_.clear();
  counts_.clear();
  resumed_at_ = 0;
  registered_.clear();
  fenced_.clear();
  leaves_.clear();
  left_.clear();
  departures_.clear();
  closed_ = false;
  running_ = false;
}

void SimChecker::Resume(core::Instant now) {
  waiting_.clear();
  // Members that come back are told of all of left_.
  leaves_.clear();
  // The coordinator has forgotten the calls.
  for (auto& [key, call] : group_calls_) call.text.clear();
  store_.Resume(now);
  resumed_at_ = store_.revision();
}

void SimChecker::CompareWatches(core::Coordinator& old,
                                core::Coordinator& restored,
                                int64_t history_after, core::Instant now) {
  for (int64_t after = history_after; after <= store_.revision(); ++after) {
    const auto watch = [&](core::Coordinator& coordinator) {
      core::Outbox out;
      coordinator.Read(core::Call(), now, out, [&](core::StoreEngine& store) {
        store.Watch(core::Call(), {{"", true}, after, {}}, now, out);
      });
      return out.replies.at(0);
    };
    const core::Reply before = watch(old);
    const core::Reply reply = watch(restored);
    const auto* one = std::get_if<core::WatchReply>(&before.payload);
    const auto* other = std::get_if<core::WatchReply>(&reply.payload);
    if (one == nullptr || other == nullptr ||
        one->revision != other->revision ||
        !std::equal(one->changes.begin(), one->changes.end(),
                    other->changes.begin(), other->changes.end(), SameChange)) {
      Fail(absl::StrCat("I9: after the restart a watch from ", after, " got ",
                        reply.status.ToString(), ", before it ",
                        before.status.ToString()));
    }
  }
}

void SimChecker::Fail(const std::string& what) {
  if (!failure_.has_value()) failure_ = what;
}

void SimChecker::Before(const Request& request,
                        const core::Coordinator& coordinator,
                        core::Instant now) {
  const core::Call& call = request.call;
  Waiting waiting;
  waiting.request = request;
  waiting.due = now + GetTimeout(request) + late_;
  waiting.revision_floor = store_.GetRevision(request.key);
  if (!waiting_.emplace(call.waiter, std::move(waiting)).second) {
    Fail("two calls with one waiter");
  }
  subject_ = call.waiter;
  expected_answer_.reset();
  const bool current = call.sequence != core::SequenceNumber() &&
                       IsCurrent(coordinator, call, now);
  Acknowledged& acknowledged = acknowledged_[{call.member, call.incarnation}];
  if (current) Acknowledge(call, acknowledged);
  if (IsMutation(request.verb) && current) {
    if (fenced_.contains({call.member, call.incarnation})) {
      Fail(absl::StrCat("I4: ", call.member.value(), "/",
                        call.incarnation.value(), " is let in again"));
    }
    const auto number =
        std::make_tuple(call.member, call.incarnation, call.sequence.value());
    const bool forgotten = acknowledged.Covers(call.sequence.value());
    if (!forgotten && applied_.insert(number).second) {
      expected_answer_ = store_.Apply(request, now);
      answers_[number] = *expected_answer_;
    } else if (!forgotten) {
      expected_answer_ = answers_[number];
    }
  }
  if (request.verb == Verb::kAwaitBarrier) {
    arrivals_[{epoch_.value(), request.barrier.generation.value(),
               request.barrier.group, request.barrier.barrier,
               request.barrier.rank}]
        .insert(call.sequence.value());
  }
}

// An acknowledgement is permanent. The cache drops a number that was listed as
// unanswered when the member does not list it again.
void SimChecker::Acknowledge(const core::Call& call, Acknowledged& known) {
  const uint64_t through = call.acknowledged_through.value();
  std::set<uint64_t> open;
  for (const core::SequenceNumber number : call.unanswered) {
    const uint64_t n = number.value();
    if (known.open.contains(n) || (n > known.through && n <= through)) {
      open.insert(n);
    }
  }
  for (const uint64_t n : known.open) {
    if (n > through)
      open.insert(n);  // an overtaken message has no effect on it
  }
  seen_.stragglers += static_cast<int64_t>(open.size());
  known = {std::max(known.through, through), std::move(open)};
}

void SimChecker::CheckStep(const core::Outbox& out, bool ticked,
                           core::Instant now,
                           const core::Coordinator& coordinator) {
  for (const core::Notice& notice : out.notices) {
    switch (notice.kind) {
      case core::NoticeKind::kMemberLost:
      case core::NoticeKind::kMemberFailed:
      case core::NoticeKind::kMemberLeft:
      case core::NoticeKind::kMemberReplaced: {
        // `member=a incarnation=1 ...`
        const size_t begin = notice.text.find('=') + 1;
        seen_.orphaned += store_.Departed(core::MemberId(
            notice.text.substr(begin, notice.text.find(' ') - begin)));
        break;
      }
      case core::NoticeKind::kGenerationEnded:
        running_ = false;
        break;
      case core::NoticeKind::kGenerationFormed:
        if (running_) Fail("I6: formed over a running generation");
        if (closed_) Fail("I6: formed after the close");
        running_ = true;
        if (absl::StrContains(notice.text, " waiting=")) ++seen_.spares;
        break;
      case core::NoticeKind::kRendezvousLastCall:
        ++seen_.last_calls;
        break;
      case core::NoticeKind::kRendezvousClosed:
        closed_ = true;
        ++seen_.closed;
        break;
      default:
        break;
    }
  }
  CheckEvents(out, coordinator.Snapshot(now), now);
  if (ticked) seen_.expired += store_.Expire(now);
  if (coordinator.Counts().keys !=
      static_cast<int64_t>(store_.values().size())) {
    Fail("I3: the store has another number of keys than the reference");
  }
}

void SimChecker::CompareRevisions(const core::Coordinator& coordinator,
                                  core::Instant now) {
  const int64_t revision = coordinator.Snapshot(now).revision;
  if (revision != store_.revision()) {
    Fail(absl::StrCat("I3: the store is at revision ", revision, ", not ",
                      store_.revision()));
  }
}

void SimChecker::Observe(const core::Reply& reply, core::Instant now) {
  const auto it = waiting_.find(reply.waiter);
  if (it == waiting_.end()) {
    return Fail(absl::StrCat("I5: w", reply.waiter.value(),
                             " is answered and does not wait"));
  }
  const Waiting waiting = std::move(it->second);
  waiting_.erase(it);
  if (now > waiting.due) {
    Fail(absl::StrCat(
        "I5: w", reply.waiter.value(),
        " is answered after its deadline: ", ToCommand(waiting.request)));
  }
  if (IsMutation(waiting.request.verb)) ObserveMutation(waiting, reply);
  switch (waiting.request.verb) {
    case Verb::kAwaitBarrier:
      ObserveBarrier(waiting, reply);
      break;
    case Verb::kJoin:
      if (const auto* formed =
              std::get_if<core::FormationReply>(&reply.payload)) {
        ObserveFormation(waiting, *formed);
      }
      break;
    case Verb::kRegisterGroups:
      ObserveGroups(waiting, reply);
      break;
    case Verb::kReportGroupFailure:
      if (const auto* verdict =
              std::get_if<core::GroupFailureReply>(&reply.payload);
          verdict != nullptr && *verdict != nullptr) {
        ObserveVerdict(**verdict);
      }
      break;
    case Verb::kRegister:
      if (reply.status.ok()) ObserveRegistration(waiting);
      break;
    case Verb::kGet:
      ObserveGet(waiting, reply, now);
      break;
    case Verb::kMultiGet:
      ObserveMultiGet(waiting, reply);
      break;
    case Verb::kWait:
      ObserveWait(waiting, reply);
      break;
    case Verb::kQueuePop:
      ObservePop(waiting, reply);
      break;
    case Verb::kWatch:
      ObserveWatch(waiting, reply);
      break;
    default:
      break;
  }
}

// Every answer to a numbered mutation is that of the reference. A caller that
// is fenced or has acknowledged the number gets an error.
void SimChecker::ObserveMutation(const Waiting& waiting,
                                 const core::Reply& reply) {
  if (reply.waiter != subject_) return Fail("I5: a mutation was parked");
  if (reply.status.ok() != expected_answer_.has_value()) {
    return Fail(absl::StrCat("I4: ", ToCommand(waiting.request), " got ",
                             reply.status.ToString()));
  }
  if (reply.status.ok() && AnswerText(reply.payload) != *expected_answer_) {
    Fail(absl::StrCat("I3: ", ToCommand(waiting.request), " got ",
                      AnswerText(reply.payload), ", not ", *expected_answer_));
  }
}

void SimChecker::ObserveGet(const Waiting& waiting, const core::Reply& reply,
                            core::Instant now) {
  const auto* got = std::get_if<core::ValueReply>(&reply.payload);
  if (got == nullptr) return;
  const auto it = store_.values().find(waiting.request.key);
  if (got->revision < waiting.revision_floor) {
    Fail(absl::StrCat("I3: ", ToCommand(waiting.request), " read revision ",
                      got->revision, ", which is older than ",
                      waiting.revision_floor));
  }
  if (it == store_.values().end() || it->second != *got->value) {
    Fail(absl::StrCat("I3: ", ToCommand(waiting.request), " read ",
                      *got->value));
  }
  if (now - late_ > store_.GetExpiry(waiting.request.key)) {
    Fail(absl::StrCat("I3: ", ToCommand(waiting.request),
                      " read what had expired"));
  }
}

// Keys that are only written together must be read together.
void SimChecker::ObserveMultiGet(const Waiting& waiting,
                                 const core::Reply& reply) {
  const auto* got = std::get_if<core::ValuesReply>(&reply.payload);
  if (got == nullptr) return;
  ++seen_.read_together;
  const std::vector<std::string>& keys = waiting.request.keys;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto it = store_.values().find(keys[i]);
    const core::ValueReply& value = got->values.at(i);
    if (it == store_.values().end() || it->second != *value.value ||
        value.revision != store_.GetRevision(keys[i]) ||
        value.revision != got->values.front().revision) {
      Fail(absl::StrCat("I3: ", ToCommand(waiting.request), " read ",
                        *value.value, " of ", keys[i]));
    }
  }
}

void SimChecker::ObserveWait(const Waiting& waiting, const core::Reply& reply) {
  if (!reply.status.ok()) return;
  ++seen_.waited;
  for (const std::string& key : waiting.request.keys) {
    if (!store_.values().contains(key)) {
      Fail(absl::StrCat("I3: ", ToCommand(waiting.request),
                        " did not wait for ", key));
    }
  }
}

// The first answer to a numbered pop takes the item, a later one repeats it.
void SimChecker::ObservePop(const Waiting& waiting, const core::Reply& reply) {
  const core::Call& call = waiting.request.call;
  std::string answer;
  if (const auto* popped = std::get_if<core::ValueReply>(&reply.payload)) {
    answer = absl::StrCat("item ", *popped->value);
  } else if (reply.status.code() == StatusCode::kNotFound ||
             reply.status.code() == StatusCode::kDeadlineExceeded) {
    answer = "empty";
  } else {
    return;  // fenced, withdrawn or superseded
  }
  const auto [it, first] = popped_.emplace(
      std::make_tuple(call.member, call.incarnation, call.sequence.value()),
      answer);
  std::string expected = it->second;
  if (first) {
    const std::optional<std::string> item = store_.Pop(waiting.request.key);
    expected = item.has_value() ? absl::StrCat("item ", *item) : "empty";
    if (item.has_value()) ++seen_.popped;
  }
  if (answer != expected) {
    Fail(absl::StrCat("I3: ", ToCommand(waiting.request), " got ", answer,
                      ", not ", expected));
  }
}

void SimChecker::ObserveWatch(const Waiting& waiting,
                              const core::Reply& reply) {
  const Request& request = waiting.request;
  if (reply.status.code() == StatusCode::kOutOfRange) {
    const int64_t since = std::count_if(
        store_.changes().begin(), store_.changes().end(),
        [&](const auto& change) { return change.revision > *request.after; });
    // The caller does not know yet that the store is a new one.
    const bool ahead = *request.after > store_.revision();
    if (!ahead && since <= kWatchHistoryChanges) {
      Fail(absl::StrCat("I3: ", ToCommand(request), " got ",
                        reply.status.ToString()));
    }
    ++seen_.watches_cut;
    return;
  }
  const auto* watched = std::get_if<core::WatchReply>(&reply.payload);
  if (watched == nullptr) return;
  std::vector<ReferenceStore::Change> expected;
  for (const ReferenceStore::Change& change : store_.changes()) {
    if (change.revision > request.after.value_or(watched->revision) &&
        change.revision <= watched->revision &&
        absl::StartsWith(change.key, request.key)) {
      expected.push_back(change);
    }
  }
  const bool same = std::equal(
      expected.begin(), expected.end(), watched->changes.begin(),
      watched->changes.end(), [](const auto& one, const auto& other) {
        return one.kind == other->kind && one.key == other->key &&
               one.revision == other->revision &&
               one.value == (other->value == nullptr ? "" : *other->value);
      });
  if (!same || watched->revision > store_.revision()) {
    Fail(absl::StrCat("I3: ", ToCommand(request), " got ",
                      watched->changes.size(), " changes through revision ",
                      watched->revision, ", not ", expected.size()));
  }
  seen_.watched += static_cast<int64_t>(expected.size());
  seen_.watched_on += std::count_if(
      expected.begin(), expected.end(),
      [&](const auto& change) { return change.revision <= resumed_at_; });
}

void SimChecker::ObserveRegistration(const Waiting& waiting) {
  const core::Call& call = waiting.request.call;
  const Registration mine(call.member, call.incarnation);
  if (fenced_.contains(mine)) {
    Fail(absl::StrCat("I4: ", ToCommand(waiting.request), " came back"));
  }
  registered_.insert(mine);
  for (const Registration& other : registered_) {
    if (other.first == mine.first && other != mine) fenced_.insert(other);
  }
}

void SimChecker::Departed(const core::Event& event) {
  fenced_.insert({event.member, event.incarnation});
}

void SimChecker::CompareStores(core::Coordinator& coordinator,
                               core::Instant now) {
  for (const auto& [key, value] : store_.values()) {
    core::Outbox out;
    coordinator.Read(core::Call(), now, out, [&](core::StoreEngine& store) {
      store.TryGet(core::Call(), key, out);
    });
    const auto& got = std::get<core::ValueReply>(out.replies.at(0).payload);
    if (got.value == nullptr || *got.value != value) {
      Fail(absl::StrCat("I3: ", key, " should hold ", value));
    }
  }
  for (const auto& [key, queue] : store_.queues()) {
    core::Outbox out;
    coordinator.Read(core::Call(), now, out, [&](core::StoreEngine& store) {
      store.QueueLen(core::Call(), key, out);
    });
    const auto& got = std::get<core::NumberReply>(out.replies.at(0).payload);
    if (got.number != static_cast<int64_t>(queue.size())) {
      Fail(absl::StrCat("I3: ", key, " should hold ", queue.size(), " items"));
    }
  }
}

void SimChecker::ExpectNoWaiters() {
  for (const auto& [waiter, waiting] : waiting_) {
    Fail(absl::StrCat("I8: nobody answers w", waiter.value(), " ",
                      ToCommand(waiting.request)));
  }
}

std::vector<core::WaiterId> SimChecker::Waiters(
    const core::MemberId& member) const {
  std::vector<core::WaiterId> waiters;
  for (const auto& [waiter, waiting] : waiting_) {
    if (waiting.request.call.member == member) waiters.push_back(waiter);
  }
  return waiters;
}

const Request* SimChecker::FindRequest(core::WaiterId waiter) const {
  const auto it = waiting_.find(waiter);
  return it == waiting_.end() ? nullptr : &it->second.request;
}

}  // namespace muster::simulation
