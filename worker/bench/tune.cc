#include "worker/bench/tune.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace muster::worker::bench {
namespace {

struct Algorithm {
  const char* operation;
  const char* kind;
  const char* name;
  const char* enumerator;
};

constexpr Algorithm kAlgorithms[] = {
    {"all_reduce", "kAllReduce", "doubling", "kDoubling"},
    {"all_reduce", "kAllReduce", "pairwise", "kPairwise"},
    {"all_reduce", "kAllReduce", "ring", "kRing"},
    {"broadcast", "kBroadcast", "tree", "kTree"},
    {"broadcast", "kBroadcast", "chain", "kChain"},
};

const Algorithm* Find(const Operation& operation, const std::string& name) {
  for (const Algorithm& algorithm : kAlgorithms) {
    if (operation.name == std::string(algorithm.operation) &&
        name == algorithm.name) {
      return &algorithm;
    }
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> AlgorithmsOf(const Operation& operation) {
  std::vector<std::string> names;
  for (const Algorithm& algorithm : kAlgorithms) {
    if (operation.name == std::string(algorithm.operation)) {
      names.emplace_back(algorithm.name);
    }
  }
  return names;
}

std::string TableRows(const Operation& operation, int ranks,
                      std::vector<TuneSample> samples) {
  // The fastest of each size; of equal ones the first.
  std::map<int64_t, TuneSample> fastest;
  for (const TuneSample& sample : samples) {
    const auto [found, is_new] = fastest.emplace(sample.bytes, sample);
    if (!is_new && sample.time_us < found->second.time_us) {
      found->second = sample;
    }
  }
  std::string rows;
  for (auto size = fastest.begin(); size != fastest.end(); ++size) {
    const auto next = std::next(size);
    const std::string& name = size->second.algorithm;
    // One row for neighbours that are the same.
    if (next != fastest.end() && next->second.algorithm == name) continue;
    const Algorithm* const algorithm = Find(operation, name);
    if (algorithm == nullptr) continue;
    absl::StrAppend(
        &rows, "    {CollectiveKind::", algorithm->kind, ", ", ranks, ", ",
        next == fastest.end() ? "kAnyBytes" : absl::StrCat(size->first),
        ", Algorithm::", algorithm->enumerator, "},\n");
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
    samples.push_back({.bytes = row.at("bytes"),
                       .algorithm = row.at("algorithm"),
                       .time_us = row.at("time_us").at("median")});
  }
  return samples;
}

}  // namespace muster::worker::bench
