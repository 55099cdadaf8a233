// The plan of a save: which rank writes which shards. Rank 0 makes it from what
// all ranks have.

#ifndef MUSTER_CLIENT_PARALLEL_CHECKPOINT_PLAN_H_
#define MUSTER_CLIENT_PARALLEL_CHECKPOINT_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/parallel/checkpoint/box.h"
#include "muster/base/status.h"
#include "muster/checkpoint.h"

namespace muster::internal {

// Whether JSON can have the text.
bool IsUtf8(absl::string_view text);

// A CheckpointShard without its memory. Its shape and box are explicit.
struct ShardDescription {
  std::string name = {};
  dataplane::DataType type = dataplane::DataType::kFloat32;
  std::vector<int64_t> shape = {};
  Box box = {};

  friend bool operator==(const ShardDescription&,
                         const ShardDescription&) = default;
};

// Errors: kInvalidArgument, kUnimplemented.
StatusOr<ShardDescription> DescribeShard(const CheckpointShard& shard);
// Describes all of them. Errors: as above; also kInvalidArgument if a box is
// there twice.
StatusOr<std::vector<ShardDescription>> DescribeShards(
    const std::vector<CheckpointShard>& shards);

// All that rank 0 must know of one rank.
struct RankDescription {
  // Its global rank, for texts.
  int rank = 0;
  // Not OK if its arguments are bad.
  Status fault = {};
  // Parameters that are the same on all ranks, with their names.
  std::vector<std::pair<std::string, int64_t>> agreed = {};
  // Nullopt in a message: as in the save before.
  std::optional<std::vector<ShardDescription>> shards = {};
};

std::string ToBytes(const RankDescription& description);
// Errors: kInternal.
StatusOr<RankDescription> ParseRankDescription(const std::string& bytes);

// Errors: the fault of a rank; kInvalidArgument if the ranks disagree.
Status CheckRanks(const std::vector<RankDescription>& ranks);

// Returns for each rank the indices of those of its shards that it writes.
// Errors: kInvalidArgument if boxes overlap in part or leave gaps.
StatusOr<std::vector<std::vector<size_t>>> PlanSave(
    const std::vector<RankDescription>& ranks);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_CHECKPOINT_PLAN_H_
