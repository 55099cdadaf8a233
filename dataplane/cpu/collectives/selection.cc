#include "dataplane/cpu/collectives/selection.h"

#include <cstdlib>
#include <limits>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "glog/logging.h"

namespace muster::dataplane::cpu {
namespace {

constexpr int kAnyRanks = std::numeric_limits<int>::max();
constexpr size_t kAnyBytes = std::numeric_limits<size_t>::max();
constexpr std::optional<bool> kAnyCrowd = std::nullopt;
constexpr bool kFastReads = true;

// The first matching row counts. `muster-bench OPERATION... --tune=1`, with
// --backend=gloo for connections and with --memory=symmetric, measures and
// prints such rows.
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

}  // namespace

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
                          const Circumstances& circumstances,
                          Algorithm forced) {
  Medium medium = circumstances.medium;
  if (Has(kind, forced) &&
      (forced != Algorithm::kSymmetric || medium == Medium::kSymmetricMemory)) {
    return forced;
  }
  // Any staged algorithm will do.
  if (forced == Algorithm::kStaged) medium = Medium::kSharedMemory;
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
