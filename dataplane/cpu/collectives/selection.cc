#include "dataplane/cpu/collectives/selection.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/text.h"
#include "dataplane/cpu/collectives/exchange.h"
#include "glog/logging.h"

namespace muster::dataplane::cpu {
namespace {

constexpr int kAnyRanks = std::numeric_limits<int>::max();
constexpr size_t kAnyBytes = std::numeric_limits<size_t>::max();
constexpr std::optional<bool> kAnyCrowd = std::nullopt;
constexpr bool kFastReads = true;

constexpr char kTuneVariable[] = "MUSTER_TUNE_FILE";
// The first line of its file. Change the number with the format, here and in
// worker/bench/tune.h.
constexpr absl::string_view kTuneHeader = "muster-tune 1";

// The first matching row counts.
struct Row {
  // Also its other forms (CollectiveTraits::list_form). nullopt: all kinds.
  std::optional<CollectiveKind> kind;
  Medium medium;
  int ranks_max;
  std::optional<bool> is_crowded;
  size_t bytes_max;
  Algorithm algorithm;
  // The row is only for hosts on which reads are fast.
  bool needs_fast_reads = false;
};

constexpr Row kTable[] = {
    {CollectiveKind::kAllReduce, Medium::kConnections, kAnyRanks, kAnyCrowd,
     32 << 10, Algorithm::kDoubling},
    {CollectiveKind::kAllReduce, Medium::kConnections, kAnyRanks, kAnyCrowd,
     1 << 20, Algorithm::kPairwise},
    {CollectiveKind::kAllReduce, Medium::kConnections, kAnyRanks, kAnyCrowd,
     kAnyBytes, Algorithm::kRing},
    {CollectiveKind::kBroadcast, Medium::kConnections, kAnyRanks, kAnyCrowd,
     1 << 20, Algorithm::kTree},
    {CollectiveKind::kBroadcast, Medium::kConnections, kAnyRanks, kAnyCrowd,
     kAnyBytes, Algorithm::kChain},

    {CollectiveKind::kAllReduce, Medium::kSharedMemory, 8, true, 16 << 10,
     Algorithm::kOneRound},
    {CollectiveKind::kAllReduce, Medium::kSharedMemory, kAnyRanks, true,
     8 << 10, Algorithm::kOneRound},
    {CollectiveKind::kAllReduce, Medium::kSharedMemory, 4, false, 4 << 10,
     Algorithm::kOneRound},
    {CollectiveKind::kAllReduce, Medium::kSharedMemory, 8, false, 1 << 10,
     Algorithm::kOneRound},
    {CollectiveKind::kAllReduce, Medium::kSharedMemory, kAnyRanks, false, 512,
     Algorithm::kOneRound},
    {CollectiveKind::kAllReduce, Medium::kSharedMemory, kAnyRanks, kAnyCrowd,
     kAnyBytes, Algorithm::kByParts},
    // In a scatter one rank writes everything, and the others wait for each
    // piece.
    {CollectiveKind::kScatter, Medium::kSharedMemory, 2, kAnyCrowd, kAnyBytes,
     Algorithm::kStaged},
    {CollectiveKind::kScatter, Medium::kSharedMemory, kAnyRanks, false, 1 << 20,
     Algorithm::kStaged},
    {CollectiveKind::kScatter, Medium::kSharedMemory, kAnyRanks, false,
     kAnyBytes, Algorithm::kSingleCopy},
    {CollectiveKind::kScatter, Medium::kSharedMemory, 4, true, 2 << 20,
     Algorithm::kStaged},
    {CollectiveKind::kScatter, Medium::kSharedMemory, kAnyRanks, true,
     512 << 10, Algorithm::kStaged},
    {CollectiveKind::kScatter, Medium::kSharedMemory, kAnyRanks, true,
     kAnyBytes, Algorithm::kSingleCopy},
    // Reading takes one copy instead of staging's two, but the system must find
    // the pages.
    {CollectiveKind::kAllToAll, Medium::kSharedMemory, 4, kAnyCrowd, 128 << 10,
     Algorithm::kStaged},
    {CollectiveKind::kAllToAll, Medium::kSharedMemory, 4, kAnyCrowd, kAnyBytes,
     Algorithm::kSingleCopy, kFastReads},
    {CollectiveKind::kAllToAll, Medium::kSharedMemory, 4, false, kAnyBytes,
     Algorithm::kStaged},
    {CollectiveKind::kAllToAll, Medium::kSharedMemory, kAnyRanks, false,
     512 << 10, Algorithm::kStaged},
    {CollectiveKind::kAllToAll, Medium::kSharedMemory, 8, true, kAnyBytes,
     Algorithm::kStaged},
    {CollectiveKind::kAllToAll, Medium::kSharedMemory, kAnyRanks, true, 2 << 20,
     Algorithm::kStaged},
    {CollectiveKind::kAllToAll, Medium::kSharedMemory, kAnyRanks, kAnyCrowd,
     kAnyBytes, Algorithm::kSingleCopy},
    {CollectiveKind::kAllGather, Medium::kSharedMemory, 2, false, 128 << 10,
     Algorithm::kStaged},
    {CollectiveKind::kAllGather, Medium::kSharedMemory, 2, false, kAnyBytes,
     Algorithm::kSingleCopy, kFastReads},
    {CollectiveKind::kAllGather, Medium::kSharedMemory, 2, false, kAnyBytes,
     Algorithm::kStaged},
    {CollectiveKind::kAllGather, Medium::kSharedMemory, 4, false, 512 << 10,
     Algorithm::kStaged},
    {CollectiveKind::kAllGather, Medium::kSharedMemory, 4, false, kAnyBytes,
     Algorithm::kSingleCopy},
    {CollectiveKind::kReduceScatter, Medium::kSharedMemory, 2, false, kAnyBytes,
     Algorithm::kStaged},
    {CollectiveKind::kReduceScatter, Medium::kSharedMemory, kAnyRanks, false,
     2 << 20, Algorithm::kStaged},
    {CollectiveKind::kReduceScatter, Medium::kSharedMemory, kAnyRanks, false,
     kAnyBytes, Algorithm::kSingleCopy},
    {std::nullopt, Medium::kSharedMemory, kAnyRanks, kAnyCrowd, kAnyBytes,
     Algorithm::kStaged},

    {CollectiveKind::kAllReduce, Medium::kSymmetricMemory, kAnyRanks, true,
     2 << 10, Algorithm::kOneRound},
    {CollectiveKind::kAllReduce, Medium::kSymmetricMemory, kAnyRanks, kAnyCrowd,
     512, Algorithm::kOneRound},
    {CollectiveKind::kAllReduce, Medium::kSymmetricMemory, kAnyRanks, kAnyCrowd,
     kAnyBytes, Algorithm::kSymmetric},
    {CollectiveKind::kAllGather, Medium::kSymmetricMemory, kAnyRanks, true,
     128 << 10, Algorithm::kStaged},
    {CollectiveKind::kGather, Medium::kSymmetricMemory, kAnyRanks, true,
     256 << 10, Algorithm::kStaged},
    {CollectiveKind::kGather, Medium::kSymmetricMemory, kAnyRanks, kAnyCrowd,
     32 << 10, Algorithm::kStaged},
    // The sizes are not known here; all_to_all.cc checks them.
    {CollectiveKind::kAllToAll, Medium::kSymmetricMemory, kAnyRanks, kAnyCrowd,
     kAnyBytes, Algorithm::kSymmetric},
    {std::nullopt, Medium::kSymmetricMemory, kAnyRanks, true, 32 << 10,
     Algorithm::kStaged},
    {std::nullopt, Medium::kSymmetricMemory, kAnyRanks, kAnyCrowd, 16 << 10,
     Algorithm::kStaged},
    {std::nullopt, Medium::kSymmetricMemory, kAnyRanks, kAnyCrowd, kAnyBytes,
     Algorithm::kSymmetric},
};

// Whether `algorithm` goes through `medium`.
bool GoesThrough(Medium medium, Algorithm algorithm) {
  return (medium == Medium::kConnections) == (algorithm < Algorithm::kStaged);
}

bool Has(CollectiveKind kind, Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kFastest:
      return false;
    case Algorithm::kDoubling:
    case Algorithm::kPairwise:
    case Algorithm::kRing:
    case Algorithm::kOneRound:
    case Algorithm::kByParts:
      return kind == CollectiveKind::kAllReduce;
    case Algorithm::kTree:
    case Algorithm::kChain:
      return kind == CollectiveKind::kBroadcast;
    case Algorithm::kStaged:
      return kind != CollectiveKind::kAllReduce;
    case Algorithm::kSingleCopy:
    case Algorithm::kSymmetric:
      return kind != CollectiveKind::kBarrier;
  }
  return false;
}

constexpr absl::string_view kMediumNames[] = {"connections", "shared_memory",
                                              "symmetric_memory"};

// Whether a collective of `kind` may run `algorithm` in `medium`.
bool IsPossible(CollectiveKind kind, Medium medium, Algorithm algorithm) {
  return Has(kind, algorithm) && GoesThrough(medium, algorithm) &&
         (algorithm != Algorithm::kSymmetric ||
          medium == Medium::kSymmetricMemory);
}

StatusOr<Tuning> LoadTuning() {
  const char* const file = std::getenv(kTuneVariable);
  if (file == nullptr || *file == '\0') return Tuning();
  std::ifstream stream(file);
  if (!stream) {
    return InvalidArgumentError(
        absl::StrCat("environment variable ", kTuneVariable, ": cannot open ",
                     base::Quote(file), ": ", std::strerror(errno)));
  }
  return Tuning::Parse(std::string(std::istreambuf_iterator<char>(stream), {}),
                       file);
}

}  // namespace

StatusOr<Tuning::Row> Tuning::ParseRow(absl::string_view line) {
  const std::vector<absl::string_view> fields =
      absl::StrSplit(line, ' ', absl::SkipEmpty());
  if (fields.size() != 7) {
    return InvalidArgumentError(absl::StrCat(
        "must have 7 fields (operation medium ranks crowded bytes_min "
        "bytes_max algorithm) but has ",
        fields.size()));
  }
  const auto unknown = [](absl::string_view what, absl::string_view value) {
    return InvalidArgumentError(
        absl::StrCat("no ", what, " ", base::Quote(value)));
  };
  Row row = {};
  size_t kind = 0;
  while (kind < kCollectiveKindCount &&
         CollectiveKindName(static_cast<CollectiveKind>(kind)) != fields[0]) {
    ++kind;
  }
  if (kind == kCollectiveKindCount) return unknown("operation", fields[0]);
  row.kind = static_cast<CollectiveKind>(kind);
  const auto* const medium =
      std::find(std::begin(kMediumNames), std::end(kMediumNames), fields[1]);
  if (medium == std::end(kMediumNames)) return unknown("medium", fields[1]);
  row.medium = static_cast<Medium>(medium - std::begin(kMediumNames));
  if (!absl::SimpleAtoi(fields[2], &row.ranks) || row.ranks < 1) {
    return unknown("number of ranks", fields[2]);
  }
  if (fields[3] != "any") {
    row.is_crowded = fields[3] == "yes";
    if (!*row.is_crowded && fields[3] != "no") {
      return unknown("answer yes, no or any", fields[3]);
    }
  }
  if (!absl::SimpleAtoi(fields[4], &row.bytes_min)) {
    return unknown("number of bytes", fields[4]);
  }
  if (!absl::SimpleAtoi(fields[5], &row.bytes_max) ||
      row.bytes_max < row.bytes_min) {
    return unknown(absl::StrCat("number of bytes from ", fields[4], " on"),
                   fields[5]);
  }
  const auto* const name = std::find(std::begin(kAlgorithmNames),
                                     std::end(kAlgorithmNames), fields[6]);
  row.algorithm = static_cast<Algorithm>(name - std::begin(kAlgorithmNames));
  if (name == std::end(kAlgorithmNames) ||
      !IsPossible(row.kind, row.medium, row.algorithm)) {
    return unknown(absl::StrCat("algorithm of ", fields[0], " in ", fields[1]),
                   fields[6]);
  }
  // Backend::fusable_bytes: up to there an element has the same bits in any
  // all_reduce, so that coalesced ones have. The other media's algorithms all
  // combine in one order.
  if (row.kind == CollectiveKind::kAllReduce &&
      row.medium == Medium::kConnections &&
      row.algorithm != Algorithm::kDoubling &&
      row.bytes_min <= kNotePayloadBytesMax) {
    return InvalidArgumentError(absl::StrCat(
        "all_reduce in connections of up to ", kNotePayloadBytesMax,
        " bytes must be doubling: results must not depend on coalescing"));
  }
  return row;
}

StatusOr<Tuning> Tuning::Parse(absl::string_view text, absl::string_view file) {
  Tuning tuning;
  int number = 0;
  const auto error = [&](absl::string_view what) {
    return InvalidArgumentError(
        absl::StrCat("environment variable ", kTuneVariable, ": ",
                     base::Quote(file), ", line ", number, ": ", what));
  };
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (number == 1) {
      if (line == kTuneHeader) continue;
      return error(absl::StrCat("must be ", base::Quote(kTuneHeader),
                                " but is ", base::Quote(line),
                                ": muster-bench --tune writes the file"));
    }
    if (line.empty() || line[0] == '#') continue;
    const StatusOr<Row> row = ParseRow(line);
    if (!row.ok()) return error(row.status().message());
    tuning.rows_.push_back(*row);
    // FNV-1a.
    if (tuning.digest_ == 0) tuning.digest_ = 14695981039346656037u;
    for (const char c : line) {
      tuning.digest_ =
          (tuning.digest_ ^ static_cast<uint8_t>(c)) * uint64_t{1099511628211u};
    }
  }
  return tuning;
}

const StatusOr<Tuning>& Tuning::Loaded() {
  static const StatusOr<Tuning> loaded = LoadTuning();
  return loaded;
}

std::optional<Algorithm> Tuning::Find(
    CollectiveKind kind, const Circumstances& circumstances) const {
  for (const Row& row : rows_) {
    if (GetTraits(row.kind).list_form == GetTraits(kind).list_form &&
        row.medium == circumstances.medium &&
        row.ranks == circumstances.world_size &&
        row.is_crowded.value_or(circumstances.is_crowded) ==
            circumstances.is_crowded &&
        row.bytes_min <= circumstances.bytes &&
        circumstances.bytes <= row.bytes_max) {
      return row.algorithm;
    }
  }
  return std::nullopt;
}

const char* AlgorithmVariable(Medium medium) {
  return medium == Medium::kConnections ? "MUSTER_GLOO_ALGORITHM"
                                        : "MUSTER_SHM_ALGORITHM";
}

StatusOr<Algorithm> FindAlgorithm(Medium medium, absl::string_view value) {
  if (value.empty()) return Algorithm::kFastest;
  std::vector<absl::string_view> names;
  for (size_t i = 1; i < std::size(kAlgorithmNames); ++i) {
    const auto algorithm = static_cast<Algorithm>(i);
    if (!GoesThrough(medium, algorithm)) continue;
    if (kAlgorithmNames[i] == value) return algorithm;
    names.push_back(kAlgorithmNames[i]);
  }
  return InvalidArgumentError(absl::StrCat(
      "environment variable ", AlgorithmVariable(medium), ": no algorithm ",
      base::Quote(value), "; there are: ", absl::StrJoin(names, ", ")));
}

StatusOr<Algorithm> FindForcedAlgorithm(Medium medium) {
  const char* const value = std::getenv(AlgorithmVariable(medium));
  return FindAlgorithm(medium, value == nullptr ? "" : value);
}

Algorithm SelectAlgorithm(CollectiveKind kind,
                          const Circumstances& circumstances, Algorithm forced,
                          const Tuning* tuning) {
  Medium medium = circumstances.medium;
  if (IsPossible(kind, medium, forced)) return forced;
  if (tuning == nullptr && Tuning::Loaded().ok()) tuning = &*Tuning::Loaded();
  // Any staged algorithm will do.
  if (forced == Algorithm::kStaged) {
    medium = Medium::kSharedMemory;
  } else if (tuning != nullptr) {
    const std::optional<Algorithm> measured = tuning->Find(kind, circumstances);
    if (measured.has_value()) return *measured;
  }
  const CollectiveKind form = GetTraits(kind).list_form;
  for (const Row& row : kTable) {
    if (GetTraits(row.kind.value_or(kind)).list_form == form &&
        row.medium == medium && circumstances.world_size <= row.ranks_max &&
        row.is_crowded.value_or(circumstances.is_crowded) ==
            circumstances.is_crowded &&
        circumstances.bytes <= row.bytes_max &&
        (circumstances.reads_are_fast || !row.needs_fast_reads)) {
      return row.algorithm;
    }
  }
  LOG(FATAL) << CollectiveKindName(kind) << " has one algorithm only";
  return Algorithm::kStaged;
}

Algorithm SelectOnConnections(CollectiveKind kind, int world_size,
                              size_t bytes) {
  static const Algorithm forced =
      FindForcedAlgorithm(Medium::kConnections).value_or(Algorithm::kFastest);
  return SelectAlgorithm(kind, {.world_size = world_size, .bytes = bytes},
                         forced);
}

}  // namespace muster::dataplane::cpu
