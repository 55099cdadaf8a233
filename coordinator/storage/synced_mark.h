#ifndef MUSTER_COORDINATOR_STORAGE_SYNCED_MARK_H_
#define MUSTER_COORDINATOR_STORAGE_SYNCED_MARK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "muster/base/status.h"

namespace muster::coordinator {

// The path of the mark of the database in `folder`.
std::string SyncedMarkPath(const std::string& folder);

// Records which part of a database is known to be on the disk, in a file beside
// the database. The next start uses it to tell a log whose acknowledged end was
// lost from a log that ends in an unacknowledged change: the database itself
// accepts both as the end of its log.
struct SyncedMark {
  // The number of the last synced change.
  uint64_t sequence = 0;
  // The file that lists the database's files: its name, its length at least,
  // and the checksum of that part.
  std::string manifest;
  int64_t manifest_bytes = 0;
  uint32_t manifest_checksum = 0;
};

// The mark in `folder`; none: there is no such file.
// Errors: UNAVAILABLE (it cannot be read), DATA_LOSS (it is damaged; the text
//   says what to do).
StatusOr<std::optional<SyncedMark>> ReadSyncedMark(const std::string& folder);

// The checksum of the first `end` bytes of a file. `before` is that of its
// first `begin` bytes, which are not read again.
// Errors: UNAVAILABLE (it cannot be read), DATA_LOSS (it is shorter).
StatusOr<uint32_t> ComputeChecksum(const std::string& path, int64_t begin,
                                   uint32_t before, int64_t end);

// Syncs a file, or the names in a folder, to the disk, whichever process wrote
// them. Errors: UNAVAILABLE.
Status SyncFile(const std::string& path);

// SyncedMarkFile is the file, open for writing. One thread at a time.
class SyncedMarkFile {
 public:
  // Creates the file with `mark`, and replaces an older one. The file is on the
  // disk when this returns; if the process ends before, the older one or none
  // is, never a part of this one.
  // Errors: UNAVAILABLE.
  static StatusOr<std::unique_ptr<SyncedMarkFile>> Create(
      const std::string& folder, const SyncedMark& mark);

  ~SyncedMarkFile();
  SyncedMarkFile(const SyncedMarkFile&) = delete;
  SyncedMarkFile& operator=(const SyncedMarkFile&) = delete;

  // Replaces the mark in place and within one sector, so that a crash of the
  // process or the machine leaves either mark. Does not wait for the disk: a
  // mark that is written late only promises less.
  // Errors: UNAVAILABLE.
  Status Write(const SyncedMark& mark);

 private:
  SyncedMarkFile(std::string path, int fd);

  const std::string path_;
  const int fd_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_SYNCED_MARK_H_
