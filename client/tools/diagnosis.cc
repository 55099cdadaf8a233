#include "client/tools/diagnosis.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/tools/ctl_text.h"
#include "client/tools/places.h"

namespace muster::tools {
namespace {

using std::chrono::milliseconds;

constexpr size_t kRanksShown = 16;

std::string StateName(v1::MemberState state) {
  switch (state) {
    case v1::MEMBER_STATE_LEFT:
      return "left";
    case v1::MEMBER_STATE_FAILED:
      return "failed";
    case v1::MEMBER_STATE_REPLACED:
      return "was replaced";
    default:
      return "was lost";
  }
}

// The collectives that the rank had enqueued in the group then.
std::optional<int64_t> EnqueuedBefore(const v1::GetJobResponse* earlier,
                                      const std::string& group, int rank) {
  if (earlier == nullptr) return std::nullopt;
  for (const Place& place : PlacesIn(*earlier, group)) {
    if (place.rank == rank && place.told()) return place.enqueued();
  }
  return std::nullopt;
}

// What others wait for in a group.
struct Awaited {
  std::string group;
  // A collective; 0: a send or a receive.
  int64_t sequence = 0;
  // "has not called #42", of who is to blame.
  std::string omission;
};

class Judge {
 public:
  Judge(const v1::GetJobResponse* earlier, const Answers& answers,
        milliseconds silent_after)
      : earlier_(earlier), answers_(answers), silent_after_(silent_after) {}

  Culprit Blame(const Place& place, const Awaited& awaited) const {
    Culprit culprit;
    culprit.rank = place.rank;
    culprit.host = place.member->host();
    culprit.pid = place.member->pid();
    culprit.debug_address = place.member->debug_address();
    std::tie(culprit.state, culprit.what) = State(place, awaited);
    return culprit;
  }

  // Whether something is wrong with its process, wherever it is in the group.
  bool IsIll(const Place& place) const {
    if (IsGone(*place.member) || IsSilent(place)) return true;
    const auto answer = answers_.find(place.rank);
    if (answer != answers_.end()) return answer->second != Answer::kAnswers;
    // If it answers it is about to come back.
    return place.member->state() == v1::MEMBER_STATE_DISCONNECTED;
  }

  bool IsSilent(const Place& place) const {
    return milliseconds(place.member->silent_ms()) > silent_after_;
  }

  // Whether what it last told holds now, as far as one can know.
  bool IsSure(const Place& place) const {
    return place.told() && !place.stale && !IsGone(*place.member);
  }

 private:
  using Words = std::pair<std::string, std::string>;

  Words State(const Place& place, const Awaited& awaited) const {
    if (IsGone(*place.member)) {
      return {"dead",
              absl::StrCat("is gone: it ", StateName(place.member->state()),
                           ": ", Harmless(place.member->cause()))};
    }
    if (IsIll(place)) return Illness(place);
    if (!place.told()) {
      return {"unknown",
              "has told the coordinator of no group: it is in none yet, or the "
              "coordinator was restarted a moment ago"};
    }
    if (place.stale) {
      return {"unknown", absl::StrCat("has told nothing new for ",
                                      SecondsText(place.age), WasIn(place))};
    }
    if (awaited.sequence == 0 || place.enqueued() < awaited.sequence) {
      return Elsewhere(place, awaited);
    }
    return {"in_collective", absl::StrCat("is still in it, for ",
                                          SecondsText(place.running_for()),
                                          ", while others have completed it")};
  }

  // Of one that has not come to what others wait for.
  Words Elsewhere(const Place& place, const Awaited& awaited) const {
    const auto before = EnqueuedBefore(earlier_, awaited.group, place.rank);
    if (before.has_value() && *before < place.enqueued()) {
      return {"slow",
              absl::StrCat("is slow: it has come from #", *before, " to #",
                           place.enqueued(), " since the first look")};
    }
    if (place.in_call()) {
      return {
          place.in_collective() ? "in_collective" : "point_to_point",
          absl::StrCat(awaited.omission, ": it is in ", Harmless(place.call()),
                       " for ", SecondsText(place.running_for()))};
    }
    for (const v1::GroupProgress& other : place.progress->groups()) {
      if (other.group() == awaited.group || other.current().empty()) continue;
      return {"other_group",
              absl::StrCat(awaited.omission, ": it is in ",
                           Harmless(other.current()), " on group \"",
                           Harmless(other.group()), "\" for ",
                           SecondsText(Ms(other.running_for()) + place.age))};
    }
    return {"user_code",
            absl::StrCat("is in code of its own: it ", awaited.omission,
                         place.completed() == 0
                             ? "; it has completed no collective yet"
                             : absl::StrCat("; its last, #", place.completed(),
                                            ", is done"))};
  }

  // ", in all_reduce #42 ..."; what it last told, which may not hold any more.
  static std::string WasIn(const Place& place) {
    if (place.in_call()) return absl::StrCat(", in ", Harmless(place.call()));
    if (place.completed() == 0) return "";
    return absl::StrCat(", after #", place.completed());
  }

  Words Illness(const Place& place) const {
    const v1::MemberInfo& member = *place.member;
    const std::string heard = absl::StrCat(
        "last heard of ", SecondsText(milliseconds(member.silent_ms())), " ago",
        place.told() ? WasIn(place)
                     : ", or not since the coordinator was started then");
    const std::string at = Harmless(member.debug_address());
    const auto answer = answers_.find(place.rank);
    if (answer == answers_.end()) {
      return {
          "silent",
          absl::StrCat("is silent: ", heard,
                       at.empty() ? "; it serves no HTTP that would tell why"
                                  : absl::StrCat("; it cannot be asked why at ",
                                                 at, " from here"))};
    }
    switch (answer->second) {
      case Answer::kRefused:
        return {"dead",
                absl::StrCat("is dead: nobody listens at ", at, "; ", heard)};
      case Answer::kSilent:
        return {"stopped",
                absl::StrCat("is stopped (SIGSTOP, a debugger, or its machine "
                             "hangs): its process takes a connection at ",
                             at, " and does not answer; ", heard)};
      case Answer::kUnreachable:
        return {"cut_off", absl::StrCat("is cut off: ", at,
                                        " cannot be reached; ", heard)};
      case Answer::kAnswers:
        break;
    }
    return {"cut_off",
            absl::StrCat("answers at ", at,
                         " but does not reach the coordinator; ", heard)};
  }

  const v1::GetJobResponse* const earlier_;
  const Answers& answers_;
  const milliseconds silent_after_;
};

// `"all_reduce #42 float32[4] sum" on rank 0, 1; "broadcast ..." on rank 2`,
// when not all tell the same.
std::string Disagreement(const std::vector<Place>& places) {
  std::map<std::string, std::vector<int>> ranks;
  for (const Place& place : places) {
    if (place.in_collective()) ranks[place.call()].push_back(place.rank);
  }
  if (ranks.size() < 2) return "";
  std::vector<std::string> sides;
  for (const auto& [text, who] : ranks) {
    sides.push_back(absl::StrCat("\"", Harmless(text), "\" on ",
                                 who.size() == 1 ? "rank " : "ranks ",
                                 absl::StrJoin(who, ", ")));
  }
  return absl::StrCat("they do not agree: ", absl::StrJoin(sides, "; "));
}

// The collective that the last one has to complete: nobody can be past it. What
// is old, or of who is gone or ill, says nothing of it.
int64_t AwaitedSequence(const std::vector<Place>& places, const Judge& judge) {
  std::optional<int64_t> sequence;
  for (const Place& place : places) {
    if (!judge.IsSure(place) || judge.IsIll(place)) continue;
    const int64_t next = place.completed() + 1;
    sequence = std::min(sequence.value_or(next), next);
  }
  return sequence.value_or(0);
}

// Whether `place` was in collective `sequence` still, at its last heartbeat,
// for `margin` after another one had completed it. What it did after that
// heartbeat, nobody knows: where all others wait for one that is slow, they
// come out together, and tell it one after the other.
bool IsLeftIn(const Place& place, int64_t sequence,
              const std::vector<Place>& places, const Judge& judge,
              milliseconds margin) {
  milliseconds completed_for(0);
  for (const Place& other : places) {
    if (!judge.IsSure(other) || other.completed() < sequence) continue;
    completed_for = std::max(
        completed_for, other.in_collective() ? other.running_for() : other.age);
  }
  return completed_for >= place.age + margin;
}

std::optional<StuckGroup> LookAtCollectives(const std::string& name,
                                            const std::vector<Place>& places,
                                            const Judge& judge,
                                            milliseconds stuck_after,
                                            milliseconds told_within) {
  StuckGroup group;
  group.group = name;
  group.sequence = AwaitedSequence(places, judge);
  bool all_in_it = true;
  std::vector<Place> behind;
  std::vector<Place> last;  // who has to complete it
  for (const Place& place : places) {
    const bool sure = judge.IsSure(place);
    const bool there = sure && place.completed() + 1 == group.sequence;
    const bool waits = sure && place.in_collective();
    if (waits) {
      group.running_for = std::max(group.running_for, place.running_for());
      if (there && group.collective.empty()) group.collective = place.call();
    }
    if (there) last.push_back(place);
    all_in_it = all_in_it && there && waits;
    if (!sure || judge.IsIll(place) ||
        (there && !(waits && place.enqueued() >= group.sequence))) {
      behind.push_back(place);
    } else if (waits) {
      group.waiting.push_back(place.rank);
    }
  }
  if (group.running_for < stuck_after) return std::nullopt;
  if (behind.empty() && !all_in_it) {
    // Others are past it: who is left in it has not got, or not sent, its part.
    for (const Place& place : last) {
      if (IsLeftIn(place, group.sequence, places, judge, told_within)) {
        behind.push_back(place);
      }
    }
    if (behind.empty()) return std::nullopt;
    for (const Place& place : behind) {
      group.waiting.erase(
          std::remove(group.waiting.begin(), group.waiting.end(), place.rank),
          group.waiting.end());
    }
  }
  const Awaited awaited = {name, group.sequence,
                           absl::StrCat("has not called #", group.sequence)};
  for (const Place& place : behind) {
    group.culprits.push_back(judge.Blame(place, awaited));
  }
  if (behind.empty()) {
    const std::string disagreement = Disagreement(places);
    group.note = disagreement.empty()
                     ? "all ranks are in it, and who can be asked answers: the "
                       "network between them is slow or cut, or the tensors "
                       "are large"
                     : disagreement;
  }
  if (group.collective.empty()) {
    group.collective = absl::StrCat("collective #", group.sequence);
  }
  return group;
}

// Sends and receives: who waits for whom, through all that wait themselves.
class PeerChains {
 public:
  PeerChains(const std::vector<Place>& places, const Judge& judge) {
    for (const Place& place : places) {
      by_rank_[place.rank] = &place;
      if (judge.IsSure(place) && !judge.IsIll(place) && place.peer_call) {
        waiting_[place.rank] = &place;
      }
    }
  }

  // By rank, those that wait.
  const std::map<int, const Place*>& waiting() const { return waiting_; }

  // The last one that waits, from `place` on, and whom it waits for: null if
  // that is nobody in particular, or if they wait for each other.
  struct End {
    const Place* waiter = nullptr;
    const Place* awaited = nullptr;
    bool circle = false;
  };
  End Follow(const Place& place) const {
    std::set<int> seen;
    End end = {.waiter = &place};
    while (seen.insert(end.waiter->rank).second) {
      const int peer = end.waiter->peer_call->peer();
      const auto next = waiting_.find(peer);
      if (next == waiting_.end()) {
        const auto found = by_rank_.find(peer);
        if (found != by_rank_.end()) end.awaited = found->second;
        return end;
      }
      end.waiter = next->second;
    }
    end.circle = true;
    return end;
  }

 private:
  std::map<int, const Place*> by_rank_;
  std::map<int, const Place*> waiting_;
};

// `they wait for each other: rank 0 in "recv #1 ..."; rank 1 in "recv #1 ..."`.
std::string CircleText(const std::set<int>& ranks, const PeerChains& chains) {
  std::vector<std::string> parts;
  for (const int rank : ranks) {
    if (parts.size() == kRanksShown) {
      parts.push_back("...");
      break;
    }
    parts.push_back(absl::StrCat("rank ", rank, " in \"",
                                 Harmless(chains.waiting().at(rank)->call()),
                                 "\""));
  }
  return absl::StrCat("they wait for each other: ", absl::StrJoin(parts, "; "));
}

std::optional<StuckGroup> LookAtPeers(const std::string& name,
                                      const std::vector<Place>& places,
                                      const Judge& judge,
                                      milliseconds stuck_after) {
  const PeerChains chains(places, judge);
  StuckGroup group;
  group.group = name;
  const Place* longest = nullptr;
  std::map<int, PeerChains::End> ends;  // by whom all wait for in the end
  std::set<int> circle;
  for (const auto& [rank, place] : chains.waiting()) {
    if (place->running_for() < stuck_after) continue;
    group.waiting.push_back(rank);
    if (longest == nullptr || place->running_for() > longest->running_for()) {
      longest = place;
    }
    const PeerChains::End end = chains.Follow(*place);
    if (end.awaited != nullptr) ends.emplace(end.awaited->rank, end);
    if (end.circle) circle.insert(rank);
  }
  if (longest == nullptr) return std::nullopt;
  group.running_for = longest->running_for();
  group.collective = longest->call();
  group.sequence = longest->peer_call->number();
  for (const auto& [rank, end] : ends) {
    const bool sends = end.waiter->peer_call->sends();
    const Awaited awaited = {
        name, 0,
        absl::StrCat(
            sends ? "has not received what rank " : "has not sent what rank ",
            end.waiter->rank, sends ? " sends" : " waits for")};
    group.culprits.push_back(judge.Blame(*end.awaited, awaited));
  }
  if (!circle.empty()) {
    group.note = CircleText(circle, chains);
  } else if (ends.empty()) {
    group.note = "it takes what any rank sends, and none does";
  }
  return group;
}

// Who tells nothing any more, and whom nobody is known to wait for.
void AddSilent(const v1::GetJobResponse& job, const Judge& judge,
               Diagnosis& diagnosis) {
  std::set<int> named;
  for (const StuckGroup& group : diagnosis.groups) {
    for (const Culprit& culprit : group.culprits) named.insert(culprit.rank);
  }
  for (const v1::MemberInfo& member : job.members()) {
    Place place;
    place.rank = member.rank();
    place.member = &member;
    if (place.rank < 0 || IsGone(member) || !judge.IsSilent(place) ||
        !named.insert(place.rank).second) {
      continue;
    }
    diagnosis.silent.push_back(judge.Blame(place, {}));
  }
}

// A barrier of the coordinator's, in which nobody has a collective that runs.
StuckGroup LookAtBarrier(const v1::GetJobResponse& job,
                         const v1::OpenBarrier& barrier, const Judge& judge) {
  StuckGroup group;
  group.group = barrier.group();
  group.collective = absl::StrCat("barrier \"", barrier.name(), "\"");
  group.running_for = Ms(barrier.open_for());
  std::map<int, Place> places;
  for (Place& place : PlacesIn(job, barrier.group())) {
    places.emplace(place.rank, std::move(place));
  }
  const Awaited awaited = {barrier.group(), 0, "has not come to it"};
  for (const v1::MemberInfo& member : barrier.missing()) {
    const auto place = places.find(member.rank());
    if (place == places.end()) {
      group.culprits.push_back({member.rank(), member.host(), member.pid(),
                                member.debug_address(), "unknown",
                                "has not come to it: no more is known of it"});
      continue;
    }
    group.culprits.push_back(judge.Blame(place->second, awaited));
    places.erase(place);
  }
  const int missing = barrier.expected() - barrier.arrived();
  if (missing == barrier.missing_size()) {
    for (const auto& [rank, place] : places) group.waiting.push_back(rank);
  } else {
    group.note =
        absl::StrCat("it waits for ", missing, " of ", barrier.expected(),
                     " ranks, of whom these are the first");
  }
  return group;
}

}  // namespace

Diagnosis Diagnose(const v1::GetJobResponse& job,
                   const v1::GetJobResponse* earlier, const Answers& answers,
                   const DiagnosisOptions& options) {
  // Numbers begin anew with a generation, and a coordinator that was restarted
  // knows no progress.
  if (earlier != nullptr &&
      (earlier->coordinator_epoch() != job.coordinator_epoch() ||
       earlier->summary().generation() != job.summary().generation())) {
    earlier = nullptr;
  }
  // Who waits for less may wait for one that has come since it told anything.
  const milliseconds stuck_after =
      std::max(options.stuck_after, ToldWithin(job));
  Diagnosis diagnosis;
  const Judge judge(earlier, answers, SilentAfter(job));
  for (const std::string& name : GroupNames(job)) {
    const std::vector<Place> places = PlacesIn(job, name);
    auto group =
        LookAtCollectives(name, places, judge, stuck_after, ToldWithin(job));
    if (group.has_value()) diagnosis.groups.push_back(*std::move(group));
    group = LookAtPeers(name, places, judge, stuck_after);
    if (group.has_value()) diagnosis.groups.push_back(*std::move(group));
  }
  for (const v1::OpenBarrier& barrier : job.barriers()) {
    if (Ms(barrier.open_for()) < options.stuck_after) continue;
    diagnosis.groups.push_back(LookAtBarrier(job, barrier, judge));
  }
  std::stable_sort(diagnosis.groups.begin(), diagnosis.groups.end(),
                   [](const StuckGroup& a, const StuckGroup& b) {
                     return a.running_for > b.running_for;
                   });
  AddSilent(job, judge, diagnosis);
  if (!job.generation_end().empty()) {
    diagnosis.also.push_back(
        absl::StrCat("generation ", job.summary().generation(),
                     " is over: ", Harmless(job.generation_end())));
  }
  if (!job.rendezvous_waiting().empty()) {
    diagnosis.also.push_back(Harmless(job.rendezvous_waiting()));
  }
  return diagnosis;
}

std::vector<int> RanksToAsk(const v1::GetJobResponse& job,
                            const v1::GetJobResponse* earlier,
                            const DiagnosisOptions& options) {
  std::set<int> ranks;
  const Diagnosis diagnosis = Diagnose(job, earlier, {}, options);
  for (const Culprit& culprit : diagnosis.silent) ranks.insert(culprit.rank);
  for (const StuckGroup& group : diagnosis.groups) {
    for (const Culprit& culprit : group.culprits) ranks.insert(culprit.rank);
    // Nobody is behind: one that was stopped in the middle of it may be silent
    // for too short a time yet.
    if (group.culprits.empty()) {
      ranks.insert(group.waiting.begin(), group.waiting.end());
    }
  }
  return {ranks.begin(), ranks.end()};
}

}  // namespace muster::tools
