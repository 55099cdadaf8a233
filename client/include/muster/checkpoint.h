// Checkpoints of tensors whose parts lie on many ranks. They can be loaded on
// another number of ranks that hold other parts.
//
//   const auto storage = muster::DirectoryStorage("/checkpoints/run-7");
//   // This rank has rows 8 to 15 of a matrix of 32 rows.
//   std::vector<float> rows(8 * 64);
//   const std::vector<muster::CheckpointShard> state = {
//       {"embedding", {32, 64}, {8, 0}, {rows.data(), {8, 64}}}};
//   if (const auto step = muster::NewestCheckpoint(*storage)) {
//     muster::LoadCheckpoint(*storage, *step, state);
//   }
//   ...
//   muster::SaveCheckpoint(*storage, /*step=*/100, state);
//
// The checkpoint of step 100 is the folder "step-100". Each rank that writes
// anything has one safetensors file in it, which other tools read, too: a
// tensor that is stored in one piece has its name as the key, a part of a
// tensor its name and its ranges, "embedding[8:16,0:64]". "checkpoint.json"
// says where every part lies, and has a CRC-32 of every MiB of it and of
// itself.
//
// A checkpoint is whole or absent. It is written into a folder with a temporary
// name, and the last step renames that. What a crash leaves behind is removed
// by the next save, as is what an unfinished save has written: that one then
// fails. So only one save at a time may run in a storage; wait for a background
// save before SaveCheckpoint.
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
  // After the save, removes all checkpoints but this one, the `keep_newest` of
  // the highest steps, and those whose step is a multiple of `keep_every`.
  // keep_newest = 0: removes none. keep_every = 0: no others are kept.
  int64_t keep_newest = 0;
  int64_t keep_every = 0;
};

// Saves a checkpoint; all ranks of the group make the call. The boxes of all
// ranks together must cover each tensor, without overlap, except that several
// ranks may have the same box: then one of them writes it, so that all write
// about as much. It returns when the checkpoint is durable.
//
// The error is the same on all ranks, and then there is no such checkpoint.
// Throws DistError: kInvalidArgument (bad shards; boxes that overlap in part or
// leave gaps; ranks that differ in step, shapes or types; the text names
// tensor, ranks and boxes), kUnimplemented, kAlreadyExists (a checkpoint of
// this step), what the storage returns (the text and culprits() name the rank).
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
  // As they were in SaveCheckpointOptions.
  CheckpointValues values = {};
  // Names of the tensors that the checkpoint lacks.
  std::vector<std::string> missing = {};
};

// Fills the boxes of `shards` from a checkpoint. They need not be boxes of
// which it was saved. The call is local: each rank asks for what it needs, and
// a program without a group may load, too. Reads only the parts of files that
// have elements of the boxes, as whole MiBs, and needs memory for one of these
// and for "checkpoint.json". Every MiB is verified before it is used.
//
// Throws DistError: kInvalidArgument (bad shards; another shape or type than in
// the checkpoint), kNotFound (no such checkpoint, tensor or file), kDataLoss (a
// file is truncated or has other bytes than those written), kUnimplemented
// (written by a newer version, or not on the CPU), and what the storage
// returns. The text names file and tensor. Boxes may be filled in part then.
LoadedCheckpoint LoadCheckpoint(CheckpointStorage& storage, int64_t step,
                                const std::vector<CheckpointShard>& shards,
                                const LoadCheckpointOptions& options = {});

// The steps of all checkpoints, ascending. While ranks save, one may see a
// checkpoint before another does: ask on one rank and tell the others.
// Throws what the storage returns.
std::vector<int64_t> ListCheckpoints(CheckpointStorage& storage);

// The highest step, if there is any checkpoint. Otherwise as ListCheckpoints.
std::optional<int64_t> NewestCheckpoint(CheckpointStorage& storage);

}  // namespace muster

#endif  // MUSTER_CHECKPOINT_H_
