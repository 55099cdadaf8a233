// Where checkpoints are kept: an interface, and a plain directory.
//
//   const auto storage = muster::DirectoryStorage("/checkpoints/run-7");
//   muster::SaveCheckpoint(*storage, /*step=*/100, state);

#ifndef MUSTER_CHECKPOINT_STORAGE_H_
#define MUSTER_CHECKPOINT_STORAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "muster/base/export.h"
#include "muster/base/status.h"

namespace MUSTER_EXPORT muster {

// A file that is being written. One thread at a time.
class CheckpointWriter {
 public:
  CheckpointWriter() = default;
  // Without Finish, a part of the file may stay.
  virtual ~CheckpointWriter() = default;
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  virtual Status Append(std::span<const std::byte> bytes) = 0;

  // Returns when all that was appended would survive a crash of the machine.
  // Called once, at the end.
  virtual Status Finish() = 0;
};

// A finished file. One thread at a time.
class CheckpointReader {
 public:
  CheckpointReader() = default;
  virtual ~CheckpointReader() = default;
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  // The file's size in bytes.
  virtual int64_t size() const = 0;

  // Fills `bytes` from the file's byte `offset` on.
  // Errors: kDataLoss if the file ends before: the checkpoint is damaged, and
  // LoadNewestCheckpoint takes an older one. Any other error is thrown.
  virtual Status Read(int64_t offset, std::span<std::byte> bytes) = 0;
};

// CheckpointStorage keeps folders of files. Paths have the form "folder" or
// "folder/file". A checkpoint is written into a folder with a temporary name;
// Rename is what makes it exist.
//
// All ranks have a storage object that leads to the same place. Thread-safe.
// Errors have a code and a text that names the path; any code is passed on to
// the caller of SaveCheckpoint or LoadCheckpoint.
class CheckpointStorage {
 public:
  CheckpointStorage() = default;
  virtual ~CheckpointStorage() = default;
  CheckpointStorage(const CheckpointStorage&) = delete;
  CheckpointStorage& operator=(const CheckpointStorage&) = delete;

  // Makes a file, and its folder if there is none.
  // Errors: kAlreadyExists.
  virtual StatusOr<std::unique_ptr<CheckpointWriter>> Create(
      const std::string& path) = 0;

  // Errors: kNotFound.
  virtual StatusOr<std::unique_ptr<CheckpointReader>> Open(
      const std::string& path) = 0;

  // The names of all folders, in any order. Nothing was ever stored: none.
  virtual StatusOr<std::vector<std::string>> ListFolders() = 0;

  // Gives a folder, whose files are finished, another name, atomically: at any
  // time, also after a crash, it has either name and all its files. Returns
  // when the new name would survive a crash.
  // Errors: kAlreadyExists or another code if `to` exists, even if it is empty.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;

  // Removes a folder with its files. OK if there is none.
  virtual Status Remove(const std::string& folder) = 0;
};

// A directory of a file system, for several hosts a shared one. It is made when
// the first file is.
std::unique_ptr<CheckpointStorage> DirectoryStorage(
    const std::string& directory);

}  // namespace muster

#endif  // MUSTER_CHECKPOINT_STORAGE_H_
