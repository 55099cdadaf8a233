// What a diagnosis says, for people and for programs.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "client/tools/diagnose/tool_text.h"
#include "client/tools/diagnose/diagnosis.h"
#include "client/tools/diagnose/places.h"

namespace muster::tools {
namespace {

constexpr size_t kRanksShown = 16;
constexpr size_t kCulpritsShown = 16;

// "rank 2 (host-b, pid 7)", as far as it is known.
std::string Who(int rank, const std::string& host, int64_t pid) {
  std::string text =
      rank < 0 ? std::string("no rank") : absl::StrCat("rank ", rank);
  if (host.empty()) return text;
  absl::StrAppend(&text, " (", base::Printable(host));
  if (pid != 0) absl::StrAppend(&text, ", pid ", pid);
  return text + ")";
}

// A line for each.
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
