#include "client/tools/recorders.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster::tools {
namespace {

using Json = nlohmann::json;

// Of what a recorder holds; it has four.
constexpr int kDepthMax = 32;

std::string Text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::map<int, Json> Parse(const Recorders& recorders,
                          std::map<int, std::string>& missing) {
  std::map<int, Json> parsed;
  missing = recorders.missing;
  for (const auto& [rank, text] : recorders.by_rank) {
    // Writing what is nested without end would end this program.
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

// Nobody comes out of these before everybody is in it.
bool Synchronises(const Json& entry) {
  const std::string name = Name(entry);
  for (const char* kind :
       {"all_reduce", "all_gather", "all_to_all", "barrier"}) {
    if (absl::StrContains(name, kind)) return true;
  }
  return absl::StrContains(name, "reduce_scatter");
}

// When the collectives that synchronise ended, by group and number.
std::map<std::pair<std::string, int64_t>, int64_t> Ends(const Json& recorder) {
  std::map<std::pair<std::string, int64_t>, int64_t> ends;
  for (const Json& entry : recorder["entries"]) {
    if (!entry.is_object() || !Synchronises(entry)) continue;
    const int64_t end = Number(entry, "time_discovered_completed_ns");
    if (end == 0) continue;
    ends[{Group(entry), Number(entry, "collective_seq_id")}] = end;
  }
  return ends;
}

// How far the clock of `recorder` is ahead of that of `reference`.
int64_t Ahead(const Json& recorder, const Json& reference) {
  const auto ends = Ends(reference);
  std::vector<int64_t> differences;
  for (const auto& [collective, end] : Ends(recorder)) {
    const auto same = ends.find(collective);
    if (same != ends.end()) differences.push_back(end - same->second);
  }
  if (differences.empty()) return 0;
  const auto middle =
      differences.begin() + static_cast<ptrdiff_t>(differences.size() / 2);
  std::nth_element(differences.begin(), middle, differences.end());
  return *middle;
}

Json Event(const char* phase, int rank, int64_t track) {
  return {{"ph", phase}, {"pid", rank}, {"tid", track}};
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
  Json events = Json::array();
  for (const auto& [rank, recorder] : parsed) {
    const int64_t ahead = Ahead(recorder, parsed.begin()->second);
    Json process = Event("M", rank, 0);
    process["name"] = "process_name";
    process["args"] = {{"name", absl::StrCat("rank ", rank)}};
    events.push_back(std::move(process));
    std::set<int64_t> tracks;
    for (const Json& entry : recorder["entries"]) {
      if (!entry.is_object()) continue;
      const int64_t begin = Number(entry, "time_discovered_started_ns");
      if (begin == 0) continue;
      const int64_t end = Number(entry, "time_discovered_completed_ns");
      const int64_t group = Number(entry, "pg_id");
      if (tracks.insert(group).second) {
        Json track = Event("M", rank, group);
        track["name"] = "thread_name";
        track["args"] = {{"name", Group(entry)}};
        events.push_back(std::move(track));
      }
      // One that still runs has a beginning alone.
      Json event = Event(end == 0 ? "B" : "X", rank, group);
      event["name"] = Name(entry);
      event["cat"] = Group(entry);
      event["ts"] = static_cast<double>(begin - ahead) / 1000;
      if (end != 0) event["dur"] = static_cast<double>(end - begin) / 1000;
      event["args"] = {
          {"collective_seq_id", Number(entry, "collective_seq_id")},
          {"p2p_seq_id", Number(entry, "p2p_seq_id")},
          {"input_sizes", entry.value("input_sizes", Json())},
          {"input_dtypes", entry.value("input_dtypes", Json())},
          {"state", entry.value("state", Json())}};
      events.push_back(std::move(event));
    }
  }
  Json json = {{"traceEvents", std::move(events)},
               {"displayTimeUnit", "ms"},
               {"otherData", {{"job", std::string(job)}}}};
  for (const auto& [rank, why] : missing) {
    json["otherData"][absl::StrCat("missing rank ", rank)] = why;
  }
  return Text(json);
}

}  // namespace muster::tools
