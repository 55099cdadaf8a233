#ifndef MUSTER_WORKER_SCRATCH_FOLDER_H_
#define MUSTER_WORKER_SCRATCH_FOLDER_H_

#include <string>

#include "absl/status/statusor.h"

namespace muster::worker {

// ScratchFolder is a folder below TMPDIR that is there as long as this. Those
// of processes that were killed are removed when the next one is made: a lock
// on the folder, which ends with its process, tells them from the others.
class ScratchFolder {
 public:
  // Errors: FAILED_PRECONDITION (the text has the folder and the cause).
  static absl::StatusOr<ScratchFolder> Create();

  ~ScratchFolder();
  ScratchFolder(ScratchFolder&& other) noexcept;
  ScratchFolder& operator=(ScratchFolder&&) = delete;

  const std::string& path() const { return path_; }

 private:
  ScratchFolder(std::string path, int lock_fd);

  std::string path_;
  int lock_fd_;
};

}  // namespace muster::worker

#endif  // MUSTER_WORKER_SCRATCH_FOLDER_H_
