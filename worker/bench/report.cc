#include "worker/bench/report.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace muster::worker::bench {
namespace {

// In 10^9 bytes per second.
double AlgorithmBandwidth(const Row& row, const Figures& figures) {
  const auto bytes = static_cast<double>(row.measured.Bytes(row.world_size));
  return bytes / figures.Median() / 1e3;
}

double BusBandwidth(const Row& row, const Figures& figures) {
  return AlgorithmBandwidth(row, figures) *
         BusFactor(*row.measured.operation, row.world_size);
}

std::string RedopName(const Case& measured) {
  return measured.operation->reduces
             ? std::string(ReduceOpName(measured.reduce_op))
             : "none";
}

// Returns "shm/one_round", without unknown parts.
std::string RanBy(const Figures& figures) {
  return absl::StrCat(figures.backend, figures.algorithm.empty() ? "" : "/",
                      figures.algorithm);
}

std::string Mebibytes(int64_t bytes) {
  if (bytes < 0) return "N/A";
  return absl::StrFormat("%.1f", static_cast<double>(bytes) / (1 << 20));
}

nlohmann::json BytesOrNull(int64_t bytes) {
  return bytes < 0 ? nlohmann::json() : nlohmann::json(bytes);
}

std::string Columns(const std::vector<Row>& rows) {
  if (rows.empty()) {
    return absl::StrFormat(" %9s %7s %7s %6s %24s", "N/A", "N/A", "N/A", "N/A",
                           "N/A");
  }
  const Row& row = rows.front();
  const Figures& own = row.figures.front();
  return absl::StrFormat(" %9.1f %7.2f %7.2f %6s %24s", own.Median(),
                         AlgorithmBandwidth(row, own), BusBandwidth(row, own),
                         own.wrong < 0 ? "N/A" : absl::StrCat(own.wrong),
                         RanBy(own));
}

}  // namespace

std::string HeadText(const std::vector<std::string>& peers,
                     bool has_timestamps) {
  std::string names;
  std::string columns;
  std::string units;
  for (const std::string& peer : peers) {
    absl::StrAppendFormat(&names, " %17s", peer.substr(0, 17));
    absl::StrAppendFormat(&columns, " %9s %7s", "time", "ratio");
    absl::StrAppendFormat(&units, " %9s %7s", "(us)", "");
  }
  if (has_timestamps) columns += " timestamp";
  const std::string measured = absl::StrFormat(
      " %9s %7s %7s %6s %24s", "time", "algbw", "busbw", "#wrong", "ran by");
  const std::string measured_units = absl::StrFormat(
      " %9s %7s %7s %6s %24s", "(us)", "(GB/s)", "(GB/s)", "", "");
  return absl::StrCat(
      absl::StrFormat("#%53s %57s %57s", "", "out-of-place", "in-place"), names,
      "\n",
      absl::StrFormat("#%11s %11s %10s %10s %6s", "size", "count", "type",
                      "redop", "root"),
      measured, measured, columns, "\n",
      absl::StrFormat("#%11s %11s %10s %10s %6s", "(B)", "(elements)", "", "",
                      ""),
      measured_units, measured_units, units, "\n");
}

std::string LineText(const Line& line, absl::string_view timestamp) {
  // For the peers the first measurement counts.
  const Row& row =
      line.out_of_place.empty() ? line.in_place[0] : line.out_of_place[0];
  const Case& measured = row.measured;
  std::string text = absl::StrFormat(
      "%12d %11d %10s %10s %6d%s%s", measured.Bytes(row.world_size),
      measured.Elements(row.world_size),
      std::string(DataTypeName(measured.data_type)), RedopName(measured),
      measured.operation->has_root ? measured.root : -1,
      Columns(line.out_of_place), Columns(line.in_place));
  for (size_t i = 1; i < row.figures.size(); ++i) {
    if (row.figures[i].cycles_us.empty()) {
      absl::StrAppendFormat(&text, " %9s %7s", "N/A", "");
    } else {
      absl::StrAppendFormat(&text, " %9.1f %7.2f", row.figures[i].Median(),
                            row.RatioTo(i));
    }
  }
  if (!timestamp.empty()) absl::StrAppend(&text, " ", timestamp);
  text += '\n';
  return text;
}

std::string MemoryText(const std::vector<MemoryUse>& ranks) {
  std::string text =
      absl::StrFormat("#%11s %11s %11s\n#%11s %11s %11s\n", "rank",
                      "most memory", "shared", "", "(MiB)", "(MiB)");
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    absl::StrAppendFormat(&text, "#%11d %11s %11s\n", rank,
                          Mebibytes(ranks[rank].resident_max_bytes),
                          Mebibytes(ranks[rank].shared_bytes));
  }
  return text;
}

std::string JsonText(const std::vector<Row>& rows,
                     const std::vector<MemoryUse>& memory) {
  nlohmann::json list = nlohmann::json::array();
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.figures.size(); ++i) {
      const Figures& figures = row.figures[i];
      if (figures.cycles_us.empty()) continue;
      nlohmann::json entry = {
          {"op", row.measured.operation->name},
          {"backend", figures.backend},
          {"device", std::string(DeviceTypeName(row.device))},
          {"algorithm", figures.algorithm},
          {"ranks", row.world_size},
          {"datatype", std::string(DataTypeName(row.measured.data_type))},
          {"redop", RedopName(row.measured)},
          {"bytes", row.measured.Bytes(row.world_size)},
          {"in_place", row.measured.in_place},
          {"time_us",
           {{"min", figures.Min()},
            {"median", figures.Median()},
            {"max", figures.Max()}}},
          {"algbw_gbps", AlgorithmBandwidth(row, figures)},
          {"busbw_gbps", BusBandwidth(row, figures)},
          {"wrong", figures.wrong},
      };
      if (i > 0) entry["ratio"] = row.RatioTo(i);
      list.push_back(std::move(entry));
    }
  }
  for (size_t rank = 0; rank < memory.size(); ++rank) {
    list.push_back(
        {{"rank", rank},
         {"resident_max_bytes", BytesOrNull(memory[rank].resident_max_bytes)},
         {"shared_bytes", BytesOrNull(memory[rank].shared_bytes)}});
  }
  return list.dump(1) + "\n";
}

}  // namespace muster::worker::bench
