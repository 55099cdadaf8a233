// A file to which several processes append records and from which they read
// them. FileStore is built on it.

#ifndef MUSTER_CLIENT_CONTROL_LOG_FILE_H_
#define MUSTER_CLIENT_CONTROL_LOG_FILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "client/control/deadline.h"
#include "muster/base/status.h"

namespace muster::internal {

// LogFile is one process's handle of the file, with the position up to which
// the process has read. Every process sees the records in the same order.
//
// The lock is flock's: it is released when its process ends. A process that
// dies while it writes leaves a partial record at the end; readers ignore it,
// and the next writer truncates it.
//
// Not thread-safe. Errors: kDeadlineExceeded (another process keeps the lock),
// kDataLoss (the file was not written by LogFile), and the system's errors; the
// texts name the file.
class LogFile {
 public:
  struct Record {
    char kind = 0;  // chosen by the user of LogFile
    std::string key = {};
    std::string value = {};
  };

  // Replay needs kShared, the other methods kExclusive.
  enum class Access { kShared, kExclusive };

  // Creates the file if there is none. Holds the exclusive lock on return.
  static StatusOr<std::unique_ptr<LogFile>> Open(const std::string& path,
                                                 const Deadline& deadline);

  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  Status Lock(Access access, const Deadline& deadline);
  void Unlock();

  // Passes all records that were appended since the last call to `apply`,
  // including those of this process.
  Status Replay(const std::function<void(Record)>& apply);

  // Call it after a Replay under the same lock. A later Replay of this process
  // returns this record, too.
  Status Append(const Record& record);

  // Removes the file from its folder, if it is still there. Processes that have
  // it open continue to use it.
  void Remove();

  const std::string& path() const { return path_; }

 private:
  LogFile(std::string path, int fd);

  Status Failure(absl::string_view what, int error) const;
  Status Damaged(absl::string_view what) const;
  StatusOr<std::string> ReadFrom(int64_t offset, int64_t bytes) const;
  Status WriteAt(int64_t offset, absl::string_view bytes) const;
  bool IsAtItsPath() const;

  const std::string path_;
  const int fd_;
  // Everything up to here is read and complete.
  int64_t offset_ = 0;
  // The file's size at the last Replay.
  int64_t size_ = 0;
};

// Detects changes of a file by processes on this host. A change by another host
// on a network file system is seen only by reading. Not thread-safe.
class FileChange {
 public:
  // Reports changes that follow this call.
  explicit FileChange(const std::string& path);
  ~FileChange();
  FileChange(const FileChange&) = delete;
  FileChange& operator=(const FileChange&) = delete;

  // Returns after a change, at `until`, or after ten milliseconds. The caller
  // then reads the file.
  void Await(Instant until);

 private:
  // -1: the system has no inotify instance left.
  int notify_ = -1;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_LOG_FILE_H_
