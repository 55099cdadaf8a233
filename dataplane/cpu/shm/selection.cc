#include "dataplane/cpu/shm/selection.h"

#include <limits>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/text.h"
#include "glog/logging.h"

namespace muster::dataplane::shm {
namespace {

constexpr int kAnyRanks = std::numeric_limits<int>::max();
constexpr size_t kAnyBytes = std::numeric_limits<size_t>::max();
constexpr std::optional<bool> kAnyCrowd = std::nullopt;

// The first matching row counts. `muster-bench OPERATION... --backend=shm
// --tune=1`, also with --memory=symmetric, measures and prints such rows.
struct Row {
  // Also its other forms (CollectiveTraits::list_form). nullopt: all kinds.
  std::optional<CollectiveKind> kind;
  Memory memory;
  int ranks_max;
  std::optional<bool> is_crowded;
  size_t bytes_max;
  Algorithm algorithm;
};

constexpr Row kTable[] = {
    {CollectiveKind::kAllReduce, Memory::kOrdinary, 8, true, 16 << 10,
     Algorithm::kOneRound},
    {CollectiveKind::kAllReduce, Memory::kOrdinary, kAnyRanks, true, 8 << 10,
     Algorithm::kOneRound},
    {CollectiveKind::kAllReduce, Memory::kOrdinary, 4, false, 4 << 10,
     Algorithm::kOneRound},
    {CollectiveKind::kAllReduce, Memory::kOrdinary, 8, false, 1 << 10,
     Algorithm::kOneRound},
    {CollectiveKind::kAllReduce, Memory::kOrdinary, kAnyRanks, false, 512,
     Algorithm::kOneRound},
    {CollectiveKind::kAllReduce, Memory::kOrdinary, kAnyRanks, kAnyCrowd,
     kAnyBytes, Algorithm::kByParts},
    // In a scatter one rank writes everything, and the others wait for each
    // piece.
    {CollectiveKind::kScatter, Memory::kOrdinary, 2, kAnyCrowd, kAnyBytes,
     Algorithm::kStaged},
    {CollectiveKind::kScatter, Memory::kOrdinary, kAnyRanks, false, 1 << 20,
     Algorithm::kStaged},
    {CollectiveKind::kScatter, Memory::kOrdinary, kAnyRanks, false, kAnyBytes,
     Algorithm::kSingleCopy},
    {CollectiveKind::kScatter, Memory::kOrdinary, 4, true, 2 << 20,
     Algorithm::kStaged},
    {CollectiveKind::kScatter, Memory::kOrdinary, kAnyRanks, true, 512 << 10,
     Algorithm::kStaged},
    {CollectiveKind::kScatter, Memory::kOrdinary, kAnyRanks, true, kAnyBytes,
     Algorithm::kSingleCopy},
    // Reading takes one copy instead of staging's two, but the system must find
    // the pages.
    {CollectiveKind::kAllToAll, Memory::kOrdinary, 4, false, kAnyBytes,
     Algorithm::kStaged},
    {CollectiveKind::kAllToAll, Memory::kOrdinary, kAnyRanks, false, 512 << 10,
     Algorithm::kStaged},
    {CollectiveKind::kAllToAll, Memory::kOrdinary, 8, true, kAnyBytes,
     Algorithm::kStaged},
    {CollectiveKind::kAllToAll, Memory::kOrdinary, kAnyRanks, true, 2 << 20,
     Algorithm::kStaged},
    {CollectiveKind::kAllToAll, Memory::kOrdinary, kAnyRanks, kAnyCrowd,
     kAnyBytes, Algorithm::kSingleCopy},
    {CollectiveKind::kAllGather, Memory::kOrdinary, 2, false, kAnyBytes,
     Algorithm::kStaged},
    {CollectiveKind::kAllGather, Memory::kOrdinary, 4, false, 512 << 10,
     Algorithm::kStaged},
    {CollectiveKind::kAllGather, Memory::kOrdinary, 4, false, kAnyBytes,
     Algorithm::kSingleCopy},
    {CollectiveKind::kReduceScatter, Memory::kOrdinary, 2, false, kAnyBytes,
     Algorithm::kStaged},
    {CollectiveKind::kReduceScatter, Memory::kOrdinary, kAnyRanks, false,
     2 << 20, Algorithm::kStaged},
    {CollectiveKind::kReduceScatter, Memory::kOrdinary, kAnyRanks, false,
     kAnyBytes, Algorithm::kSingleCopy},
    {std::nullopt, Memory::kOrdinary, kAnyRanks, kAnyCrowd, kAnyBytes,
     Algorithm::kStaged},

    {CollectiveKind::kAllReduce, Memory::kSymmetric, kAnyRanks, true, 2 << 10,
     Algorithm::kOneRound},
    {CollectiveKind::kAllReduce, Memory::kSymmetric, kAnyRanks, kAnyCrowd, 512,
     Algorithm::kOneRound},
    {CollectiveKind::kAllReduce, Memory::kSymmetric, kAnyRanks, kAnyCrowd,
     kAnyBytes, Algorithm::kSymmetric},
    {CollectiveKind::kAllGather, Memory::kSymmetric, kAnyRanks, true, 128 << 10,
     Algorithm::kStaged},
    {CollectiveKind::kGather, Memory::kSymmetric, kAnyRanks, true, 256 << 10,
     Algorithm::kStaged},
    {CollectiveKind::kGather, Memory::kSymmetric, kAnyRanks, kAnyCrowd,
     32 << 10, Algorithm::kStaged},
    // The sizes are not known here; all_to_all.cc checks them.
    {CollectiveKind::kAllToAll, Memory::kSymmetric, kAnyRanks, kAnyCrowd,
     kAnyBytes, Algorithm::kSymmetric},
    {std::nullopt, Memory::kSymmetric, kAnyRanks, true, 32 << 10,
     Algorithm::kStaged},
    {std::nullopt, Memory::kSymmetric, kAnyRanks, kAnyCrowd, 16 << 10,
     Algorithm::kStaged},
    {std::nullopt, Memory::kSymmetric, kAnyRanks, kAnyCrowd, kAnyBytes,
     Algorithm::kSymmetric},
};

bool Has(CollectiveKind kind, Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kFastest:
      return false;
    case Algorithm::kSingleCopy:
    case Algorithm::kSymmetric:
      return kind != CollectiveKind::kBarrier;
    case Algorithm::kStaged:
      return kind != CollectiveKind::kAllReduce;
    case Algorithm::kOneRound:
    case Algorithm::kByParts:
      return kind == CollectiveKind::kAllReduce;
  }
  return false;
}

}  // namespace

StatusOr<Algorithm> FindAlgorithm(absl::string_view name) {
  std::vector<absl::string_view> names;
  for (size_t i = 1; i < std::size(kAlgorithmNames); ++i) {
    if (kAlgorithmNames[i] == name) return static_cast<Algorithm>(i);
    names.push_back(kAlgorithmNames[i]);
  }
  return InvalidArgumentError(
      absl::StrCat("no algorithm ", base::Quote(name),
                   "; there are: ", absl::StrJoin(names, ", ")));
}

Algorithm SelectAlgorithm(CollectiveKind kind,
                          const Circumstances& circumstances,
                          Algorithm forced) {
  const Memory in = circumstances.memory;
  if (Has(kind, forced) &&
      (forced != Algorithm::kSymmetric || in == Memory::kSymmetric)) {
    return forced;
  }
  // Any staged algorithm will do.
  const Memory memory = forced == Algorithm::kStaged ? Memory::kOrdinary : in;
  const CollectiveKind form = GetTraits(kind).list_form;
  for (const Row& row : kTable) {
    if (GetTraits(row.kind.value_or(kind)).list_form == form &&
        row.memory == memory && circumstances.world_size <= row.ranks_max &&
        row.is_crowded.value_or(circumstances.is_crowded) ==
            circumstances.is_crowded &&
        circumstances.bytes <= row.bytes_max) {
      return row.algorithm;
    }
  }
  LOG(FATAL) << "no row for " << CollectiveKindName(kind);
  return Algorithm::kStaged;
}

}  // namespace muster::dataplane::shm
