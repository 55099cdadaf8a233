#include "worker/bench/tune.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "muster/base/status.h"

namespace muster::worker::bench {
namespace {

using Names = std::vector<std::string>;

// An algorithm gets a row if the algorithm of the size before takes at least
// this many times as long.
constexpr double kClearly = 1.1;

// MUSTER_TUNE_FILE has no row with another algorithm than doubling for a
// smaller all_reduce on connections: Tuning::ParseRow refuses it.
constexpr int64_t kDoublingBytesMax = 32 << 10;

Names OfGloo(const Operation& operation, bool) {
  const absl::string_view name = operation.name;
  if (name == "all_reduce") return {"doubling", "pairwise", "ring"};
  if (name == "broadcast") return {"tree", "chain"};
  return {};
}

Names OfShm(const Operation& operation, bool is_symmetric) {
  const char* const direct = is_symmetric ? "symmetric" : "single_copy";
  if (absl::string_view(operation.name) == "all_reduce") {
    return {"one_round", "by_parts", direct};
  }
  switch (operation.flow) {
    case Operation::Flow::kRing:
    case Operation::Flow::kNone:
      return {};
    case Operation::Flow::kExchange:
      // In symmetric memory its first round selects the algorithm, not the
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

// Returns the fields of a row between the operation and the sizes.
std::string FormatFields(const TuneSetting& setting) {
  if (setting.backend == "gloo") {
    return absl::StrCat("connections ", setting.ranks, " any");
  }
  return absl::StrCat(
      setting.is_symmetric ? "symmetric_memory " : "shared_memory ",
      setting.ranks, setting.ranks > setting.processors ? " yes" : " no");
}

// Consecutive sizes with the same fastest algorithm.
struct Range {
  int64_t bytes_min = 0;
  int64_t bytes_max = 0;
  std::string algorithm;
};

std::vector<Range> BestRanges(const std::vector<TuneSample>& samples) {
  // The minimum time by size and algorithm.
  std::map<int64_t, std::map<std::string, double>> times;
  for (const TuneSample& sample : samples) {
    double& time = times[sample.bytes]
                       .emplace(sample.algorithm, sample.time_us)
                       .first->second;
    time = std::min(time, sample.time_us);
  }
  std::vector<Range> ranges;
  for (const auto& [bytes, by_algorithm] : times) {
    const auto fastest = std::min_element(
        by_algorithm.begin(), by_algorithm.end(),
        [](const auto& a, const auto& b) { return a.second < b.second; });
    const auto kept = ranges.empty()
                          ? by_algorithm.end()
                          : by_algorithm.find(ranges.back().algorithm);
    if (kept == by_algorithm.end() ||
        kept->second > kClearly * fastest->second) {
      ranges.push_back(
          {.bytes_min = ranges.empty() ? bytes : ranges.back().bytes_max + 1,
           .algorithm = fastest->first});
    }
    ranges.back().bytes_max = bytes;
  }
  return ranges;
}

}  // namespace

const Tunable* FindTunable(const std::string& backend) {
  for (const auto& [name, tunable] : kTunables) {
    if (name == backend) return &tunable;
  }
  return nullptr;
}

std::string TableRows(const Operation& operation, const TuneSetting& setting,
                      std::vector<TuneSample> samples) {
  const bool must_double = setting.backend == "gloo" &&
                           absl::string_view(operation.name) == "all_reduce";
  if (must_double) {
    std::erase_if(samples, [](const TuneSample& sample) {
      return sample.bytes <= kDoublingBytesMax &&
             sample.algorithm != "doubling";
    });
  }
  std::string rows;
  for (Range& range : BestRanges(samples)) {
    if (must_double && range.algorithm != "doubling") {
      range.bytes_min = std::max(range.bytes_min, kDoublingBytesMax + 1);
    }
    absl::StrAppend(&rows, operation.name, " ", FormatFields(setting), " ",
                    range.bytes_min, " ", range.bytes_max, " ", range.algorithm,
                    "\n");
  }
  return rows;
}

StatusOr<std::vector<TuneSample>> ReadSamples(const std::string& file,
                                              const std::string& backend) {
  std::ifstream stream(file);
  const nlohmann::json rows =
      nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!rows.is_array()) {
    return InvalidArgumentError(absl::StrCat("no figures in ", file));
  }
  std::vector<TuneSample> samples;
  for (const nlohmann::json& row : rows) {
    // Skips rows of peers and of ranks' memory.
    if (row.value("algorithm", "") == "") continue;
    if (const std::string ran = row.value("backend", ""); ran != backend) {
      return FailedPreconditionError(
          absl::StrCat("the group ran by ", ran, " and not by ", backend,
                       ": there is nothing to tune"));
    }
    samples.push_back({.bytes = row.at("bytes"),
                       .algorithm = row.at("algorithm"),
                       .time_us = row.at("time_us").at("median")});
  }
  return samples;
}

}  // namespace muster::worker::bench
