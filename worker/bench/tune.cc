#include "worker/bench/tune.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace muster::worker::bench {
namespace {

using Names = std::vector<std::string>;

// How many times as long the algorithm of the size before must take for another
// one to have a row.
constexpr double kClearly = 1.1;

Names OfGloo(const Operation& operation, bool) {
  switch (operation.verb) {
    case Operation::Verb::kAllReduce:
      return {"doubling", "pairwise", "ring"};
    case Operation::Verb::kBroadcast:
      return {"tree", "chain"};
    default:
      return {};
  }
}

Names OfShm(const Operation& operation, bool is_symmetric) {
  const char* const direct = is_symmetric ? "symmetric" : "single_copy";
  switch (operation.verb) {
    case Operation::Verb::kAllReduce:
      return {"one_round", "by_parts", direct};
    case Operation::Verb::kSendRecv:
    case Operation::Verb::kBarrier:
      return {};
    case Operation::Verb::kAllToAll:
    case Operation::Verb::kAllToAllSingle:
      // In symmetric memory it goes by what its first round shows, not by the
      // table.
      if (is_symmetric) return {};
      return {"staged", direct};
    default:
      return {"staged", direct};
  }
}

constexpr std::pair<const char*, Tunable> kTunables[] = {
    {"gloo", {"MUSTER_GLOO_ALGORITHM", &OfGloo}},
    {"shm", {"MUSTER_SHM_ALGORITHM", &OfShm}},
};

// "kAllReduce" of "all_reduce".
std::string Enumerator(absl::string_view name) {
  std::string text = "k";
  for (const absl::string_view word : absl::StrSplit(name, '_')) {
    text += absl::ascii_toupper(static_cast<unsigned char>(word[0]));
    absl::StrAppend(&text, word.substr(1));
  }
  return text;
}

}  // namespace

const Tunable* FindTunable(const std::string& backend) {
  for (const auto& [name, tunable] : kTunables) {
    if (name == backend) return &tunable;
  }
  return nullptr;
}

std::string FieldsOf(const std::string& backend, int ranks, int processors,
                     bool is_symmetric) {
  if (backend == "gloo") return absl::StrCat(ranks);
  return absl::StrCat("Memory::", is_symmetric ? "kSymmetric" : "kOrdinary",
                      ", ", ranks, ", ", ranks > processors ? "true" : "false");
}

std::string TableRows(const Operation& operation, const std::string& fields,
                      std::vector<TuneSample> samples) {
  // By size and algorithm, the least time.
  std::map<int64_t, std::map<std::string, double>> times;
  for (const TuneSample& sample : samples) {
    double& time = times[sample.bytes]
                       .emplace(sample.algorithm, sample.time_us)
                       .first->second;
    time = std::min(time, sample.time_us);
  }
  std::map<int64_t, std::string> best;
  std::string last;
  for (const auto& [bytes, by_algorithm] : times) {
    const auto fastest = std::min_element(
        by_algorithm.begin(), by_algorithm.end(),
        [](const auto& a, const auto& b) { return a.second < b.second; });
    const auto kept = by_algorithm.find(last);
    if (kept == by_algorithm.end() ||
        kept->second > kClearly * fastest->second) {
      last = fastest->first;
    }
    best[bytes] = last;
  }
  std::string rows;
  for (auto size = best.begin(); size != best.end(); ++size) {
    const auto next = std::next(size);
    const std::string& name = size->second;
    // One row for neighbours that are the same.
    if (next != best.end() && next->second == name) continue;
    absl::StrAppend(
        &rows, "    {CollectiveKind::", Enumerator(operation.name), ", ",
        fields, ", ",
        next == best.end() ? "kAnyBytes" : absl::StrCat(size->first),
        ", Algorithm::", Enumerator(name), "},\n");
  }
  return rows;
}

absl::StatusOr<std::vector<TuneSample>> ReadSamples(const std::string& file) {
  std::ifstream stream(file);
  const nlohmann::json rows =
      nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!rows.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat("no figures in ", file));
  }
  std::vector<TuneSample> samples;
  for (const nlohmann::json& row : rows) {
    // Of a peer, or a rank's memory.
    if (row.value("algorithm", "") == "") continue;
    samples.push_back({.bytes = row.at("bytes"),
                       .algorithm = row.at("algorithm"),
                       .time_us = row.at("time_us").at("median")});
  }
  return samples;
}

}  // namespace muster::worker::bench
