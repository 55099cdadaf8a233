#include "coordinator/server/ops/status_page.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text.h"
#include "coordinator/core/membership.h"
#include "muster/version.h"

namespace muster::coordinator {
namespace {

// Browsers cannot handle pages with thousands of rows well.
constexpr size_t kRowsMax = 256;

// Colours are readable in light and dark mode, and the table scrolls on a
// narrow screen. Nothing is loaded from elsewhere.
constexpr absl::string_view kHead =
    "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">"
    "<meta name=\"viewport\" content=\"width=device-width\">"
    "<meta http-equiv=\"refresh\" content=\"5\">"
    "<title>muster coordinator</title><style>"
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;padding:0 1.5em;"
    "max-width:75em}"
    "h1{font-size:1.4em;margin:0}h2{font-size:1.15em;margin:2em 0 .2em}"
    "p{margin:.3em 0}"
    ".table{overflow-x:auto;margin:.8em 0}"
    "table{border-collapse:collapse;width:100%;"
    "font-variant-numeric:tabular-nums}"
    "th,td{padding:.3em .8em;text-align:left;vertical-align:top;"
    "border-bottom:1px solid #8884}"
    "th{font-weight:600;opacity:.7;white-space:nowrap}"
    "td:first-child{white-space:nowrap}"
    ".bad td:nth-child(5){color:#d32f2f;font-weight:600}"
    "b.bad{color:#d32f2f}"
    "</style></head><body><h1>muster coordinator</h1>";

// Escapes the text as HTML, and control characters for terminals.
std::string Escape(absl::string_view text) {
  std::string out;
  for (const char c : base::Printable(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string Row(absl::string_view tag, const std::vector<std::string>& cells,
                bool bad = false) {
  std::string row = bad ? "<tr class=\"bad\">" : "<tr>";
  for (const std::string& cell : cells) {
    absl::StrAppend(&row, "<", tag, ">", Escape(cell), "</", tag, ">");
  }
  return row + "</tr>";
}

std::string RankText(const core::MemberSnapshot& member) {
  return member.rank.has_value() ? absl::StrCat(member.rank->value()) : "-";
}

std::string Members(std::vector<core::MemberSnapshot> members) {
  if (members.empty()) return "<p>No members.</p>";
  std::stable_sort(
      members.begin(), members.end(),
      [](const core::MemberSnapshot& a, const core::MemberSnapshot& b) {
        if (a.rank.has_value() != b.rank.has_value()) return a.rank.has_value();
        return a.rank.has_value() && *a.rank < *b.rank;
      });
  std::string table = "<div class=\"table\"><table>" +
                      Row("th", {"rank", "member", "host", "pid", "state",
                                 "last heard", "last progress", "debug"});
  for (size_t i = 0; i < std::min(members.size(), kRowsMax); ++i) {
    const core::MemberSnapshot& m = members[i];
    std::string state(core::MemberStateName(m.state));
    if (!m.cause.empty()) absl::StrAppend(&state, ": ", m.cause);
    absl::StrAppend(&table, Row("td",
                                {RankText(m), m.id.value(), m.registration.host,
                                 absl::StrCat(m.registration.pid), state,
                                 core::FormatDuration(m.heard_ago) + " ago",
                                 m.last_progress, m.registration.debug_address},
                                m.state != core::MemberState::kAlive &&
                                    m.state != core::MemberState::kLeft));
  }
  absl::StrAppend(&table, "</table></div>");
  if (members.size() > kRowsMax) {
    absl::StrAppend(&table, "<p>and ", members.size() - kRowsMax,
                    " more members</p>");
  }
  return table;
}

std::string MissingText(const core::BarrierSnapshot& barrier) {
  constexpr size_t kShownMax = 8;
  const size_t shown = std::min(barrier.missing.size(), kShownMax);
  std::string text;
  for (size_t i = 0; i < shown; ++i) {
    const core::MissingRank& m = barrier.missing[i];
    absl::StrAppend(&text, i == 0 ? "" : ", ", m.rank.value(), " (", m.host,
                    ")");
  }
  const int64_t missing = barrier.expected - barrier.arrived;
  const int64_t more = missing - static_cast<int64_t>(shown);
  if (more > 0) absl::StrAppend(&text, " and ", more, " more");
  return text;
}

std::string Barriers(const core::JobSnapshot& job) {
  const std::vector<core::BarrierSnapshot>& barriers = job.barriers;
  if (barriers.empty()) return "";
  std::string table =
      "<div class=\"table\"><table>" +
      Row("th", {"barrier", "group", "arrived", "open for", "missing ranks"});
  const size_t shown = std::min(barriers.size(), kRowsMax);
  for (size_t i = 0; i < shown; ++i) {
    const core::BarrierSnapshot& b = barriers[i];
    absl::StrAppend(
        &table, Row("td", {absl::StrCat(b.barrier, " #", b.instance), b.group,
                           absl::StrCat(b.arrived, " of ", b.expected),
                           core::FormatDuration(b.open_for), MissingText(b)}));
  }
  absl::StrAppend(&table, "</table></div>");
  const int64_t more = job.open_barriers - static_cast<int64_t>(shown);
  if (more > 0) absl::StrAppend(&table, "<p>and ", more, " more barriers</p>");
  return table;
}

// Whether the job had members and all of them are gone.
bool IsFinished(const core::JobSnapshot& job) {
  return job.generation != core::Generation() &&
         std::none_of(job.members.begin(), job.members.end(),
                      [](const core::MemberSnapshot& member) {
                        return member.state == core::MemberState::kAlive ||
                               member.state == core::MemberState::kDisconnected;
                      });
}

std::string GenerationText(const core::JobSnapshot& job) {
  if (job.generation == core::Generation()) return "";
  const bool runs = job.generation_running && !IsFinished(job);
  return absl::StrCat("generation ", job.generation.value(),
                      runs ? "" : " (over)", ", world size ", job.world_size,
                      ", ");
}

std::string JobText(const StatusPageInput::Job& entry) {
  const core::JobSnapshot& job = entry.state;
  std::string text = absl::StrCat(
      "<h2>job ", Escape(entry.name), "</h2><p>", GenerationText(job), job.keys,
      " keys, ", job.store_bytes, " bytes, ", job.queue_items, " queue items, ",
      job.waiters, " calls wait, ", std::llround(entry.operations_per_second),
      " calls per second");
  if (!job.generation_end.empty()) {
    absl::StrAppend(&text, "; generation ended by ",
                    Escape(job.generation_end));
  }
  if (!job.rendezvous_waiting.empty()) {
    absl::StrAppend(&text, "; ", Escape(job.rendezvous_waiting));
  }
  if (!job.rendezvous_closed.empty()) {
    absl::StrAppend(&text, "; rendezvous closed by ",
                    Escape(job.rendezvous_closed));
  }
  return absl::StrCat(text, "</p>", Members(job.members), Barriers(job));
}

std::string Coordinators(const FleetView& fleet) {
  std::map<std::string, int> shards;
  for (const FleetView::Shard& shard : fleet.shards) ++shards[shard.owner];
  std::string table =
      "<h2>coordinators</h2><div class=\"table\"><table>" +
      Row("th", {"address", "HTTP", "version", "shards of jobs", "state"});
  for (const FleetMember& member : fleet.members) {
    absl::StrAppend(&table,
                    Row("td",
                        {member.address, member.http_address, member.version,
                         absl::StrCat(shards[member.address], " of ", kShards),
                         member.draining ? "drains" : "in service"},
                        member.draining));
  }
  absl::StrAppend(&table, "</table></div>");
  if (shards[""] > 0) {
    absl::StrAppend(&table, "<p class=\"bad\">", shards[""],
                    " shards of jobs have no coordinator</p>");
  }
  return table;
}

}  // namespace

std::string RenderStatusPage(const StatusPageInput& input) {
  std::string page(kHead);
  absl::StrAppend(&page, "<p>version ", MUSTER_VERSION, ", up ",
                  core::FormatDuration(input.uptime), ", ", input.jobs.size(),
                  " jobs, ", input.sessions, " sessions",
                  input.draining ? ", <b class=\"bad\">draining</b>" : "",
                  " &middot; <a href=\"/metrics\">metrics</a></p>");
  if (input.fleet.has_value()) page += Coordinators(*input.fleet);
  for (const bool finished : {false, true}) {
    for (const StatusPageInput::Job& entry : input.jobs) {
      if (IsFinished(entry.state) == finished) page += JobText(entry);
    }
  }
  return page + "</body></html>\n";
}

}  // namespace muster::coordinator
