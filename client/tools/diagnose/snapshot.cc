#include "client/tools/diagnose/snapshot.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "client/control/group_name.h"
#include "client/tools/diagnose/rank_progress.h"
#include "client/tools/diagnose/tool_text.h"
#include "client/tools/diagnose/waits.h"

namespace muster::tools {
namespace {

using std::chrono::milliseconds;

constexpr size_t kNamesShown = 8;

std::map<int, RankProgress> ProgressByRank(const v1::GetJobResponse& job,
                                           const std::string& group) {
  std::map<int, RankProgress> places;
  for (RankProgress& place : FindRankProgress(job, group)) {
    places.emplace(place.rank, std::move(place));
  }
  return places;
}

// Whether any group of the member has started a collective since `earlier`.
bool GoesOn(const v1::MemberInfo& member, const v1::MemberProgress& progress,
            const v1::GetJobResponse& earlier) {
  for (int i = 0; i < earlier.progress_size(); ++i) {
    if (earlier.members(i).member() != member.member()) continue;
    for (const v1::GroupProgress& before : earlier.progress(i).groups()) {
      for (const v1::GroupProgress& now : progress.groups()) {
        if (now.group() == before.group() &&
            now.last_enqueued() > before.last_enqueued()) {
          return true;
        }
      }
    }
  }
  return false;
}

// Returns `a (host-a, pid 7), b (host-b, pid 8) and 3 more`.
std::string Names(const std::vector<const v1::MemberInfo*>& members) {
  std::vector<std::string> names;
  for (const v1::MemberInfo* member : members) {
    if (names.size() == kNamesShown) break;
    names.push_back(absl::StrCat(base::Printable(member->member()), " (",
                                 base::Printable(member->host()), ", pid ",
                                 member->pid(), ")"));
  }
  return absl::StrCat(
      absl::StrJoin(names, ", "),
      members.size() > names.size()
          ? absl::StrCat(" and ", members.size() - names.size(), " more")
          : "");
}

std::string StartedText(const v1::GetJobResponse& job) {
  return absl::StrCat("the coordinator was started ",
                      SecondsText(Ms(job.uptime())), " ago");
}

// Describes a rank without a live member.
absl::string_view RegistrationText(const v1::GetJobResponse& job, int rank) {
  const v1::MemberInfo* last = nullptr;
  for (const v1::MemberInfo& member : job.members()) {
    if (member.rank() == rank && IsGone(member)) last = &member;
  }
  if (last == nullptr) return "has never registered";
  return last->state() == v1::MEMBER_STATE_LOST
             ? "has not come again since it was lost"
             : "has not come again since it left";
}

// Describes a job about whose ranks the coordinator knows nothing; else "".
std::string NothingKnown(const v1::GetJobResponse& job) {
  const v1::JobSummary& summary = job.summary();
  if (summary.generation() != 0 || summary.members_alive() != 0 ||
      job.joined() != 0 || !job.has_uptime()) {
    return "";
  }
  std::vector<const v1::MemberInfo*> former;
  for (const v1::MemberInfo& member : job.members()) former.push_back(&member);
  std::string text =
      absl::StrCat("nothing is known of this job's ranks and collectives: ",
                   StartedText(job), ", and no generation has formed since");
  if (!job.durable()) {
    absl::StrAppend(&text, "; what it knew before went with its process");
  }
  if (!former.empty()) {
    absl::StrAppend(&text, "; these may go on without it: ", Names(former),
                    ": ", base::Printable(former.front()->cause()));
  }
  return text;
}

// Names members that have not reported since the coordinator restarted with its
// jobs; "" if there are none.
std::string NotToldYet(const v1::GetJobResponse& job) {
  if (!job.summary().generation_running() || !job.durable() ||
      Ms(job.uptime()) >= SilentAfter(job)) {
    return "";
  }
  std::vector<int> ranks;
  for (int i = 0; i < std::min(job.members_size(), job.progress_size()); ++i) {
    const v1::MemberInfo& member = job.members(i);
    if (member.rank() >= 0 && !IsGone(member) && !job.progress(i).has_age()) {
      ranks.push_back(member.rank());
    }
  }
  if (ranks.empty()) return "";
  const size_t count = ranks.size();
  ranks.resize(std::min(count, kNamesShown));
  return absl::StrCat(
      StartedText(job), " and has not been told yet what ",
      count == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "),
      count > kNamesShown ? absl::StrCat(" and ", count - kNamesShown, " more")
                          : "",
      count == 1 ? " does" : " do", ": look again");
}

}  // namespace

StuckGroup LookAtBarrier(const v1::GetJobResponse& job,
                         const v1::OpenBarrier& barrier,
                         const DiagnosisRules& rules) {
  StuckGroup group;
  group.group = barrier.group();
  group.collective = absl::StrCat("barrier ", base::Quote(barrier.name()));
  group.running_for = Ms(barrier.open_for());
  std::map<int, RankProgress> places = ProgressByRank(job, barrier.group());
  const Awaited awaited = {barrier.group(), 0, "has not come to it"};
  for (const v1::MemberInfo& member : barrier.missing()) {
    const auto place = places.find(member.rank());
    if (place == places.end()) {
      Culprit unknown = ToCulprit(member);
      unknown.state = "unknown";
      unknown.what = "has not come to it: no more is known of it";
      group.culprits.push_back(std::move(unknown));
      continue;
    }
    group.culprits.push_back(rules.Blame(place->second, awaited));
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

std::optional<StuckGroup> LookAtForming(const v1::GetJobResponse& job,
                                        const v1::RegisteredGroup& forming,
                                        const DiagnosisRules& rules) {
  const int missing = forming.ranks_size() - forming.registered();
  StuckGroup group;
  group.group = forming.name();
  group.collective = internal::GetMaker(forming.name());
  group.running_for = Ms(forming.forming_for());
  if (missing == forming.missing_size()) {
    group.waiting = WaitingIn(job, forming);
    if (group.waiting.empty()) return std::nullopt;
  } else {
    group.note =
        absl::StrCat("it waits for ", missing, " of ", forming.ranks_size(),
                     " ranks, of whom these are the first");
  }
  const Awaited awaited = {forming.name(), 0,
                           absl::StrCat("has not called ", group.collective)};
  const std::map<int, RankProgress> places =
      ProgressByRank(job, forming.name());
  for (const int rank : forming.missing()) {
    const auto place = places.find(rank);
    if (place != places.end()) {
      group.culprits.push_back(rules.Blame(place->second, awaited));
    }
  }
  return group;
}

std::vector<AwaitedKey> KeysAwaited(const v1::GetJobResponse& job,
                                    const v1::GetJobResponse* earlier,
                                    milliseconds stuck_after) {
  std::map<std::string, int> members;
  for (int i = 0; i < job.members_size(); ++i) {
    members[job.members(i).member()] = i;
  }
  std::map<std::string, AwaitedKey> keys;
  for (const v1::KeyWait& wait : job.key_waits()) {
    const auto found = members.find(wait.member());
    if (found == members.end() || IsInternal(wait) ||
        Ms(wait.waiting_for()) < stuck_after) {
      continue;
    }
    const v1::MemberInfo& member = job.members(found->second);
    if (earlier != nullptr && found->second < job.progress_size() &&
        GoesOn(member, job.progress(found->second), *earlier)) {
      continue;
    }
    AwaitedKey& key = keys[KeyText(wait)];
    key.what = KeyText(wait);
    key.key = wait.key();
    key.queue = wait.item();
    key.waiters.push_back({member.rank(), member.member(), member.host(),
                           member.pid(), Ms(wait.waiting_for())});
  }
  std::vector<AwaitedKey> awaited;
  for (auto& [text, key] : keys) {
    std::stable_sort(key.waiters.begin(), key.waiters.end(),
                     [](const auto& a, const auto& b) {
                       return a.waiting_for > b.waiting_for;
                     });
    awaited.push_back(std::move(key));
  }
  std::stable_sort(awaited.begin(), awaited.end(),
                   [](const AwaitedKey& a, const AwaitedKey& b) {
                     return a.waiters.front().waiting_for >
                            b.waiters.front().waiting_for;
                   });
  return awaited;
}

std::vector<std::string> DescribeStanding(const v1::GetJobResponse& job) {
  std::vector<std::string> lines;
  if (!job.generation_end().empty()) {
    lines.push_back(
        absl::StrCat("generation ", job.summary().generation(),
                     " is over: ", base::Printable(job.generation_end())));
  }
  if (!job.rendezvous_waiting().empty()) {
    lines.push_back(base::Printable(job.rendezvous_waiting()));
  }
  for (std::string line : {NothingKnown(job), NotToldYet(job)}) {
    if (!line.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<Culprit> AbsentFrom(const v1::GetJobResponse& job,
                                const std::map<int, std::string>& hosts) {
  std::vector<Culprit> absent;
  if (job.joined() == 0 || job.summary().generation_running()) return absent;
  std::set<int> named;
  // The list has all members that joined, or none.
  if (job.joined() == job.joined_members_size()) {
    const std::set<std::string> joined = {job.joined_members().begin(),
                                          job.joined_members().end()};
    for (const v1::MemberInfo& member : job.members()) {
      if (IsGone(member) || joined.contains(member.member())) continue;
      Culprit culprit = ToCulprit(member);
      culprit.state = "not_joined";
      culprit.what =
          absl::StrCat("is connected as member ", base::Quote(member.member()),
                       " and has not joined; last heard of ",
                       SecondsText(milliseconds(member.silent_ms())), " ago");
      named.insert(culprit.rank);
      absent.push_back(std::move(culprit));
    }
  }
  for (const int rank : job.missing_ranks()) {
    if (!named.insert(rank).second) continue;
    Culprit culprit;
    culprit.rank = rank;
    const auto host = hosts.find(rank);
    if (host != hosts.end()) culprit.host = host->second;
    culprit.state = "unregistered";
    culprit.what = absl::StrCat(
        RegistrationText(job, rank),
        ": its process does not run, has not come to InitProcessGroup, or does "
        "not reach the coordinator");
    absent.push_back(std::move(culprit));
  }
  return absent;
}

}  // namespace muster::tools
