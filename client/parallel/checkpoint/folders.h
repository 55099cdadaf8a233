// The folders of checkpoints: their names, and which of them count.

#ifndef MUSTER_CLIENT_PARALLEL_CHECKPOINT_FOLDERS_H_
#define MUSTER_CLIENT_PARALLEL_CHECKPOINT_FOLDERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "muster/base/status.h"
#include "muster/checkpoint_storage.h"

namespace muster::internal {

// A whole checkpoint.
struct CheckpointFolder {
  int64_t step = 0;
  // The number of the save. The last one has the highest.
  int64_t save = 0;
};

// "step-100.7".
std::string MakeFolderName(const CheckpointFolder& folder);

// A name that no other save uses, for a folder that is being written or
// removed: "step-100.tmp-5af1...".
std::string MakeTemporaryName(int64_t step);

// "rank-00003.safetensors".
std::string MakeFileName(int rank);

struct CheckpointFolders {
  // From the newest to the oldest, as checkpoint.h orders them.
  std::vector<CheckpointFolder> checkpoints = {};
  // A later save was of the same step.
  std::vector<CheckpointFolder> replaced = {};
  // Names of folders that a save or a removal has left.
  std::vector<std::string> temporary = {};
  // The highest number of a save; 0: there is none.
  int64_t last_save = 0;
};

StatusOr<CheckpointFolders> FindFolders(CheckpointStorage& storage);

// Errors: kNotFound.
StatusOr<CheckpointFolder> FindCheckpoint(CheckpointStorage& storage,
                                          int64_t step);

// Gives a folder a temporary name and removes it, so that a part of it never
// looks like a checkpoint. A save that still writes to it either has renamed it
// before, or finds it gone.
Status RemoveFolder(CheckpointStorage& storage, const std::string& folder);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_CHECKPOINT_FOLDERS_H_
