// One save of a checkpoint on one rank.

#ifndef MUSTER_CLIENT_PARALLEL_CHECKPOINT_SAVE_H_
#define MUSTER_CLIENT_PARALLEL_CHECKPOINT_SAVE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/parallel/checkpoint/manifest.h"
#include "client/parallel/checkpoint/plan.h"
#include "muster/base/status.h"
#include "muster/checkpoint.h"
#include "muster/objects.h"

namespace muster::internal {

// The plan of a Checkpointer's last save. If no rank has other shards, the next
// one follows it, too.
struct SavePlan {
  // This rank's shards in the save before; nullopt: there was none.
  std::optional<std::vector<ShardDescription>> mine = {};
  // On rank 0: all ranks' shards, and the indices of those that each writes.
  std::vector<RankDescription> ranks = {};
  std::vector<std::vector<size_t>> writes = {};
};

// CheckpointSave goes through three steps: the ranks tell rank 0 what they
// have, which says who writes what; each rank writes its file and tells rank 0
// where it has stored what; rank 0 writes checkpoint.json, renames the folder
// and tells the outcome.
//
// The methods are called in this order, each by one thread. All but CopyShards
// are collective and throw the same error on all ranks.
class CheckpointSave {
 public:
  // `storage` and `plan` must outlive this object. The group's ranks are all
  // here.
  CheckpointSave(CheckpointStorage& storage, SavePlan& plan, int64_t step,
                 SaveCheckpointOptions options);

  // The memory of `state` must live until Write returns or CopyShards is
  // called.
  void Agree(const std::vector<CheckpointShard>& state);

  // Copies what this rank writes. If there is no memory for that, Write throws.
  void CopyShards();

  void Write();

 private:
  // A shard that this rank writes.
  struct Piece {
    // Its number among those of this rank.
    size_t index;
    std::span<const std::byte> bytes;
    ShardDescription description;
  };
  // How the save went, as rank 0 tells it.
  struct Verdict {
    Status status = {};
    // Global ranks.
    std::vector<int> culprits = {};
  };

  bool IsFirst() const { return options_.group->rank() == 0; }
  ObjectSourceOptions FromFirst() const;
  std::vector<std::string> GatherAtFirst(const std::string& mine) const;
  void ThrowIfFailed(const Verdict& verdict) const;

  // Rank 0 only.
  std::vector<std::string> MakeAnswers(const std::vector<std::string>& all);
  Status Prepare();
  Verdict Commit(const std::vector<std::string>& results);
  // Throws std::exception if a result is malformed.
  Manifest MakeManifest(const std::vector<std::string>& results) const;
  Status CheckFiles(const Manifest& manifest) const;
  Status WriteManifest(const Manifest& manifest) const;
  // If these fail, they say so in the log.
  void Remove(const std::string& folder) const;
  void RemoveUnfinished() const;
  void RemoveOld() const;

  // Writes this rank's file, if it has anything to write, and returns what rank
  // 0 must know of it, as JSON.
  StatusOr<std::string> WriteFile();

  CheckpointStorage& storage_;
  const int64_t step_;
  const SaveCheckpointOptions options_;
  SavePlan& plan_;
  // The folder's temporary name and, on rank 0, the number of this save.
  std::string folder_;
  int64_t save_ = 0;
  std::vector<Piece> pieces_;
  std::unique_ptr<std::byte[]> copy_;
  Status failure_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_CHECKPOINT_SAVE_H_
