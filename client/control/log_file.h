// A file to which several processes append records and from which they read
// them. FileStore is built on it.

#ifndef MUSTER_CLIENT_CONTROL_LOG_FILE_H_
#define MUSTER_CLIENT_CONTROL_LOG_FILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "client/control/deadline.h"

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
    char kind = 0;  // The user's.
    std::string key = {};
    std::string value = {};
  };

  // kShared for Replay, kExclusive for all.
  enum class Access { kShared, kExclusive };

  // Makes the file if there is none, and holds it exclusively on return.
  static StatusOr<std::unique_ptr<LogFile>> Open(const std::string& path,
                                                 const Deadline& deadline);

  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  Status Lock(Access access, const Deadline& deadline);
  void Unlock();

  // Gives all records that were appended since the last call, this process's
  // own among them.
  Status Replay(const std::function<void(Record)>& apply);

  // After a Replay under the same lock. The caller's Replay gets it later.
  Status Append(const Record& record);

  // Takes the file from its folder, if it is still there; others that have it
  // open go on with it.
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
  // Up to here everything has been read and is whole.
  int64_t offset_ = 0;
  // Of the file, at the last Replay.
  int64_t size_ = 0;
};

// Tells when a file changes, on this host; a change by another host over a
// network file system is seen only by looking. Not thread-safe.
class FileChange {
 public:
  // Of the changes from now on.
  explicit FileChange(const std::string& path);
  ~FileChange();
  FileChange(const FileChange&) = delete;
  FileChange& operator=(const FileChange&) = delete;

  // Returns after a change, at `until`, or after ten milliseconds: then it is
  // time to look.
  void Await(Instant until);

 private:
  // -1: the system has none left.
  int notify_ = -1;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_LOG_FILE_H_
