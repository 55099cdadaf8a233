#include "client/tools/diagnosis.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/tools/ctl_text.h"

namespace muster::tools {
namespace {

using std::chrono::milliseconds;

constexpr size_t kRanksShown = 16;
constexpr size_t kCulpritsShown = 16;
// Of a coordinator that does not tell its lease.
constexpr milliseconds kLease = std::chrono::seconds(10);

milliseconds Ms(const google::protobuf::Duration& duration) {
  return milliseconds(duration.seconds() * 1000 + duration.nanos() / 1'000'000);
}

std::string Seconds(milliseconds duration) {
  return absl::StrFormat("%.1fs", static_cast<double>(duration.count()) / 1000);
}

// Heartbeats are a third of the lease apart: one of them is missing.
milliseconds SilentAfter(const v1::GetJobResponse& job) {
  const milliseconds lease = job.has_lease() ? Ms(job.lease()) : kLease;
  return lease / 2;
}

bool IsGone(const v1::MemberInfo& member) {
  return member.state() != v1::MEMBER_STATE_ALIVE &&
         member.state() != v1::MEMBER_STATE_DISCONNECTED;
}

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

// One rank's place in one group.
struct Place {
  int rank = -1;
  const v1::MemberInfo* member = nullptr;
  const v1::MemberProgress* progress = nullptr;  // of all its groups
  const v1::GroupProgress* group = nullptr;      // null: it has said nothing
  milliseconds age{0};                           // of both

  int64_t enqueued() const {
    return group == nullptr ? 0 : group->last_enqueued();
  }
  int64_t completed() const {
    return group == nullptr ? 0 : group->last_completed();
  }
  bool in_collective() const {
    return group != nullptr && !group->current().empty();
  }
  milliseconds running_for() const {
    return in_collective() ? Ms(group->running_for()) + age : milliseconds(0);
  }
};

std::vector<Place> PlacesIn(const v1::GetJobResponse& job,
                            const std::string& group) {
  std::vector<Place> places;
  std::set<int> ranks;
  for (const v1::RegisteredGroup& registered : job.groups()) {
    if (registered.name() != group) continue;
    ranks.insert(registered.ranks().begin(), registered.ranks().end());
  }
  for (int i = 0; i < job.members_size(); ++i) {
    Place place;
    place.member = &job.members(i);
    place.rank = place.member->rank();
    if (i < job.progress_size()) {
      place.progress = &job.progress(i);
      place.age = Ms(place.progress->age());
      for (const v1::GroupProgress& progress : place.progress->groups()) {
        if (progress.group() == group) place.group = &progress;
      }
    }
    // A group that nobody registered is of all that tell of it, and of all
    // ranks if it is the first one of the job.
    const bool member = ranks.empty()
                            ? place.group != nullptr || group == "world"
                            : ranks.count(place.rank) != 0;
    if (place.rank >= 0 && member) places.push_back(place);
  }
  return places;
}

std::set<std::string> GroupNames(const v1::GetJobResponse& job) {
  std::set<std::string> names;
  for (const v1::MemberProgress& progress : job.progress()) {
    for (const v1::GroupProgress& group : progress.groups()) {
      names.insert(group.group());
    }
  }
  return names;
}

// The collectives that the rank had enqueued in the group then.
std::optional<int64_t> EnqueuedBefore(const v1::GetJobResponse* earlier,
                                      const std::string& group, int rank) {
  if (earlier == nullptr) return std::nullopt;
  for (const Place& place : PlacesIn(*earlier, group)) {
    if (place.rank == rank) return place.enqueued();
  }
  return std::nullopt;
}

class Judge {
 public:
  Judge(const v1::GetJobResponse* earlier, const Answers& answers,
        std::string group, int64_t sequence, milliseconds silent_after)
      : earlier_(earlier),
        answers_(answers),
        group_(std::move(group)),
        sequence_(sequence),
        silent_after_(silent_after) {}

  Culprit Blame(const Place& place) const {
    Culprit culprit;
    culprit.rank = place.rank;
    culprit.host = place.member->host();
    culprit.pid = place.member->pid();
    culprit.debug_address = place.member->debug_address();
    std::tie(culprit.state, culprit.what) = State(place);
    return culprit;
  }

  // Whether something is wrong with its process, wherever it is in the group.
  bool IsIll(const Place& place) const {
    const auto answer = answers_.find(place.rank);
    return IsGone(*place.member) ||
           milliseconds(place.member->silent_ms()) > silent_after_ ||
           place.member->state() == v1::MEMBER_STATE_DISCONNECTED ||
           (answer != answers_.end() && answer->second != Answer::kAnswers);
  }

 private:
  using Words = std::pair<std::string, std::string>;

  Words State(const Place& place) const {
    const v1::MemberInfo& member = *place.member;
    if (IsGone(member)) {
      return {"dead", absl::StrCat("is gone: it ", StateName(member.state()),
                                   ": ", Harmless(member.cause()))};
    }
    if (IsIll(place)) return Illness(place);
    const std::string last =
        place.completed() == 0
            ? "it has completed none yet"
            : absl::StrCat("its last, #", place.completed(), ", is done");
    const std::string call = absl::StrCat("#", sequence_);
    const auto before = EnqueuedBefore(earlier_, group_, place.rank);
    if (place.enqueued() < sequence_) {
      if (before.has_value() && *before < place.enqueued()) {
        return {"slow",
                absl::StrCat("is slow: it has come from #", *before, " to #",
                             place.enqueued(), " since the first look")};
      }
      for (const v1::GroupProgress& other : place.progress->groups()) {
        if (other.group() == group_ || other.current().empty()) continue;
        return {"other_group",
                absl::StrCat("has not called ", call, ": it is in ",
                             Harmless(other.current()), " on group \"",
                             Harmless(other.group()), "\" for ",
                             Seconds(Ms(other.running_for()) + place.age))};
      }
      return {"user_code",
              absl::StrCat("is in code of its own: it has not called ", call,
                           "; ", last)};
    }
    return {"in_collective",
            absl::StrCat("is still in it, for ", Seconds(place.running_for()),
                         ", while others have completed it")};
  }

  Words Illness(const Place& place) const {
    const v1::MemberInfo& member = *place.member;
    const std::string heard = absl::StrCat(
        "last heard of ", Seconds(milliseconds(member.silent_ms())), " ago");
    const std::string at = Harmless(member.debug_address());
    const auto answer = answers_.find(place.rank);
    if (answer == answers_.end()) {
      return {"silent",
              absl::StrCat(
                  "is silent: ", heard,
                  at.empty() ? "; it serves no HTTP that would tell why" : "")};
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
  const std::string group_;
  const int64_t sequence_;
  const milliseconds silent_after_;
};

// `"all_reduce float32[4] sum" on rank 0, 1; "broadcast ..." on rank 2`, when
// not all tell the same.
std::string Disagreement(const std::vector<Place>& places) {
  std::map<std::string, std::vector<int>> ranks;
  for (const Place& place : places) {
    if (!place.in_collective()) continue;
    ranks[place.group->current()].push_back(place.rank);
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

std::optional<StuckGroup> LookAt(const v1::GetJobResponse& job,
                                 const v1::GetJobResponse* earlier,
                                 const Answers& answers,
                                 const std::string& name,
                                 const DiagnosisOptions& options) {
  const std::vector<Place> places = PlacesIn(job, name);
  const bool stuck =
      std::any_of(places.begin(), places.end(), [&](const Place& place) {
        return !IsGone(*place.member) &&
               place.running_for() >= options.stuck_after;
      });
  if (!stuck) return std::nullopt;
  // Nobody can be past the collective that the last one has to complete.
  StuckGroup group;
  group.group = name;
  group.sequence = places.front().completed() + 1;
  for (const Place& place : places) {
    group.sequence = std::min(group.sequence, place.completed() + 1);
  }
  const Judge judge(earlier, answers, name, group.sequence, SilentAfter(job));
  bool all_in_it = true;
  std::vector<Place> behind;
  for (const Place& place : places) {
    const bool there = place.completed() + 1 == group.sequence;
    const bool waits = place.in_collective() && !IsGone(*place.member);
    if (waits) {
      group.running_for = std::max(group.running_for, place.running_for());
      if (there && group.collective.empty()) {
        group.collective = place.group->current();
      }
    }
    all_in_it = all_in_it && there && waits;
    if (there && !(waits && place.enqueued() >= group.sequence)) {
      behind.push_back(place);
    } else if (judge.IsIll(place)) {
      behind.push_back(place);
    } else if (waits) {
      group.waiting.push_back(place.rank);
    }
  }
  if (behind.empty() && !all_in_it) {
    // Others are past it: who is left in it has not got, or not sent, its part.
    for (const Place& place : places) {
      if (place.completed() + 1 == group.sequence) behind.push_back(place);
    }
    group.waiting.erase(
        std::remove_if(group.waiting.begin(), group.waiting.end(),
                       [&](int rank) {
                         return std::any_of(behind.begin(), behind.end(),
                                            [&](const Place& place) {
                                              return place.rank == rank;
                                            });
                       }),
        group.waiting.end());
  }
  for (const Place& place : behind) {
    group.culprits.push_back(judge.Blame(place));
  }
  const std::string disagreement = Disagreement(places);
  if (behind.empty()) {
    group.note = disagreement.empty()
                     ? "all ranks are in it and answer: the network between "
                       "them is slow or cut, or the tensors are large"
                     : disagreement;
  }
  if (group.collective.empty()) {
    group.collective = absl::StrCat("collective #", group.sequence);
  }
  return group;
}

}  // namespace

Diagnosis Diagnose(const v1::GetJobResponse& job,
                   const v1::GetJobResponse* earlier, const Answers& answers,
                   const DiagnosisOptions& options) {
  Diagnosis diagnosis;
  for (const std::string& name : GroupNames(job)) {
    auto group = LookAt(job, earlier, answers, name, options);
    if (group.has_value()) diagnosis.groups.push_back(*std::move(group));
  }
  std::stable_sort(diagnosis.groups.begin(), diagnosis.groups.end(),
                   [](const StuckGroup& a, const StuckGroup& b) {
                     return a.running_for > b.running_for;
                   });
  for (const v1::OpenBarrier& barrier : job.barriers()) {
    if (Ms(barrier.open_for()) < options.stuck_after) continue;
    std::vector<std::string> missing;
    for (const v1::MemberInfo& member : barrier.missing()) {
      if (missing.size() == kRanksShown) break;
      missing.push_back(
          absl::StrCat(member.rank(), " (", Harmless(member.host()), ")"));
    }
    diagnosis.also.push_back(absl::StrCat(
        "barrier \"", Harmless(barrier.name()), "\" on group \"",
        Harmless(barrier.group()), "\" waits for ",
        barrier.expected() - barrier.arrived(), " of ", barrier.expected(),
        " ranks for ", Seconds(Ms(barrier.open_for())), ": ",
        absl::StrJoin(missing, ", "),
        barrier.expected() - barrier.arrived() >
                static_cast<int>(missing.size())
            ? ", ..."
            : ""));
  }
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
  for (const StuckGroup& group : Diagnose(job, earlier, {}, options).groups) {
    for (const Culprit& culprit : group.culprits) ranks.insert(culprit.rank);
    // Nobody is behind: one that was stopped in the middle of it may be silent
    // for too short a time yet.
    if (group.culprits.empty()) {
      ranks.insert(group.waiting.begin(), group.waiting.end());
    }
  }
  return {ranks.begin(), ranks.end()};
}

std::string DiagnosisText(const v1::GetJobResponse& job,
                          const Diagnosis& diagnosis) {
  const v1::JobSummary& summary = job.summary();
  std::string text = absl::StrCat(
      "job ", Harmless(summary.job()), ": generation ", summary.generation(),
      summary.generation_running() ? " runs" : " does not run", ", ",
      summary.world_size(), " ranks, ", summary.members_alive(),
      " members alive\n");
  for (const StuckGroup& group : diagnosis.groups) {
    absl::StrAppend(&text, "\ngroup \"", Harmless(group.group),
                    "\" is stuck in ", Harmless(group.collective), " for ",
                    Seconds(group.running_for), "\n");
    for (size_t i = 0; i < group.culprits.size(); ++i) {
      if (i == kCulpritsShown) {
        absl::StrAppend(&text, "  and ", group.culprits.size() - i, " more\n");
        break;
      }
      const Culprit& culprit = group.culprits[i];
      absl::StrAppend(&text, "  rank ", culprit.rank, " (",
                      Harmless(culprit.host), ", pid ", culprit.pid, ") ",
                      culprit.what, "\n");
    }
    if (!group.note.empty()) absl::StrAppend(&text, "  ", group.note, "\n");
    if (group.waiting.empty()) continue;
    const size_t shown = std::min(group.waiting.size(), kRanksShown);
    absl::StrAppend(
        &text, "  ", group.waiting.size(),
        group.waiting.size() == 1 ? " rank waits" : " ranks wait", ": ",
        absl::StrJoin(group.waiting.begin(),
                      group.waiting.begin() + static_cast<ptrdiff_t>(shown),
                      ", "),
        shown < group.waiting.size() ? ", ...\n" : "\n");
  }
  if (!diagnosis.also.empty()) absl::StrAppend(&text, "\n");
  for (const std::string& line : diagnosis.also) {
    absl::StrAppend(&text, line, "\n");
  }
  if (diagnosis.healthy()) absl::StrAppend(&text, "nothing is stuck\n");
  return text;
}

std::string DiagnosisJson(const v1::GetJobResponse& job,
                          const Diagnosis& diagnosis) {
  nlohmann::json json = {{"job", job.summary().job()},
                         {"generation", job.summary().generation()},
                         {"stuck", !diagnosis.healthy()},
                         {"groups", nlohmann::json::array()},
                         {"also", diagnosis.also}};
  for (const StuckGroup& group : diagnosis.groups) {
    nlohmann::json entry = {{"group", group.group},
                            {"sequence", group.sequence},
                            {"collective", group.collective},
                            {"running_for_ms", group.running_for.count()},
                            {"waiting", group.waiting},
                            {"culprits", nlohmann::json::array()},
                            {"note", group.note}};
    for (const Culprit& culprit : group.culprits) {
      entry["culprits"].push_back({{"rank", culprit.rank},
                                   {"host", culprit.host},
                                   {"pid", culprit.pid},
                                   {"debug_address", culprit.debug_address},
                                   {"state", culprit.state},
                                   {"what", culprit.what}});
    }
    json["groups"].push_back(std::move(entry));
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

}  // namespace muster::tools
