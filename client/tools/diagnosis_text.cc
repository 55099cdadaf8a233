// What a diagnosis says, for people and for programs.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/tools/ctl_text.h"
#include "client/tools/diagnosis.h"
#include "client/tools/places.h"

namespace muster::tools {
namespace {

constexpr size_t kRanksShown = 16;
constexpr size_t kCulpritsShown = 16;

// A line for each.
void AppendCulprits(const std::vector<Culprit>& culprits, std::string& text) {
  for (size_t i = 0; i < culprits.size(); ++i) {
    if (i == kCulpritsShown) {
      absl::StrAppend(&text, "  and ", culprits.size() - i, " more\n");
      break;
    }
    absl::StrAppend(&text, "  rank ", culprits[i].rank, " (",
                    Harmless(culprits[i].host), ", pid ", culprits[i].pid, ") ",
                    culprits[i].what, "\n");
  }
}

nlohmann::json Json(const std::vector<Culprit>& culprits) {
  nlohmann::json json = nlohmann::json::array();
  for (const Culprit& culprit : culprits) {
    json.push_back({{"rank", culprit.rank},
                    {"host", culprit.host},
                    {"pid", culprit.pid},
                    {"debug_address", culprit.debug_address},
                    {"state", culprit.state},
                    {"what", culprit.what}});
  }
  return json;
}

}  // namespace

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
  if (!diagnosis.silent.empty()) {
    absl::StrAppend(&text, "\nnothing is heard of\n");
    AppendCulprits(diagnosis.silent, text);
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
                         {"silent", Json(diagnosis.silent)},
                         {"also", diagnosis.also}};
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
