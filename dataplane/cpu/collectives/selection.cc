#include "dataplane/cpu/collectives/selection.h"

#include <cstdlib>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "glog/logging.h"

namespace muster::dataplane::cpu {
namespace {

constexpr int kAnyRanks = std::numeric_limits<int>::max();
constexpr size_t kAnyBytes = std::numeric_limits<size_t>::max();

// The first matching row counts. `muster-bench all_reduce broadcast --tune`
// measures and prints such rows.
struct Row {
  CollectiveKind kind;
  int ranks_max;
  size_t bytes_max;
  Algorithm algorithm;
};

constexpr Row kTable[] = {
    {CollectiveKind::kAllReduce, kAnyRanks, 32 << 10, Algorithm::kDoubling},
    {CollectiveKind::kAllReduce, kAnyRanks, 1 << 20, Algorithm::kPairwise},
    {CollectiveKind::kAllReduce, kAnyRanks, kAnyBytes, Algorithm::kRing},
    {CollectiveKind::kBroadcast, kAnyRanks, 1 << 20, Algorithm::kTree},
    {CollectiveKind::kBroadcast, kAnyRanks, kAnyBytes, Algorithm::kChain},
};

struct Name {
  Algorithm algorithm;
  CollectiveKind kind;
  const char* name;
};

constexpr Name kNames[] = {
    {Algorithm::kDoubling, CollectiveKind::kAllReduce, "doubling"},
    {Algorithm::kPairwise, CollectiveKind::kAllReduce, "pairwise"},
    {Algorithm::kRing, CollectiveKind::kAllReduce, "ring"},
    {Algorithm::kTree, CollectiveKind::kBroadcast, "tree"},
    {Algorithm::kChain, CollectiveKind::kBroadcast, "chain"},
};

// The largest messages on the TcpConnections (kLines).
constexpr size_t kLineBytesMax = 2 << 20;
constexpr size_t kLineBroadcastBytesMax = 8 << 20;

}  // namespace

const char* AlgorithmName(Algorithm algorithm) {
  for (const Name& name : kNames) {
    if (name.algorithm == algorithm) return name.name;
  }
  return "unknown";
}

Status CheckForced(absl::string_view forced) {
  std::vector<absl::string_view> names;
  for (const Name& name : kNames) {
    if (forced.empty() || name.name == forced) return OkStatus();
    names.push_back(name.name);
  }
  return InvalidArgumentError(absl::StrCat(
      "environment variable MUSTER_GLOO_ALGORITHM: no algorithm ",
      base::Quote(forced), "; there are: ", absl::StrJoin(names, ", ")));
}

Algorithm SelectAlgorithm(CollectiveKind kind, int world_size, size_t bytes,
                          absl::string_view forced) {
  for (const Name& name : kNames) {
    if (name.kind == kind && name.name == forced) return name.algorithm;
  }
  for (const Row& row : kTable) {
    if (row.kind == kind && world_size <= row.ranks_max &&
        bytes <= row.bytes_max) {
      return row.algorithm;
    }
  }
  LOG(FATAL) << CollectiveKindName(kind) << " has one algorithm only";
  return Algorithm::kRing;
}

Algorithm SelectAlgorithm(CollectiveKind kind, int world_size, size_t bytes) {
  static const char* const forced = std::getenv("MUSTER_GLOO_ALGORITHM");
  return SelectAlgorithm(kind, world_size, bytes,
                         forced == nullptr ? "" : forced);
}

Path ChoosePath(CollectiveKind kind, size_t bytes) {
  const size_t bytes_max = kind == CollectiveKind::kBroadcast
                               ? kLineBroadcastBytesMax
                               : kLineBytesMax;
  return bytes <= bytes_max ? Path::kLines : Path::kGloo;
}

}  // namespace muster::dataplane::cpu
