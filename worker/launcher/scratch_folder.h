#ifndef MUSTER_WORKER_LAUNCHER_SCRATCH_FOLDER_H_
#define MUSTER_WORKER_LAUNCHER_SCRATCH_FOLDER_H_

#include <string>

#include "absl/strings/string_view.h"
#include "muster/base/status.h"

namespace muster::worker {

// ScratchFolder is a folder below TMPDIR that exists as long as this object.
// Creating one removes the folders of killed processes: each process holds a
// lock on its folder, which the system releases with the process.
class ScratchFolder {
 public:
  // Errors: FAILED_PRECONDITION (the text has the folder and the cause).
  static StatusOr<ScratchFolder> Create();

  ~ScratchFolder();
  ScratchFolder(ScratchFolder&& other) noexcept;
  ScratchFolder& operator=(ScratchFolder&&) = delete;

  const std::string& path() const { return path_; }

 private:
  ScratchFolder(std::string path, int lock_fd);

  std::string path_;
  int lock_fd_;
};

// Creates a folder below TMPDIR that is not removed: PREFIX and six random
// characters. Errors name the `purpose`: "the ranks' output".
// Errors: as ScratchFolder::Create.
StatusOr<std::string> MakeFolderToKeep(absl::string_view prefix,
                                       absl::string_view purpose);

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_SCRATCH_FOLDER_H_
