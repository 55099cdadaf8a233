// Checkpoints of tensors whose parts lie on many ranks. They can be loaded on
// another number of ranks that hold other parts.
//
//   const auto storage = muster::DirectoryStorage("/checkpoints/run-7");
//   // This rank has rows 8 to 15 of a matrix of 32 rows.
//   std::vector<float> rows(8 * 64);
//   const std::vector<muster::CheckpointShard> state = {
//       {"embedding", {32, 64}, {8, 0}, {rows.data(), {8, 64}}}};
//   if (const auto loaded = muster::LoadNewestCheckpoint(*storage, state)) {
//     first_step = loaded->step + 1;
//   }
//   ...
//   muster::SaveCheckpoint(*storage, /*step=*/100, state);
//
// The checkpoint of step 100 is the folder "step-100.7", if it was the seventh
// save. Each rank that writes anything has one safetensors file in it, which
// other tools read, too: a tensor that is stored in one piece has its name as
// the key, a part of a tensor its name and its ranges, "embedding[8:16,0:64]".
// "checkpoint.json" says where every part lies, and has a CRC-32 of every MiB
// of it and of itself.
//
// A checkpoint is whole or absent. It is written into a folder with a temporary
// name, and the last step renames that. What a crash leaves behind is removed
// by the next save, as is what an unfinished save has written: that one then
// fails. So only one save at a time may run in a storage; wait for a background
// save before SaveCheckpoint.
//
// The newest checkpoint is the one that was saved last. A program may go back
// to an earlier step and go on from there: of one step, a later save replaces
// the earlier one when it is durable; and when it saves step 110, those of
// higher steps, which are left of the time before, count as older than all
// others. They are not removed at once, but are the first that keep_newest
// removes.
//
// Tensors are on the CPU (others: kUnimplemented), of every type but
// complex128, opaque elements and pairs of values and indices, which
// safetensors lacks (kUnimplemented).

#ifndef MUSTER_CHECKPOINT_H_
#define MUSTER_CHECKPOINT_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/export.h"
#include "muster/checkpoint_storage.h"
#include "muster/process_group.h"

namespace muster::internal {
class BackgroundSaves;
struct PendingSave;
}  // namespace muster::internal

namespace MUSTER_EXPORT muster {

// A box of a tensor, and the memory of its elements. A rank may have several
// boxes of one tensor, or an empty one.
struct CheckpointShard {
  // The whole tensor's name; UTF-8, not empty.
  std::string name = {};
  std::vector<int64_t> global_shape = {};
  // Where the box begins in each dimension.
  std::vector<int64_t> offsets = {};
  // The elements of the box; its shape is that of the box. If `global_shape`
  // and `offsets` are empty, it is the whole tensor.
  Tensor local = {};
};

// Texts by name, in UTF-8: the epoch, the seed of a random generator.
using CheckpointValues = std::map<std::string, std::string>;

struct SaveCheckpointOptions {
  // Null is the default group.
  std::shared_ptr<ProcessGroup> group = nullptr;
  // For each of the collectives by which ranks wait for each other; it must
  // cover the slowest rank's writing. Zero: the group's.
  std::chrono::milliseconds timeout{0};
  // Stored as they are on the group's rank 0; those of other ranks are ignored.
  CheckpointValues values = {};
  // After the save, removes all checkpoints but the `keep_newest` newest ones,
  // of which this is one, and those whose step is a multiple of `keep_every`.
  // keep_newest = 0: removes none. keep_every = 0: no others are kept.
  int64_t keep_newest = 0;
  int64_t keep_every = 0;
};

// Saves a checkpoint; all ranks of the group make the call. The boxes of all
// ranks together must cover each tensor, without overlap, except that several
// ranks may have the same box: then one of them writes it, so that all write
// about as much. It returns when the checkpoint is durable.
//
// The error is the same on all ranks, and then nothing is saved or replaced.
// Throws DistError: kInvalidArgument (bad shards; boxes that overlap in part or
// leave gaps; ranks that differ in step, shapes or types; the text names
// tensor, ranks and boxes), kUnimplemented, what the storage returns (the text
// and culprits() name the rank).
// Throws what Work::Wait throws if a rank is gone or the timeout passes; at the
// end of the save the checkpoint may then exist. On a rank that is not in the
// group it logs a warning and does nothing.
void SaveCheckpoint(CheckpointStorage& storage, int64_t step,
                    const std::vector<CheckpointShard>& state,
                    const SaveCheckpointOptions& options = {});

// A checkpoint that is being written. Copies are the same one. Thread-safe.
class PendingCheckpoint {
 public:
  // Waits until the checkpoint is durable. Throws the error of SaveCheckpoint,
  // every time. An error that nobody waits for is in the log.
  void Wait() const;
  bool Done() const;

 private:
  friend class Checkpointer;
  explicit PendingCheckpoint(std::shared_ptr<internal::PendingSave> pending)
      : pending_(std::move(pending)) {}

  std::shared_ptr<internal::PendingSave> pending_;
};

struct CheckpointerOptions {
  // A group that nothing else uses while this object lives: its collectives run
  // on a thread of this object, in no order with those of other groups. When it
  // has failed, make a new object with a new one. Null: the constructor makes
  // one of all ranks; all ranks must construct the object, in the same order as
  // they make other groups.
  std::shared_ptr<ProcessGroup> group = nullptr;
  // As in SaveCheckpointOptions.
  std::chrono::milliseconds timeout{0};
  int64_t keep_newest = 0;
  int64_t keep_every = 0;
};

// Checkpointer saves checkpoints while the program goes on: it copies what this
// rank is going to write, and writes the copy on a thread of its own. One
// thread at a time.
class Checkpointer {
 public:
  // Throws what NewGroup throws.
  explicit Checkpointer(std::shared_ptr<CheckpointStorage> storage,
                        const CheckpointerOptions& options = {});
  // Waits for the last checkpoint.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // As SaveCheckpoint, but returns when the other ranks have made the call and
  // this rank's part is copied: the tensors may then change. Throws the errors
  // that come before the writing. If the checkpoint before this one is not
  // written yet, first waits for it, so there is one copy at a time.
  PendingCheckpoint SaveAsync(int64_t step,
                              const std::vector<CheckpointShard>& state,
                              const CheckpointValues& values = {});

 private:
  std::unique_ptr<internal::BackgroundSaves> saves_;
};

struct LoadCheckpointOptions {
  // True: a tensor that the checkpoint lacks is an error. False: it does not
  // change.
  bool strict = true;
};

struct LoadedCheckpoint {
  int64_t step = 0;
  // As they were in SaveCheckpointOptions.
  CheckpointValues values = {};
  // Names of the tensors that the checkpoint lacks.
  std::vector<std::string> missing = {};
  // LoadNewestCheckpoint: the steps of newer ones that are damaged, from the
  // newest on.
  std::vector<int64_t> damaged = {};
};

// Fills the boxes of `shards` from a checkpoint. They need not be boxes of
// which it was saved. The call is local: each rank asks for what it needs, and
// a program without a group may load, too. If the step may be saved again
// meanwhile, ranks could find different saves of it: LoadNewestCheckpoint takes
// one for all. Reads only the parts of files that
// have elements of the boxes, as whole MiBs, and needs memory for one of these
// and for "checkpoint.json". Every MiB is verified before it is used.
//
// Throws DistError: kInvalidArgument (bad shards; another shape or type than in
// the checkpoint), kNotFound (no such checkpoint or tensor), kDataLoss (a file
// is missing, truncated, or has other bytes than those written; or
// "checkpoint.json" contradicts itself), kUnimplemented (written by a newer
// version, or not on the CPU), kResourceExhausted (no memory), and what the
// storage returns. The text names file and tensor. Boxes may be filled in part
// then.
LoadedCheckpoint LoadCheckpoint(CheckpointStorage& storage, int64_t step,
                                const std::vector<CheckpointShard>& shards,
                                const LoadCheckpointOptions& options = {});

struct LoadNewestOptions {
  // Null is the default group.
  std::shared_ptr<ProcessGroup> group = nullptr;
  // For each of the collectives by which ranks wait for each other; it must
  // cover the slowest rank's loading. Zero: the group's.
  std::chrono::milliseconds timeout{0};
};

// Loads the newest checkpoint on all ranks of the group, each its own shards;
// all ranks make the call. If a rank finds it damaged (kDataLoss), all ranks
// load the next older one, and rank 0 logs a warning. A tensor that it lacks is
// an error. Returns nullopt if there is no checkpoint: then nothing has
// changed.
//
// The error is the same on all ranks. Throws DistError: those of LoadCheckpoint
// (the text and culprits() name the rank), but kDataLoss only if all
// checkpoints are damaged: that of the newest one. Throws what Work::Wait
// throws if a rank is gone or the timeout passes. On a rank that is not in the
// group it logs a warning and returns nullopt.
std::optional<LoadedCheckpoint> LoadNewestCheckpoint(
    CheckpointStorage& storage, const std::vector<CheckpointShard>& shards,
    const LoadNewestOptions& options = {});

// Reads the whole checkpoint and compares all checksums. The call is local.
// Throws what LoadCheckpoint throws.
void VerifyCheckpoint(CheckpointStorage& storage, int64_t step);

// Removes a checkpoint. The call is local: make it on one rank, while no save
// runs. Throws DistError: kNotFound, and what the storage returns.
void RemoveCheckpoint(CheckpointStorage& storage, int64_t step);

// The steps of all checkpoints, from the oldest to the newest. While ranks
// save, one may see a checkpoint before another does: ask on one rank and tell
// the others. Throws what the storage returns.
std::vector<int64_t> ListCheckpoints(CheckpointStorage& storage);

// The step of the newest one, if there is any. Otherwise as ListCheckpoints.
std::optional<int64_t> NewestCheckpoint(CheckpointStorage& storage);

}  // namespace muster

#endif  // MUSTER_CHECKPOINT_H_
