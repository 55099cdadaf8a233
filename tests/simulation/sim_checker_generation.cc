// The part of SimChecker for generations: their worlds, groups, barriers and
// events.

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/departure_batcher.h"
#include "tests/simulation/sim_checker.h"

namespace muster::simulation {
namespace {

// Compares contents: a restored coordinator has copies of its answers.
bool Same(const core::Formation& a, const core::Formation& b) {
  return a.generation == b.generation &&
         std::equal(a.world.begin(), a.world.end(), b.world.begin(),
                    b.world.end(),
                    [](const core::Seat& one, const core::Seat& other) {
                      return one.member == other.member &&
                             one.incarnation == other.incarnation &&
                             one.host == other.host && one.pid == other.pid &&
                             one.address == other.address;
                    });
}

bool Same(const core::BarrierResult& a, const core::BarrierResult& b) {
  return a.outcome == b.outcome && a.expected == b.expected &&
         a.arrived == b.arrived && a.first_to_arrive == b.first_to_arrive &&
         a.waited == b.waited &&
         std::equal(a.missing.begin(), a.missing.end(), b.missing.begin(),
                    b.missing.end(), [](const auto& one, const auto& other) {
                      return one.rank == other.rank &&
                             one.cause == other.cause &&
                             one.cause_text == other.cause_text;
                    });
}

// The member of a notice `member=a incarnation=1 ...`.
core::MemberId ParseMember(const core::Notice& notice) {
  const size_t begin = notice.text.find('=') + 1;
  return core::MemberId(
      notice.text.substr(begin, notice.text.find(' ') - begin));
}

// The member and incarnation of such a notice.
std::pair<core::MemberId, core::Incarnation> ParseIncarnation(
    const core::Notice& notice) {
  const std::string name = " incarnation=";
  const size_t begin = notice.text.find(name) + name.size();
  return {ParseMember(notice),
          core::Incarnation(std::stoull(notice.text.substr(begin)))};
}

// Worlds are so small that events describe all members.
std::set<std::pair<core::MemberId, core::Incarnation>> LeftIn(
    const core::Event& event) {
  if (event.together == nullptr) return {{event.member, event.incarnation}};
  std::set<std::pair<core::MemberId, core::Incarnation>> left;
  for (const core::Event& one : event.together->described) {
    left.emplace(one.member, one.incarnation);
  }
  return left;
}

bool IsLive(const core::MemberSnapshot& member) {
  return member.state == core::MemberState::kAlive ||
         member.state == core::MemberState::kDisconnected;
}

bool IsDeparture(const core::Notice& notice) {
  switch (notice.kind) {
    case core::NoticeKind::kMemberLost:
    case core::NoticeKind::kMemberFailed:
    case core::NoticeKind::kMemberLeft:
    case core::NoticeKind::kMemberReplaced:
      return absl::StrContains(notice.text, " rank=");
    default:
      return false;
  }
}

}  // namespace

void SimChecker::ObserveFormation(const Waiting& waiting,
                                  const core::FormationReply& formation) {
  const auto [it, fresh] = formations_.emplace(
      std::make_pair(epoch_.value(), formation->generation.value()), formation);
  if (!Same(*it->second, *formation)) {
    Fail("I6: two formations of one generation");
  }
  if (fresh) CheckFormation(waiting.request.join, *formation);
  std::set<core::MemberId> members;
  for (const core::Seat& seat : formation->world) members.insert(seat.member);
  if (members.size() != formation->world.size()) {
    Fail("I6: a member has two ranks");
  }
}

void SimChecker::CheckFormation(const core::JoinRequest& join,
                                const core::Formation& formation) {
  const bool elastic = join.max_world_size > 0;
  const int32_t least = elastic ? join.min_world_size : join.world_size;
  const int32_t most = elastic ? join.max_world_size : join.world_size;
  const int32_t size = static_cast<int32_t>(formation.world.size());
  if (size < least || size > most) {
    Fail(absl::StrCat("I6: a world of ", size, ", not of ", least, " to ",
                      most));
  }
  std::map<core::MemberId, int32_t> ranks;
  for (int32_t i = 0; i < size; ++i) {
    const core::Seat& seat = formation.world[i];
    ranks[seat.member] = i;
    if (fenced_.contains({seat.member, seat.incarnation})) {
      Fail(absl::StrCat("I6: rank ", i, " is given to ", seat.member.value(),
                        ", who has departed"));
    }
  }
  const auto before =
      formations_.find({epoch_.value(), formation.generation.value() - 1});
  if (!elastic || before == formations_.end()) return;
  const auto& held = before->second->world;
  for (int32_t i = 0; i < std::min(size, static_cast<int32_t>(held.size()));
       ++i) {
    const auto now = ranks.find(held[i].member);
    if (now == ranks.end()) continue;
    ++seen_.returns;
    if (now->second != i) {
      Fail(absl::StrCat("I6: ", held[i].member.value(), " had rank ", i,
                        ", has ", now->second));
    }
  }
}

// All ranks that wait in vain in one call are told the same, and none without
// another rank that passed other arguments.
void SimChecker::ObserveGroupCall(const Waiting& waiting,
                                  const core::Reply& reply) {
  const core::GroupCall& made = *waiting.request.group_call;
  const core::Call& call = waiting.request.call;
  if (!reply.status.ok() &&
      reply.status.code() != StatusCode::kInvalidArgument) {
    return;  // fenced, or its generation is over
  }
  // The caller does not know yet that the coordinator is a new one.
  if (!formations_.contains(
          {epoch_.value(), waiting.request.generation.value()})) {
    return;
  }
  const std::string text(reply.status.message());
  const auto [answer, first] = told_calls_.emplace(
      std::make_tuple(call.member, call.incarnation, call.sequence.value()),
      text);
  if (!first) {
    if (answer->second != text) {
      Fail(
          absl::StrCat("I6: ", ToCommand(waiting.request), " got two answers"));
    }
    return;
  }
  GroupCall& known = group_calls_[{
      epoch_.value(), waiting.request.generation.value(), made.number}];
  if (made.state != core::GroupCallState::kStillWaits) {
    known.hashes.insert(made.arguments_hash);
  }
  if (reply.status.ok()) return;
  ++seen_.calls_told;
  if (known.hashes.size() < 2 || made.state == core::GroupCallState::kPasses ||
      (!known.text.empty() && known.text != text)) {
    Fail(absl::StrCat("I6: ", ToCommand(waiting.request), " got ",
                      reply.status.ToString(), ", others ", known.text));
  }
  known.text = text;
}

// A group has one verdict, which its members get word for word.
void SimChecker::ObserveVerdict(const core::GroupFailure& failure) {
  ++seen_.verdicts;
  std::vector<core::Rank> culprits;
  if (failure.error.culprits != nullptr) {
    for (const core::MissingRank& who : failure.error.culprits->missing) {
      culprits.push_back(who.rank);
    }
  }
  const std::pair verdict(failure.error.text, culprits);
  const auto [known, first] = verdicts_.emplace(
      std::make_tuple(epoch_.value(), failure.generation.value(), failure.group,
                      failure.instance),
      verdict);
  if (!first && known->second != verdict) {
    Fail(absl::StrCat("I6: group ", failure.group, failure.instance,
                      " failed: ", failure.error.text, ", and ",
                      known->second.first));
  }
}

// A call registers all of its groups or none; a retry gets the answer of the
// first attempt.
void SimChecker::ObserveGroups(const Waiting& waiting,
                               const core::Reply& reply) {
  const Request& request = waiting.request;
  if (request.group_call.has_value()) return ObserveGroupCall(waiting, reply);
  const auto at = [&](const core::GroupDefinition& group) {
    return std::make_tuple(epoch_.value(), request.generation.value(),
                           group.name);
  };
  if (reply.status.code() == StatusCode::kInvalidArgument) {
    const auto formed =
        formations_.find({epoch_.value(), request.generation.value()});
    // The caller does not know yet that the coordinator is a new one.
    if (formed == formations_.end()) return;
    ++seen_.group_conflicts;
    const auto& world = formed->second->world;
    const bool refused = std::any_of(
        request.groups.begin(), request.groups.end(), [&](const auto& group) {
          const auto known = groups_.find(at(group));
          return (known != groups_.end() &&
                  known->second.ranks != group.ranks) ||
                 std::none_of(
                     group.ranks.begin(), group.ranks.end(),
                     [&](core::Rank rank) {
                       const size_t seat = static_cast<size_t>(rank.value());
                       return seat < world.size() &&
                              world[seat].member == request.call.member;
                     }) ||
                 group.ranks.back().value() >=
                     static_cast<int32_t>(world.size());
        });
    if (!refused) {
      Fail(absl::StrCat("I6: ", ToCommand(request), " got ",
                        reply.status.ToString()));
    }
    return;
  }
  const auto* counted = std::get_if<core::GroupsReply>(&reply.payload);
  if (counted == nullptr) return;  // fenced, or its generation is over
  const core::Call& call = request.call;
  const auto [answer, first] = counts_.emplace(
      std::make_tuple(call.member, call.incarnation, call.sequence.value()),
      counted->registered);
  if (!first) {
    if (answer->second != counted->registered) {
      Fail(absl::StrCat("I6: ", ToCommand(request), " got two answers"));
    }
    return;
  }
  ++seen_.grouped;
  for (size_t i = 0; i < request.groups.size(); ++i) {
    Group& group = groups_[at(request.groups[i])];
    if (group.registered.empty()) group.ranks = request.groups[i].ranks;
    group.registered.insert(call.member);
    if (group.ranks != request.groups[i].ranks ||
        static_cast<int32_t>(group.registered.size()) !=
            counted->registered.at(i)) {
      Fail(absl::StrCat("I6: ", ToCommand(request), " counts ",
                        counted->registered.at(i), " in group ", i, ", not ",
                        group.registered.size()));
    }
  }
}

// The participants of a barrier.
std::vector<core::Rank> SimChecker::FindParticipants(
    const core::BarrierRequest& request) {
  if (!request.ranks.empty()) return request.ranks;
  const uint64_t epoch = epoch_.value();
  const int64_t generation = request.generation.value();
  const auto group = groups_.find({epoch, generation, request.group});
  if (group != groups_.end()) return group->second.ranks;
  std::vector<core::Rank> all;
  const auto formation = formations_.find({epoch, generation});
  if (formation == formations_.end()) return all;
  for (size_t i = 0; i < formation->second->world.size(); ++i) {
    all.emplace_back(static_cast<int32_t>(i));
  }
  return all;
}

void SimChecker::ObserveBarrier(const Waiting& waiting,
                                const core::Reply& reply) {
  const auto* decided = std::get_if<core::BarrierReply>(&reply.payload);
  if (decided == nullptr) {
    if (reply.status.ok()) Fail("I1: a barrier without a result");
    if (reply.status.code() == StatusCode::kOutOfRange) ++seen_.too_late;
    return;
  }
  const core::BarrierResult& result = **decided;
  const core::BarrierRequest& request = waiting.request.barrier;
  const int64_t generation = request.generation.value();
  const auto [it, fresh] = decisions_.emplace(
      InstanceKey(epoch_.value(), generation, result.group, result.barrier,
                  result.expected, result.instance),
      *decided);
  if (!Same(*it->second, result)) {
    Fail(absl::StrCat("I1: two decisions of instance ", result.instance));
  }
  const bool released = result.outcome == core::BarrierOutcome::kReleased;
  if (released != reply.status.ok()) Fail("I1: status and result differ");
  if (!released) {
    if (result.arrived + static_cast<int32_t>(result.missing.size()) !=
        result.expected) {
      Fail("I1: arrived and missing are not all");
    }
    return;
  }
  const std::vector<core::Rank> participants = FindParticipants(request);
  if (result.expected != static_cast<int32_t>(participants.size())) {
    Fail(absl::StrCat("I2: ", ToCommand(waiting.request), " is for ",
                      participants.size(), " ranks, not ", result.expected));
  }
  if (!request.ranks.empty() || !request.group.empty()) ++seen_.parts_released;
  for (const core::Rank rank : participants) {
    const auto& calls = arrivals_[{epoch_.value(), generation, result.group,
                                   result.barrier, rank}];
    if (static_cast<int64_t>(calls.size()) < result.instance) {
      Fail(absl::StrCat("I2: instance ", result.instance,
                        " was released without rank ", rank.value()));
    }
  }
}

// A member left. If none did shortly before, the others must know at once.
void SimChecker::NoteLeave(const core::Notice& notice, core::Instant now) {
  const bool alone = now - left_told_at_ >= 2 * core::kDeparturePauseMax;
  leaves_.emplace(ParseIncarnation(notice), Leave{now, alone, false});
  left_.insert(ParseIncarnation(notice));
}

// Batched leaves are told together, once.
void SimChecker::ObserveDeparture(const core::Event& event, core::Instant now) {
  left_told_at_ = now;
  for (const auto& [member, incarnation] : LeftIn(event)) {
    leaves_.erase({member, incarnation});
    if (!departures_.emplace(member, incarnation).second) {
      Fail(absl::StrCat("I6: the leave of ", member.value(),
                        " is told a second time"));
    }
  }
}

void SimChecker::CheckLeaves(core::Instant now,
                             const std::set<core::MemberId>& listeners) {
  if (listeners.empty()) left_told_at_ = now;
  for (auto it = leaves_.begin(); it != leaves_.end();) {
    Leave& leave = it->second;
    // The member itself may be the only listener, if it has come back.
    const size_t itself = listeners.count(it->first.first);
    leave.excused = leave.excused || listeners.size() == itself;
    const bool late =
        now - leave.since > core::kDeparturePauseMax + late_ || leave.at_once;
    if (late && !leave.excused) {
      Fail(absl::StrCat("I6: nobody is told that ", it->first.first.value(),
                        " left"));
    }
    it = late ? leaves_.erase(it) : std::next(it);
  }
}

// A leave is told before a later loss or failure of another member.
void SimChecker::CheckOrder(const core::Event& event) {
  for (const auto& [who, leave] : leaves_) {
    if (leave.excused || who.first == event.member) continue;
    Fail(absl::StrCat("I6: the others hear what became of ",
                      event.member.value(), " before they hear that ",
                      who.first.value(), " left"));
  }
}

// A repeated event was told before, or had no listener.
void SimChecker::CheckToldBefore(const core::Event& event) {
  for (const Registration& told : LeftIn(event)) {
    const auto leave = leaves_.find(told);
    if (leave != leaves_.end() && !leave->second.excused) {
      Fail(absl::StrCat("I6: the leave of ", told.first.value(),
                        " will be told twice"));
    }
  }
}

// A member that registers again is told of all that left its generation.
void SimChecker::CheckToldAgain(const Request& request, const core::Outbox& out,
                                const core::JobSnapshot& job) {
  std::set<Registration> known;
  bool seated = false;
  for (const core::MemberSnapshot& member : job.members) {
    if (!member.rank.has_value()) continue;
    if (member.state == core::MemberState::kLeft) {
      known.emplace(member.id, member.incarnation);
    }
    seated = seated ||
             (member.id == request.call.member &&
              member.incarnation == request.call.incarnation && IsLive(member));
  }
  if (!seated) return;
  // Leaves that were not told yet come in their turn. After a restart, an ended
  // generation has only the leaves whose records exist.
  std::set<Registration> left;
  for (const Registration& gone : left_) {
    if (!leaves_.contains(gone) &&
        (job.generation_running || known.contains(gone))) {
      left.insert(gone);
    }
  }
  for (const core::Publication& publication : out.events) {
    if (publication.event.kind != core::EventKind::kLeft ||
        !publication.again) {
      continue;
    }
    for (const Registration& told : LeftIn(publication.event)) left.erase(told);
  }
  if (!left.empty()) {
    Fail(absl::StrCat("I6: ", request.call.member.value(),
                      " is not told again that ", left.begin()->first.value(),
                      " left"));
  }
}

// Every departure of a rank is told once to every other listener. Waiting
// members are told to those that could make room. A member that registers is
// told again of events that it may have missed.
void SimChecker::CheckEvents(const core::Outbox& out,
                             const core::JobSnapshot& job, core::Instant now) {
  std::set<core::MemberId> listeners;
  std::set<core::MemberId> seated;
  for (const core::MemberSnapshot& member : job.members) {
    const bool live = IsLive(member);
    if (live || member.state == core::MemberState::kFailed) {
      listeners.insert(member.id);
    }
    if (live && member.rank.has_value()) seated.insert(member.id);
  }
  const auto others = [&](const core::MemberId& about, bool failed) {
    std::set<core::MemberId> told = listeners;
    if (!failed) told.erase(about);
    return told;
  };
  int64_t untold = 0;
  for (const core::Notice& notice : out.notices) {
    if (notice.kind == core::NoticeKind::kGenerationFormed) left_.clear();
    if (!IsDeparture(notice)) continue;
    if (notice.kind == core::NoticeKind::kMemberLeft) {
      NoteLeave(notice, now);
      continue;
    }
    const bool failed = notice.kind == core::NoticeKind::kMemberFailed;
    if (!others(ParseMember(notice), failed).empty()) ++untold;
  }
  const auto subject = waiting_.find(subject_);
  const bool registers = subject != waiting_.end() &&
                         subject->second.request.verb == Verb::kRegister;
  for (const core::Publication& publication : out.events) {
    const core::Event& event = publication.event;
    const std::set<core::MemberId> audience(publication.audience->begin(),
                                            publication.audience->end());
    if (audience.size() != publication.audience->size()) {
      Fail("I6: somebody is told of an event twice");
    }
    if (event.kind == core::EventKind::kGroupFailed) {
      for (const core::MemberId& id : audience) {
        if (!listeners.contains(id)) Fail("I6: a departed member is told");
      }
      if (!event.group_failure->error.verdict.ok()) {
        ObserveVerdict(*event.group_failure);
      }
      continue;
    }
    const bool left = event.kind == core::EventKind::kLeft &&
                      !absl::StartsWith(event.cause, "gave up");
    if (publication.again) {
      // A report about a group that a departure has ended gets that again.
      const bool asks = registers || (subject != waiting_.end() && !left &&
                                      subject->second.request.verb ==
                                          Verb::kReportGroupFailure);
      if (!asks || audience != std::set<core::MemberId>{
                                   subject->second.request.call.member}) {
        Fail("I6: somebody is told again who did not ask");
      }
      if (left) CheckToldBefore(event);
      continue;
    }
    if (event.together != nullptr) {
      ++seen_.together;
      if (audience != listeners) Fail("I6: a departure is not told to all");
    }
    const bool waiting = event.kind == core::EventKind::kWaiting;
    if (event.together == nullptr &&
        audience != (waiting
                         ? seated
                         : others(event.member,
                                  event.kind == core::EventKind::kFailed))) {
      Fail(absl::StrCat("I6: ", audience.size(), " members are told that ",
                        event.member.value(), " ",
                        core::EventKindName(event.kind)));
    }
    if (waiting || absl::StartsWith(event.cause, "gave up")) continue;
    seen_.told += static_cast<int64_t>(audience.size());
    if (left) {
      ObserveDeparture(event, now);
    } else {
      CheckOrder(event);
      --untold;
    }
  }
  CheckLeaves(now, listeners);
  if (registers) CheckToldAgain(subject->second.request, out, job);
  if (untold != 0) Fail(absl::StrCat("I6: ", untold, " departures untold"));
}

}  // namespace muster::simulation
