#include "client/tools/diagnose/tool_text.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/text.h"
#include "client/control/convert.h"
#include "muster/errors.h"

namespace muster::tools {
namespace {

using Row = std::vector<std::string>;

// Formats columns as wide as their widest cell, with two spaces between.
std::string Table(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i],
                      std::string(widths[i] + 2 - row[i].size(), ' '));
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string Ago(absl::Duration duration) {
  if (duration >= absl::Minutes(1)) {
    return absl::FormatDuration(absl::Trunc(duration, absl::Seconds(1)));
  }
  return absl::FormatDuration(absl::Trunc(duration, absl::Milliseconds(100)));
}

template <typename Proto>
absl::Duration ToDuration(const Proto& duration) {
  return absl::Seconds(duration.seconds()) +
         absl::Nanoseconds(duration.nanos());
}

absl::string_view StateText(v1::MemberState state) {
  switch (state) {
    case v1::MEMBER_STATE_ALIVE:
      return "alive";
    case v1::MEMBER_STATE_LEFT:
      return "left";
    case v1::MEMBER_STATE_LOST:
      return "lost";
    case v1::MEMBER_STATE_FAILED:
      return "failed";
    case v1::MEMBER_STATE_REPLACED:
      return "replaced";
    case v1::MEMBER_STATE_DISCONNECTED:
      return "disconnected";
    default:
      return "unknown";
  }
}

std::string RankText(int32_t rank) {
  return rank < 0 ? "-" : absl::StrCat(rank);
}

// Whether the job had members and all are gone.
bool IsFinished(const v1::JobSummary& job) {
  return job.generation() != 0 && job.members_alive() == 0;
}

std::string GenerationText(const v1::JobSummary& job) {
  if (job.generation() == 0) return "-";
  const bool runs = job.generation_running() && !IsFinished(job);
  return absl::StrCat(job.generation(), runs ? "" : " (over)");
}

// Returns `2 (node-b, pid 7, lost, all_reduce #418 on group "world")`.
std::string MissingText(const v1::MemberInfo& member) {
  std::string text = RankText(member.rank());
  if (member.member().empty()) return text;
  absl::StrAppend(&text, " (", base::Printable(member.host()), ", pid ",
                  member.pid());
  if (member.state() != v1::MEMBER_STATE_ALIVE) {
    absl::StrAppend(&text, ", ", StateText(member.state()));
  }
  if (!member.last_progress().empty()) {
    absl::StrAppend(&text, ", ", base::Printable(member.last_progress()));
  }
  return text + ")";
}

absl::string_view KindText(v1::ChangeKind kind) {
  switch (kind) {
    case v1::CHANGE_KIND_PUT:
      return "put";
    case v1::CHANGE_KIND_DELETED:
      return "deleted";
    case v1::CHANGE_KIND_EXPIRED:
      return "expired";
    case v1::CHANGE_KIND_ORPHANED:
      return "orphaned";
    default:
      return "changed";
  }
}

// Returns `0-7,12`.
template <typename Ranks>
std::string RanksText(const Ranks& ranks) {
  std::string text;
  for (int i = 0; i < ranks.size(); ++i) {
    const int first = i;
    while (i + 1 < ranks.size() && ranks.Get(i + 1) == ranks.Get(i) + 1) ++i;
    absl::StrAppend(&text, text.empty() ? "" : ",", ranks.Get(first));
    if (i > first) absl::StrAppend(&text, "-", ranks.Get(i));
  }
  return text;
}

// Returns ` (65-99)`; empty if the coordinator does not list them.
std::string OthersText(const v1::OpenBarrier& barrier) {
  if (barrier.others().empty()) return "";
  const auto range = [](std::string* text, const RankRange& ranks) {
    absl::StrAppend(text, ranks.first);
    if (ranks.count > 1) {
      absl::StrAppend(text, "-", ranks.first + ranks.count - 1);
    }
  };
  return absl::StrCat(
      " (", absl::StrJoin(internal::FromProto(barrier.others()), ",", range),
      ")");
}

}  // namespace

std::string StatusText(absl::string_view address,
                       const v1::ListJobsResponse& response) {
  int64_t members = 0;
  for (const v1::JobSummary& job : response.jobs()) {
    members += job.members_alive();
  }
  return absl::StrCat(
      "coordinator ", address, " ", response.draining() ? "drains" : "serves",
      "\n  version ", base::Printable(response.version()), ", up ",
      Ago(ToDuration(response.uptime())), ", epoch ",
      response.coordinator_epoch(), "\n  jobs ", response.jobs_size(),
      ", members alive ", members, ", sessions ", response.sessions(),
      "\n  jobs are ",
      response.durable() ? "kept over a restart" : "lost with the process",
      "\n");
}

bool IsHealthy(const v1::GetClusterResponse& cluster,
               const std::vector<CoordinatorReport>& reports) {
  return std::all_of(reports.begin(), reports.end(),
                     [](const CoordinatorReport& report) {
                       return report.status.ok() &&
                              report.cluster.not_ready().empty();
                     }) &&
         std::none_of(cluster.shards().begin(), cluster.shards().end(),
                      [](const v1::ClusterShard& shard) {
                        return shard.owner().empty();
                      });
}

std::string ClusterText(const v1::GetClusterResponse& cluster,
                        const std::vector<CoordinatorReport>& reports) {
  std::vector<Row> rows = {{"COORDINATOR", "HTTP", "VERSION", "UP", "SHARDS",
                            "JOBS", "SESSIONS", "UNSTORED", "STATE"}};
  for (const CoordinatorReport& report : reports) {
    const v1::ClusterCoordinator& coordinator = report.coordinator;
    Row row = {base::Printable(coordinator.address()),
               base::Printable(coordinator.http_address()),
               base::Printable(coordinator.version())};
    if (report.status.ok()) {
      const std::string& not_ready = report.cluster.not_ready();
      row.insert(row.end(), {Ago(ToDuration(report.jobs.uptime())),
                             absl::StrCat(coordinator.shards()),
                             absl::StrCat(report.jobs.jobs_size()),
                             absl::StrCat(report.jobs.sessions()),
                             absl::StrCat(report.cluster.uncommitted_steps()),
                             coordinator.draining() ? "drains"
                             : not_ready.empty()    ? "ready"
                                                 : base::Printable(not_ready)});
    } else {
      row.insert(row.end(), {"-", absl::StrCat(coordinator.shards()), "-", "-",
                             "-", base::Printable(report.status.message())});
    }
    rows.push_back(std::move(row));
  }
  std::string text = Table(rows);
  if (cluster.shards().empty()) {
    return text + "this coordinator shares its jobs with no other\n";
  }
  int free = 0;
  for (int shard = 0; shard < cluster.shards_size(); ++shard) {
    if (cluster.shards(shard).owner().empty()) ++free;
    if (cluster.shards(shard).pin().empty()) continue;
    absl::StrAppend(&text, "shard ", shard, " was moved to ",
                    base::Printable(cluster.shards(shard).pin()),
                    " by an operator\n");
  }
  if (free > 0) {
    absl::StrAppend(&text, free, " of ", cluster.shards_size(),
                    " shards of jobs have no coordinator\n");
  }
  return text;
}

std::string ClusterJson(const v1::GetClusterResponse& cluster,
                        const std::vector<CoordinatorReport>& reports) {
  nlohmann::json json;
  json["healthy"] = IsHealthy(cluster, reports);
  json["coordinators"] = nlohmann::json::array();
  for (const CoordinatorReport& report : reports) {
    const v1::ClusterCoordinator& coordinator = report.coordinator;
    nlohmann::json one = {{"address", coordinator.address()},
                          {"http_address", coordinator.http_address()},
                          {"version", coordinator.version()},
                          {"epoch", coordinator.coordinator_epoch()},
                          {"draining", coordinator.draining()},
                          {"shards", coordinator.shards()}};
    if (report.status.ok()) {
      one["not_ready"] = report.cluster.not_ready();
      one["jobs"] = report.jobs.jobs_size();
      one["sessions"] = report.jobs.sessions();
      one["uncommitted_steps"] = report.cluster.uncommitted_steps();
    } else {
      one["error"] = report.status.message();
    }
    json["coordinators"].push_back(std::move(one));
  }
  json["shards"] = nlohmann::json::array();
  for (const v1::ClusterShard& shard : cluster.shards()) {
    json["shards"].push_back({{"owner", shard.owner()}, {"pin", shard.pin()}});
  }
  return json.dump(-1, ' ', /*ensure_ascii=*/true,
                   nlohmann::json::error_handler_t::replace) +
         "\n";
}

std::string JobsText(const v1::ListJobsResponse& response) {
  if (response.jobs().empty()) return "no jobs\n";
  std::vector<Row> rows = {{"JOB", "GENERATION", "WORLD", "ALIVE", "KEYS",
                            "BYTES", "QUEUED", "WAITING", "BARRIERS",
                            "CALLS/S"}};
  std::vector<v1::JobSummary> jobs(response.jobs().begin(),
                                   response.jobs().end());
  std::stable_partition(
      jobs.begin(), jobs.end(),
      [](const v1::JobSummary& job) { return !IsFinished(job); });
  for (const v1::JobSummary& job : jobs) {
    rows.push_back(
        {base::Printable(job.job()), GenerationText(job),
         absl::StrCat(job.world_size()), absl::StrCat(job.members_alive()),
         absl::StrCat(job.keys()), absl::StrCat(job.store_bytes()),
         absl::StrCat(job.queue_items()), absl::StrCat(job.waiters()),
         absl::StrCat(job.open_barriers()),
         absl::StrCat(std::llround(job.operations_per_second()))});
  }
  return Table(rows);
}

std::string MembersText(const v1::GetJobResponse& response) {
  const v1::JobSummary& job = response.summary();
  std::string text = absl::StrCat(
      "job ", base::Printable(job.job()), ": generation ", GenerationText(job),
      ", world size ", job.world_size(), ", ", job.members_alive(), " alive\n");
  if (!response.generation_end().empty()) {
    absl::StrAppend(&text, "ended by ",
                    base::Printable(response.generation_end()), "\n");
  }
  if (!response.rendezvous_waiting().empty()) {
    absl::StrAppend(&text, base::Printable(response.rendezvous_waiting()),
                    "\n");
  }
  if (!response.rendezvous_closed().empty()) {
    absl::StrAppend(&text, "rendezvous closed by ",
                    base::Printable(response.rendezvous_closed()), "\n");
  }
  if (response.members().empty()) return text + "no members\n";
  std::vector<Row> rows = {
      {"RANK", "MEMBER", "STATE", "HOST", "PID", "HEARD", "LAST SEEN DOING"}};
  for (const v1::MemberInfo& member : response.members()) {
    std::string doing = base::Printable(member.last_progress());
    if (!member.cause().empty()) {
      doing = absl::StrCat(base::Printable(member.cause()),
                           doing.empty() ? "" : "; before: ", doing);
    }
    rows.push_back({RankText(member.rank()), base::Printable(member.member()),
                    std::string(StateText(member.state())),
                    base::Printable(member.host()), absl::StrCat(member.pid()),
                    Ago(absl::Milliseconds(member.silent_ms())) + " ago",
                    std::move(doing)});
  }
  return text + Table(rows);
}

std::string GroupsText(const v1::GetJobResponse& response) {
  if (response.groups().empty()) return "no groups\n";
  std::vector<Row> rows = {
      {"GROUP", "SIZE", "REGISTERED", "RANKS", "MISSING", "DESCRIPTION"}};
  for (const v1::RegisteredGroup& group : response.groups()) {
    const int missing = group.ranks_size() - group.registered();
    rows.push_back({base::Printable(group.name()),
                    absl::StrCat(group.ranks_size()),
                    absl::StrCat(group.registered()), RanksText(group.ranks()),
                    missing == 0 ? "-" : RanksText(group.missing()),
                    base::Printable(group.description())});
  }
  return Table(rows);
}

std::string BarriersText(const v1::GetJobResponse& response) {
  if (response.barriers().empty()) return "no open barriers\n";
  std::string text;
  for (const v1::OpenBarrier& barrier : response.barriers()) {
    absl::StrAppend(&text, "barrier ", base::Printable(barrier.name()), " #",
                    barrier.instance(), " of group ",
                    base::Printable(barrier.group()), ": ", barrier.arrived(),
                    " of ", barrier.expected(), " arrived, open for ",
                    Ago(ToDuration(barrier.open_for())), "\n");
    for (const v1::MemberInfo& missing : barrier.missing()) {
      absl::StrAppend(&text, "  missing rank ", MissingText(missing), "\n");
    }
    const int more =
        barrier.expected() - barrier.arrived() - barrier.missing_size();
    if (more > 0) {
      absl::StrAppend(&text, "  and ", more, " more", OthersText(barrier),
                      "\n");
    }
  }
  const int more =
      response.summary().open_barriers() - response.barriers_size();
  if (more > 0) absl::StrAppend(&text, "and ", more, " more barriers\n");
  return text;
}

std::string ChangesText(const v1::WatchResponse& response) {
  std::string text;
  for (const v1::KeyChange& change : response.changes()) {
    absl::StrAppend(&text, KindText(change.kind()), " ", change.revision(), " ",
                    base::Quote(change.key()));
    if (change.kind() == v1::CHANGE_KIND_PUT) {
      absl::StrAppend(&text, " ", base::Quote(change.value()));
    }
    text += '\n';
  }
  return text;
}

std::string ErrorJson(absl::string_view error) {
  const nlohmann::json json = {{"error", std::string(error)}};
  return json.dump(-1, ' ', /*ensure_ascii=*/true,
                   nlohmann::json::error_handler_t::replace) +
         "\n";
}

}  // namespace muster::tools
