#include "client/tools/diagnose/recorders.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/tools/diagnose/diagnosis_rules.h"
#include "client/tools/diagnose/rank_progress.h"
#include "client/tools/diagnose/tool_text.h"

namespace muster::tools {
namespace {

using Json = nlohmann::json;

// The limit of nesting; a recorder has four levels.
constexpr int kDepthMax = 32;

std::string Text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::map<int, Json> Parse(const Recorders& recorders,
                          std::map<int, std::string>& missing) {
  std::map<int, Json> parsed;
  missing = recorders.missing;
  for (const auto& [rank, text] : recorders.by_rank) {
    // Writing deeply nested JSON would overflow the stack.
    bool deep = false;
    const auto shallow = [&deep](int depth, Json::parse_event_t, Json&) {
      deep |= depth > kDepthMax;
      return !deep;
    };
    Json json = Json::parse(text, shallow, /*allow_exceptions=*/false);
    if (!deep && json.is_object() && json.contains("entries") &&
        json["entries"].is_array()) {
      parsed[rank] = std::move(json);
    } else {
      missing[rank] = "what it sent is no flight recorder";
    }
  }
  return parsed;
}

int64_t Number(const Json& entry, const char* name) {
  const auto found = entry.find(name);
  return found != entry.end() && found->is_number_integer()
             ? found->get<int64_t>()
             : 0;
}

// In ns since 1970; 0: missing or out of bounds, so that sums and differences
// do not overflow.
int64_t Time(const Json& entry, const char* name) {
  constexpr int64_t kTimeMax = int64_t{1} << 62;
  const int64_t time = Number(entry, name);
  return time > 0 && time < kTimeMax ? time : 0;
}

std::string String(const Json& value) {
  return value.is_string() ? value.get<std::string>() : "";
}

std::string Name(const Json& entry) {
  return String(entry.value("profiling_name", Json()));
}

std::string Group(const Json& entry) {
  const Json group = entry.value("process_group", Json());
  return group.is_array() && !group.empty() ? String(group[0]) : "";
}

// No rank completes these before all ranks have entered.
bool Synchronises(const Json& entry) {
  const std::string name = Name(entry);
  for (const char* kind :
       {"all_reduce", "all_gather", "all_to_all", "barrier"}) {
    if (absl::StrContains(name, kind)) return true;
  }
  return absl::StrContains(name, "reduce_scatter");
}

// The end times of the synchronising collectives, by group and number.
using Ends = std::map<std::pair<std::string, int64_t>, int64_t>;

Ends FindEnds(const Json& recorder) {
  Ends ends;
  for (const Json& entry : recorder["entries"]) {
    if (!entry.is_object() || !Synchronises(entry)) continue;
    const int64_t end = Time(entry, "time_discovered_completed_ns");
    if (end == 0) continue;
    ends[{Group(entry), Number(entry, "collective_seq_id")}] = end;
  }
  return ends;
}

// A larger difference is not one of clocks.
constexpr int64_t kAheadMax = int64_t{1} << 60;

// Returns how far the first clock is ahead of the second in the median; nullopt
// if they have no collective in common.
std::optional<int64_t> Ahead(const Ends& one, const Ends& other) {
  std::vector<int64_t> differences;
  for (const auto& [collective, end] : one) {
    const auto same = other.find(collective);
    if (same != other.end()) differences.push_back(end - same->second);
  }
  if (differences.empty()) return std::nullopt;
  const auto middle =
      differences.begin() + static_cast<ptrdiff_t>(differences.size() / 2);
  std::nth_element(differences.begin(), middle, differences.end());
  return *middle;
}

// Returns how far each rank's clock is ahead of the lowest rank's, through
// other ranks if the two have no collective in common. Ranks that cannot be
// compared are not in it.
std::map<int, int64_t> ClocksAhead(const std::map<int, Json>& recorders) {
  std::map<int, int64_t> ahead;
  std::map<int, Ends> left;
  for (const auto& [rank, recorder] : recorders) {
    left[rank] = FindEnds(recorder);
  }
  if (left.empty()) return ahead;
  ahead[left.begin()->first] = 0;
  // Aligned ranks that were not compared with the rest yet.
  std::deque<std::pair<int, Ends>> aligned;
  aligned.emplace_back(left.begin()->first, std::move(left.begin()->second));
  left.erase(left.begin());
  for (; !aligned.empty(); aligned.pop_front()) {
    const auto& [reference, ends] = aligned.front();
    for (auto other = left.begin(); other != left.end();) {
      const auto difference = Ahead(other->second, ends);
      const int64_t sum = ahead[reference] + difference.value_or(0);
      if (!difference.has_value() || std::abs(sum) > kAheadMax) {
        ++other;
        continue;
      }
      ahead[other->first] = sum;
      aligned.emplace_back(other->first, std::move(other->second));
      other = left.erase(other);
    }
  }
  return ahead;
}

// A larger difference means different hosts with the same name.
constexpr int64_t kClockDifferenceMax = 1'000'000;

// Gives the ranks of each host one clock, relative to the lowest rank's.
void ShareClocks(const std::map<int, std::string>& hosts,
                 std::map<int, int64_t>& ahead) {
  if (ahead.empty()) return;
  std::map<std::string, std::vector<int64_t>> clocks;
  for (const auto& [rank, difference] : ahead) {
    const auto host = hosts.find(rank);
    if (host != hosts.end()) clocks[host->second].push_back(difference);
  }
  for (auto& [host, differences] : clocks) {
    std::sort(differences.begin(), differences.end());
  }
  for (auto& [rank, difference] : ahead) {
    const auto host = hosts.find(rank);
    if (host == hosts.end()) continue;
    const std::vector<int64_t>& all = clocks.at(host->second);
    if (all.back() - all.front() > kClockDifferenceMax) continue;
    difference = all[all.size() / 2];
  }
  const int64_t zero = ahead.begin()->second;
  for (auto& [rank, difference] : ahead) difference -= zero;
}

Json Event(const char* phase, int rank, int64_t track) {
  return {{"ph", phase}, {"pid", rank}, {"tid", track}};
}

Json NameEvent(const char* what, int rank, int64_t track,
               const std::string& name) {
  Json event = Event("M", rank, track);
  event["name"] = what;
  event["args"] = {{"name", name}};
  return event;
}

// The tracks of one rank. Events on one track must not overlap: each group has
// one track for its collectives, which run one after the other, and as many for
// sends and receives as run at a time.
class Tracks {
 public:
  // Appends an event to `names` that names a new track.
  int64_t Take(int rank, const Json& entry, int64_t begin, int64_t end,
               Json& names) {
    const bool peer = entry.value("is_p2p", Json()) == true;
    std::vector<Track>& tracks = tracks_[{Number(entry, "pg_id"), peer}];
    for (Track& track : tracks) {
      if (track.busy_until > begin) continue;
      track.busy_until = end;
      return track.number;
    }
    tracks.push_back({++last_, end});
    names.push_back(NameEvent(
        "thread_name", rank, last_,
        absl::StrCat(Group(entry), peer ? ": sends and receives" : "")));
    return last_;
  }

 private:
  struct Track {
    int64_t number = 0;
    int64_t busy_until = 0;
  };
  std::map<std::pair<int64_t, bool>, std::vector<Track>> tracks_;
  int64_t last_ = 0;
};

// Returns the calls that a rank has begun, by start.
std::vector<const Json*> FindBegun(const Json& recorder) {
  std::vector<const Json*> begun;
  for (const Json& entry : recorder["entries"]) {
    if (entry.is_object() && Time(entry, "time_discovered_started_ns") != 0) {
      begun.push_back(&entry);
    }
  }
  std::stable_sort(begun.begin(), begun.end(),
                   [](const Json* a, const Json* b) {
                     return Time(*a, "time_discovered_started_ns") <
                            Time(*b, "time_discovered_started_ns");
                   });
  return begun;
}

// A negative duration: the call still runs.
Json CallEvent(const Json& entry, int rank, int64_t track, int64_t begin,
               int64_t duration) {
  // A running call has only a begin event.
  Json event = Event(duration < 0 ? "B" : "X", rank, track);
  event["name"] = Name(entry);
  event["cat"] = Group(entry);
  event["ts"] = static_cast<double>(begin) / 1000;
  if (duration >= 0) event["dur"] = static_cast<double>(duration) / 1000;
  event["args"] = {{"collective_seq_id", Number(entry, "collective_seq_id")},
                   {"p2p_seq_id", Number(entry, "p2p_seq_id")},
                   {"input_sizes", entry.value("input_sizes", Json())},
                   {"input_dtypes", entry.value("input_dtypes", Json())},
                   {"state", entry.value("state", Json())}};
  return event;
}

constexpr size_t kRanksTold = 8;
constexpr char kVariable[] = "TORCH_FR_DUMP_TEMP_FILE";

// Says which file with its recorder the process has left.
std::string FileText(const v1::MemberInfo& member,
                     const std::string& dump_prefix,
                     const std::string& this_host) {
  if (dump_prefix.empty()) {
    return absl::StrCat("it has left no file, for which ", kVariable,
                        " is to be set");
  }
  const std::string path = absl::StrCat(dump_prefix, member.rank());
  if (member.host() != this_host) {
    return absl::StrCat("if it has written one, it is ", path, " on ",
                        member.host());
  }
  std::error_code error;
  return std::filesystem::exists(path, error)
             ? absl::StrCat("its recorder is in ", path)
             : absl::StrCat("it has not written ", path,
                            ", as one that is killed does not");
}

}  // namespace

std::string MergedJson(absl::string_view job, const Recorders& recorders) {
  std::map<int, std::string> missing;
  Json json = {{"job", std::string(job)},
               {"ranks", Json::object()},
               {"missing", Json::object()}};
  for (auto& [rank, recorder] : Parse(recorders, missing)) {
    json["ranks"][absl::StrCat(rank)] = std::move(recorder);
  }
  for (const auto& [rank, why] : missing) {
    json["missing"][absl::StrCat(rank)] = why;
  }
  return Text(json);
}

std::string TraceJson(absl::string_view job, const Recorders& recorders) {
  std::map<int, std::string> missing;
  const std::map<int, Json> parsed = Parse(recorders, missing);
  std::map<int, int64_t> ahead = ClocksAhead(parsed);
  ShareClocks(recorders.hosts, ahead);
  Json other = {{"job", std::string(job)}};
  // The start of the trace. Times are relative to it, because numbers since
  // 1970 would have too many digits for some readers.
  std::optional<int64_t> first;
  std::map<int, std::vector<const Json*>> begun;
  for (const auto& [rank, recorder] : parsed) {
    begun[rank] = FindBegun(recorder);
    if (begun[rank].empty()) continue;
    const auto shift = ahead.find(rank);
    if (shift == ahead.end()) {
      other[absl::StrCat("clock of rank ", rank)] =
          "not aligned: no collective in common";
    }
    const int64_t begin =
        Time(*begun[rank].front(), "time_discovered_started_ns") -
        (shift == ahead.end() ? 0 : shift->second);
    first = std::min(first.value_or(begin), begin);
  }
  Json events = Json::array();
  std::vector<Json> calls;
  for (const auto& [rank, entries] : begun) {
    const auto shift = ahead.find(rank);
    const int64_t zero =
        first.value_or(0) + (shift == ahead.end() ? 0 : shift->second);
    events.push_back(
        NameEvent("process_name", rank, 0, absl::StrCat("rank ", rank)));
    Tracks tracks;
    for (const Json* const entry : entries) {
      const int64_t begin = Time(*entry, "time_discovered_started_ns");
      const int64_t end = Time(*entry, "time_discovered_completed_ns");
      const int64_t track = tracks.Take(
          rank, *entry, begin,
          end == 0 ? std::numeric_limits<int64_t>::max() : end, events);
      calls.push_back(
          CallEvent(*entry, rank, track, begin - zero,
                    end == 0 ? -1 : std::max<int64_t>(end - begin, 0)));
    }
  }
  std::stable_sort(calls.begin(), calls.end(),
                   [](const Json& a, const Json& b) {
                     return a["ts"].get<double>() < b["ts"].get<double>();
                   });
  for (Json& call : calls) events.push_back(std::move(call));
  if (first.has_value()) other["begin_unix_ns"] = absl::StrCat(*first);
  for (const auto& [rank, why] : missing) {
    other[absl::StrCat("missing rank ", rank)] = why;
  }
  return Text({{"traceEvents", std::move(events)},
               {"displayTimeUnit", "ms"},
               {"otherData", std::move(other)}});
}

Status WriteTraces(const std::string& folder, absl::string_view job,
                   const Recorders& recorders) {
  // If this fails, writing the files fails with an error.
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  for (const auto& [rank, text] : recorders.by_rank) {
    Recorders alone;
    alone.by_rank[rank] = text;
    Status status = WriteFile(absl::StrCat(folder, "/rank-", rank, ".json"),
                              TraceJson(job, alone));
    if (!status.ok()) return status;
  }
  return OkStatus();
}

std::string DumpPrefixIn(const std::string& environment_json) {
  const Json json = Json::parse(environment_json, nullptr, false);
  if (!json.is_object()) return "";
  const auto found = json.find(kVariable);
  return found != json.end() && found->is_string() ? found->get<std::string>()
                                                   : "";
}

std::string WhyNoRecorder(const v1::MemberInfo& member, absl::string_view why,
                          const std::string& dump_prefix,
                          const std::string& this_host) {
  const bool gone = IsGone(member);
  if (!gone && dump_prefix.empty()) return std::string(why);
  return absl::StrCat(gone ? GoneText(member) : std::string(why), "; ",
                      FileText(member, dump_prefix, this_host));
}

std::string MissingText(const std::map<int, std::string>& missing,
                        size_t ranks) {
  if (missing.empty()) return "";
  std::string text = absl::StrCat("musterctl: ", missing.size(), " of ", ranks,
                                  " ranks did not answer\n");
  size_t told = 0;
  for (const auto& [rank, why] : missing) {
    if (told++ == kRanksTold) {
      absl::StrAppend(&text, "  and ", missing.size() - kRanksTold, " more\n");
      break;
    }
    absl::StrAppend(&text, "  rank ", rank, ": ", base::Printable(why), "\n");
  }
  return text;
}

Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return OkStatus();
  return UnavailableError(absl::StrCat("cannot write ", base::Quote(path)));
}

}  // namespace muster::tools
