#include "client/tools/diagnose/diagnosis.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "client/tools/diagnose/diagnosis_rules.h"
#include "client/tools/diagnose/rank_progress.h"
#include "client/tools/diagnose/snapshot.h"
#include "client/tools/diagnose/tool_text.h"

namespace muster::tools {
namespace {

using std::chrono::milliseconds;

constexpr size_t kRanksShown = 16;

// Returns why a collective does not complete although all ranks are in it.
std::string NoteOnAllInIt(const std::vector<RankProgress>& places) {
  // Ranks that passed the same arguments, and the first one's text of the call.
  struct Side {
    std::string call = {};
    std::vector<int> ranks = {};
  };
  std::vector<Side> sides;
  std::map<uint64_t, size_t> side_of;
  std::vector<int> untold;
  for (const RankProgress& place : places) {
    if (!place.in_collective()) continue;
    if (!place.group->has_arguments_hash()) {
      untold.push_back(place.rank);
      continue;
    }
    const auto [found, is_new] =
        side_of.emplace(place.group->arguments_hash(), sides.size());
    if (is_new) sides.push_back({.call = place.call()});
    sides[found->second].ranks.push_back(place.rank);
  }
  if (sides.size() > 1) {
    return absl::StrCat(
        "they do not agree: ",
        absl::StrJoin(sides, "; ", [](std::string* out, const Side& side) {
          absl::StrAppend(out, base::Quote(side.call), " on ",
                          base::RanksText(side.ranks));
        }));
  }
  std::string note =
      "all ranks are in it, and who can be asked answers: the network between "
      "them is slow or cut, or the tensors are large";
  if (!untold.empty()) {
    absl::StrAppend(
        &note, "; whether they agree is not known: ", base::RanksText(untold),
        untold.size() == 1 ? " does" : " do", " not tell with what arguments");
  }
  return note;
}

// Returns the lowest collective that some rank has not completed. Ignores old
// reports and ranks that are gone or ill.
int64_t AwaitedSequence(const std::vector<RankProgress>& places,
                        const DiagnosisRules& rules) {
  std::optional<int64_t> sequence;
  for (const RankProgress& place : places) {
    if (!rules.IsSure(place) || rules.IsIll(place)) continue;
    const int64_t next = place.completed() + 1;
    sequence = std::min(sequence.value_or(next), next);
  }
  return sequence.value_or(0);
}

// Whether `place` was still in collective `sequence` at its last heartbeat,
// `margin` after another rank had completed it. Nothing is known of the time
// after that heartbeat: when ranks wait for a slow one, they complete together
// and report it one after the other.
bool IsLeftIn(const RankProgress& place, int64_t sequence,
              const std::vector<RankProgress>& places,
              const DiagnosisRules& rules, milliseconds margin) {
  milliseconds completed_for(0);
  for (const RankProgress& other : places) {
    if (!rules.IsSure(other) || other.completed() < sequence) continue;
    completed_for = std::max(
        completed_for, other.in_collective() ? other.running_for() : other.age);
  }
  return completed_for >= place.age + margin;
}

std::optional<StuckGroup> LookAtCollectives(
    const std::string& name, const std::vector<RankProgress>& places,
    const DiagnosisRules& rules, milliseconds stuck_after,
    milliseconds told_within) {
  StuckGroup group;
  group.group = name;
  group.sequence = AwaitedSequence(places, rules);
  bool all_in_it = true;
  std::vector<RankProgress> behind;
  std::vector<RankProgress> last;  // ranks that have not completed it
  for (const RankProgress& place : places) {
    const bool sure = rules.IsSure(place);
    const bool there = sure && place.completed() + 1 == group.sequence;
    const bool waits = sure && place.in_collective();
    if (waits) {
      group.running_for = std::max(group.running_for, place.running_for());
      if (there && group.collective.empty()) group.collective = place.call();
    }
    if (there) last.push_back(place);
    all_in_it = all_in_it && there && waits;
    if (!sure || rules.IsIll(place) ||
        (there && !(waits && place.enqueued() >= group.sequence))) {
      behind.push_back(place);
    } else if (waits) {
      group.waiting.push_back(place.rank);
    }
  }
  if (group.running_for < stuck_after) return std::nullopt;
  if (behind.empty() && !all_in_it) {
    // Others have completed it: a rank that is still in it has not received or
    // sent its part.
    for (const RankProgress& place : last) {
      if (IsLeftIn(place, group.sequence, places, rules, told_within)) {
        behind.push_back(place);
      }
    }
    if (behind.empty()) return std::nullopt;
    for (const RankProgress& place : behind) {
      group.waiting.erase(
          std::remove(group.waiting.begin(), group.waiting.end(), place.rank),
          group.waiting.end());
    }
  }
  const Awaited awaited = {name, group.sequence,
                           absl::StrCat("has not called #", group.sequence)};
  for (const RankProgress& place : behind) {
    group.culprits.push_back(rules.Blame(place, awaited));
  }
  if (behind.empty()) {
    group.note = NoteOnAllInIt(places);
  }
  if (group.collective.empty()) {
    group.collective = absl::StrCat("collective #", group.sequence);
  }
  return group;
}

// A group whose ranks have met, or claim so, and do not get connected.
std::optional<StuckGroup> LookAtConnecting(
    const std::string& name, const std::vector<RankProgress>& places,
    const DiagnosisRules& rules, milliseconds stuck_after) {
  StuckGroup group;
  group.group = name;
  std::vector<RankProgress> missing;
  for (const RankProgress& place : places) {
    if (!rules.IsSure(place) || rules.IsIll(place) || place.group == nullptr) {
      missing.push_back(place);
    } else if (place.connecting()) {
      group.waiting.push_back(place.rank);
      group.collective = place.call();
      group.running_for = std::max(group.running_for, place.running_for());
    }
  }
  if (group.waiting.empty() || group.running_for < stuck_after) {
    return std::nullopt;
  }
  const Awaited awaited = {name, 0, "has not come to it"};
  for (const RankProgress& place : missing) {
    group.culprits.push_back(rules.Blame(place, awaited));
  }
  if (missing.empty()) {
    group.note =
        "all ranks have come, and who can be asked answers: they reach the "
        "coordinator and not each other; look at firewalls, and at the "
        "addresses that GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME mean";
  }
  return group;
}

bool IsForming(const v1::GetJobResponse& job, const std::string& name) {
  for (const v1::RegisteredGroup& group : job.groups()) {
    if (group.name() == name) return group.has_forming_for();
  }
  return false;
}

// Follows sends and receives from rank to waiting rank.
class PeerChains {
 public:
  PeerChains(const std::vector<RankProgress>& places,
             const DiagnosisRules& rules) {
    for (const RankProgress& place : places) {
      by_rank_[place.rank] = &place;
      if (rules.IsSure(place) && !rules.IsIll(place) && place.peer_call) {
        waiting_[place.rank] = &place;
      }
    }
  }

  // The waiting ranks.
  const std::map<int, const RankProgress*>& waiting() const { return waiting_; }

  // The end of a chain: the last waiting rank, and the rank for which it waits
  // (null: any rank, or a cycle).
  struct End {
    const RankProgress* waiter = nullptr;
    const RankProgress* awaited = nullptr;
    bool circle = false;
  };
  End Follow(const RankProgress& place) const {
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
  std::map<int, const RankProgress*> by_rank_;
  std::map<int, const RankProgress*> waiting_;
};

// Returns `they wait for each other: rank 0 in "recv #1 ..."; rank 1 in "recv
// #1 ..."`.
std::string CircleText(const std::set<int>& ranks, const PeerChains& chains) {
  std::vector<std::string> parts;
  for (const int rank : ranks) {
    if (parts.size() == kRanksShown) {
      parts.push_back("...");
      break;
    }
    parts.push_back(absl::StrCat(
        "rank ", rank, " in ", base::Quote(chains.waiting().at(rank)->call())));
  }
  return absl::StrCat("they wait for each other: ", absl::StrJoin(parts, "; "));
}

std::optional<StuckGroup> LookAtPeers(const std::string& name,
                                      const std::vector<RankProgress>& places,
                                      const DiagnosisRules& rules,
                                      milliseconds stuck_after) {
  const PeerChains chains(places, rules);
  StuckGroup group;
  group.group = name;
  const RankProgress* longest = nullptr;
  std::map<int, PeerChains::End> ends;  // by the rank at the end of the chain
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
    group.culprits.push_back(rules.Blame(*end.awaited, awaited));
  }
  if (!circle.empty()) {
    group.note = CircleText(circle, chains);
  } else if (ends.empty()) {
    group.note = "it takes what any rank sends, and none does";
  }
  return group;
}

// Finds ranks that wait for each other in different groups.
class GroupCircle {
 public:
  explicit GroupCircle(const std::vector<StuckGroup>& groups) {
    for (const StuckGroup& group : groups) {
      for (const int rank : group.waiting) waits_in_[rank].push_back(&group);
    }
  }

  // Returns one line for people; empty if there is no cycle.
  std::string Text() {
    for (const auto& [rank, groups] : waits_in_) {
      if (Reaches(rank, nullptr)) return TextOfPath();
    }
    return "";
  }

 private:
  struct Step {
    int rank = -1;
    const StuckGroup* in = nullptr;
  };

  // Whether a chain of waits leads from `rank`, in another group than `from`,
  // back to it. Then path_ has the cycle.
  bool Reaches(int rank, const StuckGroup* from) {
    const auto again =
        std::find_if(path_.begin(), path_.end(),
                     [&](const Step& step) { return step.rank == rank; });
    if (again != path_.end()) {
      if (again->in == from) return false;
      path_.erase(path_.begin(), again);
      return true;
    }
    const auto waits = waits_in_.find(rank);
    if (waits == waits_in_.end() || !seen_.insert(rank).second) return false;
    for (const StuckGroup* const group : waits->second) {
      if (group == from) continue;
      path_.push_back({rank, group});
      for (const Culprit& culprit : group->culprits) {
        if (Reaches(culprit.rank, group)) return true;
      }
      path_.pop_back();
    }
    return false;
  }

  std::string TextOfPath() const {
    std::vector<std::string> parts;
    for (size_t i = 0; i < path_.size(); ++i) {
      if (parts.size() == kRanksShown) {
        parts.push_back("...");
        break;
      }
      const Step& step = path_[i];
      parts.push_back(absl::StrCat(
          "rank ", step.rank, " is in ", base::Printable(step.in->collective),
          " on group ", base::Quote(step.in->group), " and waits for rank ",
          path_[(i + 1) % path_.size()].rank));
    }
    return absl::StrCat(
        "a cycle: ", absl::StrJoin(parts, ", "),
        "; ranks that share several groups must use them in the same order");
  }

  std::map<int, std::vector<const StuckGroup*>> waits_in_;
  std::vector<Step> path_;
  std::set<int> seen_;
};

// Adds members without heartbeats for which no rank is known to wait.
void AddSilent(const v1::GetJobResponse& job, const DiagnosisRules& rules,
               Diagnosis& diagnosis) {
  std::set<int> named;
  for (const StuckGroup& group : diagnosis.groups) {
    for (const Culprit& culprit : group.culprits) named.insert(culprit.rank);
  }
  for (const v1::MemberInfo& member : job.members()) {
    RankProgress place;
    place.rank = member.rank();
    place.member = &member;
    if (place.rank < 0 || IsGone(member) || !rules.IsSilent(place) ||
        !named.insert(place.rank).second) {
      continue;
    }
    diagnosis.silent.push_back(rules.Blame(place, {}));
  }
}

// Uses one snapshot. Returns nullopt if many ranks have not come.
std::optional<Straggler> StragglerIn(const v1::GetJobResponse& job,
                                     const std::string& name) {
  const Answers answers;
  const DiagnosisRules rules(job, nullptr, answers);
  const std::vector<RankProgress> places = FindRankProgress(job, name);
  const milliseconds told_within = ToldWithin(job);
  const auto group =
      LookAtCollectives(name, places, rules, told_within / 4, told_within);
  if (!group.has_value() || group->culprits.empty() ||
      group->culprits.size() > group->waiting.size()) {
    return std::nullopt;
  }
  Straggler straggler;
  straggler.group = name;
  straggler.collective = group->collective;
  straggler.waiting = static_cast<int>(group->waiting.size());
  for (const Culprit& culprit : group->culprits) {
    for (const RankProgress& place : places) {
      if (place.rank != culprit.rank) continue;
      // It may have come since its last report, or so recently that the report
      // is still under way.
      const milliseconds sure =
          group->running_for - std::min(place.age, told_within);
      if (sure <= straggler.waiting_for) continue;
      straggler.waiting_for = sure;
      straggler.culprit = culprit;
    }
  }
  if (straggler.waiting_for < told_within / 4) return std::nullopt;
  return straggler;
}

void AddStragglers(const v1::GetJobResponse& job,
                   const v1::GetJobResponse* earlier, Diagnosis& diagnosis) {
  for (const std::string& name : GroupNames(job)) {
    std::optional<Straggler> straggler = StragglerIn(job, name);
    if (earlier != nullptr) {
      std::optional<Straggler> before = StragglerIn(*earlier, name);
      if (before.has_value() &&
          (!straggler.has_value() ||
           straggler->waiting_for < before->waiting_for)) {
        straggler = std::move(before);
      }
    }
    if (straggler.has_value()) {
      diagnosis.stragglers.push_back(*std::move(straggler));
    }
  }
}

}  // namespace

Diagnosis Diagnose(const v1::GetJobResponse& job,
                   const v1::GetJobResponse* earlier, const Answers& answers,
                   const DiagnosisOptions& options) {
  // Numbers restart with a generation, and a restarted coordinator knows no
  // progress.
  if (earlier != nullptr &&
      (earlier->coordinator_epoch() != job.coordinator_epoch() ||
       earlier->summary().generation() != job.summary().generation())) {
    earlier = nullptr;
  }
  // After a shorter wait the awaited rank may have come since its last report.
  const milliseconds stuck_after =
      std::max(options.stuck_after, ToldWithin(job));
  Diagnosis diagnosis;
  const DiagnosisRules rules(job, earlier, answers);
  for (const std::string& name : GroupNames(job)) {
    const std::vector<RankProgress> places = FindRankProgress(job, name);
    auto group =
        LookAtCollectives(name, places, rules, stuck_after, ToldWithin(job));
    if (!group.has_value() && !IsForming(job, name)) {
      group = LookAtConnecting(name, places, rules, stuck_after);
    }
    if (group.has_value()) diagnosis.groups.push_back(*std::move(group));
    group = LookAtPeers(name, places, rules, stuck_after);
    if (group.has_value()) diagnosis.groups.push_back(*std::move(group));
  }
  for (const v1::OpenBarrier& barrier : job.barriers()) {
    if (Ms(barrier.open_for()) < options.stuck_after) continue;
    diagnosis.groups.push_back(LookAtBarrier(job, barrier, rules));
  }
  for (const v1::RegisteredGroup& forming : job.groups()) {
    if (!forming.has_forming_for() ||
        Ms(forming.forming_for()) < options.stuck_after) {
      continue;
    }
    auto group = LookAtForming(job, forming, rules);
    if (group.has_value()) diagnosis.groups.push_back(*std::move(group));
  }
  std::stable_sort(diagnosis.groups.begin(), diagnosis.groups.end(),
                   [](const StuckGroup& a, const StuckGroup& b) {
                     return a.running_for > b.running_for;
                   });
  diagnosis.keys = KeysAwaited(job, earlier, options.stuck_after);
  AddSilent(job, rules, diagnosis);
  diagnosis.also = DescribeStanding(job);
  const std::string circle = GroupCircle(diagnosis.groups).Text();
  if (!circle.empty()) {
    diagnosis.also.insert(diagnosis.also.begin(), circle);
  }
  diagnosis.absent = AbsentFrom(job, options.hosts);
  if (diagnosis.healthy()) AddStragglers(job, earlier, diagnosis);
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
    // No rank is behind: a rank that was stopped in the collective may not yet
    // count as silent.
    if (group.culprits.empty()) {
      ranks.insert(group.waiting.begin(), group.waiting.end());
    }
  }
  return {ranks.begin(), ranks.end()};
}

// The diagnosis as text and JSON.

namespace {

constexpr size_t kCulpritsShown = 16;

// Returns "rank 2 (host-b, pid 7)", as far as it is known.
std::string Who(int rank, const std::string& host, int64_t pid) {
  std::string text =
      rank < 0 ? std::string("no rank") : absl::StrCat("rank ", rank);
  if (host.empty()) return text;
  absl::StrAppend(&text, " (", base::Printable(host));
  if (pid != 0) absl::StrAppend(&text, ", pid ", pid);
  return text + ")";
}

// Appends a line for each.
void AppendCulprits(const std::vector<Culprit>& culprits, std::string& text) {
  for (size_t i = 0; i < culprits.size(); ++i) {
    if (i == kCulpritsShown) {
      absl::StrAppend(&text, "  and ", culprits.size() - i, " more\n");
      break;
    }
    absl::StrAppend(&text, "  ",
                    Who(culprits[i].rank, culprits[i].host, culprits[i].pid),
                    " ", culprits[i].what, "\n");
  }
}

void AppendKey(const AwaitedKey& key, std::string& text) {
  absl::StrAppend(&text, "\n", key.queue ? "nobody pushes " : "nobody sets ",
                  key.what, "\n");
  for (size_t i = 0; i < key.waiters.size(); ++i) {
    if (i == kCulpritsShown) {
      absl::StrAppend(&text, "  and ", key.waiters.size() - i, " more\n");
      break;
    }
    const AwaitedKey::Waiter& waiter = key.waiters[i];
    absl::StrAppend(&text, "  ", Who(waiter.rank, waiter.host, waiter.pid),
                    " has waited for it for ", SecondsText(waiter.waiting_for),
                    "\n");
  }
}

void AppendStraggler(const Straggler& straggler, std::string& text) {
  absl::StrAppend(&text, "slowest in group ", base::Quote(straggler.group),
                  ": ",
                  Who(straggler.culprit.rank, straggler.culprit.host,
                      straggler.culprit.pid),
                  "; ", straggler.waiting,
                  straggler.waiting == 1 ? " rank has" : " ranks have",
                  " waited for it ", SecondsText(straggler.waiting_for), " in ",
                  base::Printable(straggler.collective), "\n");
}

nlohmann::json Json(const Culprit& culprit) {
  return {{"rank", culprit.rank},   {"host", culprit.host},
          {"pid", culprit.pid},     {"debug_address", culprit.debug_address},
          {"state", culprit.state}, {"what", culprit.what}};
}

nlohmann::json Json(const AwaitedKey& key) {
  nlohmann::json json = {{"key", key.key},
                         {"queue", key.queue},
                         {"what", key.what},
                         {"waiting", nlohmann::json::array()}};
  for (const AwaitedKey::Waiter& waiter : key.waiters) {
    json["waiting"].push_back({{"rank", waiter.rank},
                               {"member", waiter.member},
                               {"host", waiter.host},
                               {"pid", waiter.pid},
                               {"waiting_for_ms", waiter.waiting_for.count()}});
  }
  return json;
}

nlohmann::json Json(const Straggler& straggler) {
  return {{"group", straggler.group},
          {"collective", straggler.collective},
          {"culprit", Json(straggler.culprit)},
          {"waiting", straggler.waiting},
          {"waiting_for_ms", straggler.waiting_for.count()}};
}

template <typename T>
nlohmann::json Json(const std::vector<T>& entries) {
  nlohmann::json json = nlohmann::json::array();
  for (const T& entry : entries) json.push_back(Json(entry));
  return json;
}

}  // namespace

std::string DiagnosisText(const v1::GetJobResponse& job,
                          const Diagnosis& diagnosis) {
  const v1::JobSummary& summary = job.summary();
  const bool runs = summary.generation_running() && summary.members_alive() > 0;
  std::string text =
      absl::StrCat("job ", base::Printable(summary.job()), ": generation ",
                   summary.generation(), runs ? " runs" : " does not run", ", ",
                   summary.world_size(), " ranks, ", summary.members_alive(),
                   " members alive\n");
  for (const StuckGroup& group : diagnosis.groups) {
    absl::StrAppend(&text, "\ngroup ", base::Quote(group.group),
                    " is stuck in ", base::Printable(group.collective), " for ",
                    SecondsText(group.running_for), "\n");
    AppendCulprits(group.culprits, text);
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
  for (const AwaitedKey& key : diagnosis.keys) AppendKey(key, text);
  if (!diagnosis.silent.empty()) {
    absl::StrAppend(&text, "\nnothing is heard of\n");
    AppendCulprits(diagnosis.silent, text);
  }
  if (!diagnosis.also.empty()) absl::StrAppend(&text, "\n");
  for (const std::string& line : diagnosis.also) {
    absl::StrAppend(&text, line, "\n");
  }
  AppendCulprits(diagnosis.absent, text);
  if (diagnosis.healthy()) absl::StrAppend(&text, "nothing is stuck\n");
  for (const Straggler& straggler : diagnosis.stragglers) {
    AppendStraggler(straggler, text);
  }
  return text;
}

std::string DiagnosisJson(const v1::GetJobResponse& job,
                          const Diagnosis& diagnosis) {
  nlohmann::json json = {{"job", job.summary().job()},
                         {"generation", job.summary().generation()},
                         {"stuck", !diagnosis.healthy()},
                         {"groups", nlohmann::json::array()},
                         {"keys", Json(diagnosis.keys)},
                         {"silent", Json(diagnosis.silent)},
                         {"also", diagnosis.also},
                         {"absent", Json(diagnosis.absent)},
                         {"stragglers", Json(diagnosis.stragglers)}};
  for (const StuckGroup& group : diagnosis.groups) {
    nlohmann::json entry = {{"group", group.group},
                            {"sequence", group.sequence},
                            {"collective", group.collective},
                            {"running_for_ms", group.running_for.count()},
                            {"waiting", group.waiting},
                            {"culprits", Json(group.culprits)},
                            {"note", group.note}};
    json["groups"].push_back(std::move(entry));
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

}  // namespace muster::tools
