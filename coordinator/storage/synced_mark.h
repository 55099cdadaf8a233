#ifndef MUSTER_COORDINATOR_STORAGE_SYNCED_MARK_H_
#define MUSTER_COORDINATOR_STORAGE_SYNCED_MARK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"

namespace muster::coordinator {

// The path of the mark of the database in `folder`.
std::string SyncedMarkPath(const std::string& folder);

// Records how far a database is known to be on the disk, in a file beside the
// database. The next start uses it to tell a log whose acknowledged end was
// lost from a log that ends in an unacknowledged change: the database itself
// accepts both as the end of its log.
struct SyncedMark {
  // Of the last change that was synced.
  uint64_t sequence = 0;
  // The list of the database's files: its name, how long it was at least, and
  // the checksum of that beginning.
  std::string manifest;
  int64_t manifest_bytes = 0;
  uint32_t manifest_checksum = 0;
};

// The mark in `folder`; none where there is no such file.
// Errors: UNAVAILABLE (it cannot be read), DATA_LOSS (it is damaged, which the
//   text says what to do about).
StatusOr<std::optional<SyncedMark>> ReadSyncedMark(const std::string& folder);

// The checksum of a file up to `end`, where `before` is that of its first
// `begin` bytes, which are not read again.
// Errors: UNAVAILABLE (it cannot be read), DATA_LOSS (it is shorter).
StatusOr<uint32_t> ChecksumOf(const std::string& path, int64_t begin,
                              uint32_t before, int64_t end);

// Puts a file or the names in a folder on the disk, whoever wrote them.
// Errors: UNAVAILABLE.
Status SyncFile(const std::string& path);

// SyncedMarkFile is the file, open for writing. One thread at a time.
class SyncedMarkFile {
 public:
  // Makes the file, with `mark` in it, in place of one that is there. When it
  // returns, it is on the disk; before that the old one or none is, and never a
  // part of it.
  // Errors: UNAVAILABLE.
  static StatusOr<std::unique_ptr<SyncedMarkFile>> Create(
      const std::string& folder, const SyncedMark& mark);

  ~SyncedMarkFile();
  SyncedMarkFile(const SyncedMarkFile&) = delete;
  SyncedMarkFile& operator=(const SyncedMarkFile&) = delete;

  // Replaces the mark, in place and within one sector, so that the end of the
  // process or of the machine leaves the one before or this one. Does not wait
  // for the disk: a mark that comes there late only promises less.
  // Errors: UNAVAILABLE.
  Status Write(const SyncedMark& mark);

 private:
  SyncedMarkFile(std::string path, int fd);

  const std::string path_;
  const int fd_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_SYNCED_MARK_H_
