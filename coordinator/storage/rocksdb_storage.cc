#include "coordinator/storage/rocksdb_storage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "coordinator/storage/synced_mark.h"
#include "glog/logging.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/iterator.h"
#include "rocksdb/options.h"
#include "rocksdb/write_batch.h"

namespace muster::coordinator {
namespace {

// The key for the version that wrote the database. No job's key begins with its
// first byte.
constexpr char kFormatKey[] =
    "\xff"
    "format";
constexpr char kFormat[] = "muster 2";

// The whole state is also in the coordinator's memory, so the database needs no
// cache: it is written, and read once.
constexpr size_t kWriteBufferBytes = 32 << 20;
constexpr uint64_t kLogBytesMax = 128 << 20;
// The most bytes that a start writes first, in addition to the logs' contents.
constexpr int64_t kRoomBytes = 1 << 20;
constexpr int kInfoLogsMax = 4;
constexpr size_t kInfoLogBytes = 1 << 20;

rocksdb::Slice ToSlice(absl::string_view bytes) {
  return rocksdb::Slice(bytes.data(), bytes.size());
}

absl::string_view ToView(const rocksdb::Slice& slice) {
  return absl::string_view(slice.data(), slice.size());
}

Status Damaged(const std::string& path, absl::string_view what) {
  return DataLossError(absl::StrCat(
      "storage ", path, ": ", what,
      "; put a copy of the whole folder in its place, or move it away to begin "
      "without the jobs in it"));
}

Status ToStatus(absl::string_view what, const std::string& path,
                const rocksdb::Status& status) {
  const std::string why =
      absl::StrCat("cannot ", what, ": ", status.ToString());
  if (status.IsCorruption()) return Damaged(path, why);
  const std::string text = absl::StrCat("storage ", path, ": ", why);
  // RocksDB has no code for a lock that another process holds, only an IOError
  // with a text. ToString() also has the path, which may contain such words.
  const absl::string_view state =
      status.getState() == nullptr ? "" : status.getState();
  if (absl::StartsWith(state, "While lock file: ") ||
      absl::StartsWith(state, "lock hold by ") || status.IsBusy()) {
    return FailedPreconditionError(
        absl::StrCat(text, "; another coordinator has it open"));
  }
  return UnavailableError(text);
}

Status SystemError(absl::string_view what, const std::string& path, int error) {
  std::string why = strerror(error);
  why[0] = absl::ascii_tolower(why[0]);
  return UnavailableError(
      absl::StrCat("storage ", path, ": cannot ", what, ": ", why));
}

// The database's files in the folder with that ending, which have numbers as
// names.
std::vector<std::string> FindFiles(const std::string& path,
                                   absl::string_view ending) {
  std::vector<std::string> files;
  rocksdb::Env::Default()->GetChildren(path, &files).PermitUncheckedError();
  std::erase_if(files, [&](absl::string_view name) {
    return !absl::ConsumeSuffix(&name, ending) || name.empty() ||
           !std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
  });
  std::sort(files.begin(), files.end());
  return files;
}

// Debian's RocksDB ends the process when the disk has no room for the first
// bytes that it writes. A start also writes the logs' contents into a file.
Status CheckRoom(const std::string& path) {
  // RocksDB reports errors of the folder itself.
  if (!rocksdb::Env::Default()->CreateDirIfMissing(path).ok()) {
    return OkStatus();
  }
  int64_t bytes = kRoomBytes;
  for (const std::string& log : FindFiles(path, ".log")) {
    struct stat info = {};
    if (stat(absl::StrCat(path, "/", log).c_str(), &info) == 0) {
      bytes += info.st_size;
    }
  }
  const std::string probe = path + "/room.tmp";
  const int fd = open(probe.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) {
    return errno == EACCES || errno == EROFS
               ? OkStatus()
               : SystemError("write", path, errno);
  }
  const auto remove = absl::MakeCleanup([&] {
    close(fd);
    unlink(probe.c_str());
  });
  const int error = posix_fallocate(fd, 0, bytes);
  return error == 0 ? OkStatus()
                    : SystemError(absl::StrCat("write the ", bytes,
                                               " bytes that a start needs"),
                                  path, error);
}

// The name of the manifest, from CURRENT; empty: CURRENT is missing.
std::string FindManifest(const std::string& path) {
  std::string name;
  std::ifstream current(path + "/CURRENT");
  std::getline(current, name);
  return name;
}

// Identifies the file, whatever its name.
ino_t GetInode(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

class RocksDbStorage final : public Storage {
 public:
  RocksDbStorage(std::string path, std::unique_ptr<rocksdb::DB> database)
      : path_(std::move(path)),
        database_(std::move(database)),
        lock_file_(path_ + "/LOCK"),
        lock_inode_(GetInode(lock_file_)) {}

  ~RocksDbStorage() override {
    const rocksdb::Status closed = database_->Close();
    if (!closed.ok()) {
      LOG(ERROR) << "storage_not_closed: path=" << base::LogValue(path_)
                 << " cause=" << base::Quote(closed.ToString());
    }
  }

  // Call it before anything is acknowledged.
  Status Begin() {
    Status status = CheckFormat();
    if (status.ok()) status = SyncLog();
    if (!status.ok()) return status;
    StatusOr<std::unique_ptr<SyncedMarkFile>> file =
        SyncedMarkFile::Create(path_, mark_);
    if (!file.ok()) return file.status();
    mark_file_ = *std::move(file);
    return OkStatus();
  }

  Status Load(absl::FunctionRef<Status(absl::string_view, absl::string_view)>
                  entry) override {
    rocksdb::ReadOptions options;
    options.verify_checksums = true;
    options.fill_cache = false;
    const std::unique_ptr<rocksdb::Iterator> it(
        database_->NewIterator(options));
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      if (ToView(it->key()) == kFormatKey) continue;
      Status status = entry(ToView(it->key()), ToView(it->value()));
      if (!status.ok()) return status;
    }
    if (!it->status().ok()) return ToStatus("read", path_, it->status());
    return OkStatus();
  }

  Status Write(const std::vector<StorageChange>& changes) override {
    rocksdb::WriteBatch batch;
    for (const StorageChange& change : changes) {
      if (change.value.has_value()) {
        batch.Put(change.key, *change.value);
      } else {
        batch.Delete(change.key);
      }
    }
    return Apply(batch);
  }

  Status ErasePrefix(absl::string_view prefix) override {
    // The first key after all that begin with the prefix. Its last byte ends a
    // job's name and is never 0xff.
    std::string end(prefix);
    ++end.back();
    rocksdb::WriteBatch batch;
    batch.DeleteRange(ToSlice(prefix), end);
    return Apply(batch);
  }

  Status Sync() override {
    Status status = SyncLog();
    return status.ok() ? mark_file_->Write(mark_) : status;
  }

 private:
  // Writes the version into a new database, or checks that of an old one.
  Status CheckFormat() {
    std::string format;
    const rocksdb::Status found =
        database_->Get(rocksdb::ReadOptions(), kFormatKey, &format);
    if (found.IsNotFound()) {
      return Write({{kFormatKey, std::string(kFormat)}});
    }
    if (!found.ok()) return ToStatus("read", path_, found);
    if (format == kFormat) return OkStatus();
    return FailedPreconditionError(absl::StrCat(
        "storage ", path_, ": written by format ", base::Quote(format),
        ", this coordinator reads \"", kFormat, "\""));
  }

  // Syncs the log and sets `mark_` to its end.
  Status SyncLog() {
    const rocksdb::Status synced = database_->SyncWAL();
    if (!synced.ok()) return ToStatus("sync", path_, synced);
    mark_.sequence = database_->GetLatestSequenceNumber();
    while (true) {
      if (mark_.manifest.empty()) mark_.manifest = FindManifest(path_);
      Status marked = MarkManifest();
      if (marked.ok() || FindManifest(path_) == mark_.manifest) return marked;
      // The library has begun another manifest and removed this one.
      mark_.manifest.clear();
      mark_.manifest_bytes = 0;
      mark_.manifest_checksum = 0;
    }
  }

  Status MarkManifest() {
    const std::string manifest = absl::StrCat(path_, "/", mark_.manifest);
    struct stat info = {};
    if (stat(manifest.c_str(), &info) != 0) {
      return SystemError("read", manifest, errno);
    }
    // The manifest grows with each new file, which is rare.
    if (info.st_size == mark_.manifest_bytes) return OkStatus();
    // The manifest must be on the disk before the mark that describes it.
    Status synced = SyncFile(manifest);
    if (!synced.ok()) return synced;
    const StatusOr<uint32_t> checksum = ComputeChecksum(
        manifest, mark_.manifest_bytes, mark_.manifest_checksum, info.st_size);
    if (!checksum.ok()) return checksum.status();
    mark_.manifest_bytes = info.st_size;
    mark_.manifest_checksum = *checksum;
    return OkStatus();
  }

  Status Apply(rocksdb::WriteBatch& batch) {
    // Removed files accept writes and lose them; and another coordinator could
    // have the folder open by now.
    if (GetInode(lock_file_) != lock_inode_) {
      return DataLossError(absl::StrCat(
          "storage ", path_, ": the folder was removed or replaced"));
    }
    const rocksdb::Status written =
        database_->Write(rocksdb::WriteOptions(), &batch);
    return written.ok() ? OkStatus() : ToStatus("write", path_, written);
  }

  const std::string path_;
  const std::unique_ptr<rocksdb::DB> database_;
  std::unique_ptr<SyncedMarkFile> mark_file_;  // set by Begin
  SyncedMark mark_;
  const std::string lock_file_;
  const ino_t lock_inode_;
};

rocksdb::Options DatabaseOptions() {
  rocksdb::Options options;
  options.paranoid_checks = true;
  // The log ends at its first damage. Verify finds out whether acknowledged
  // changes came after that.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  // Detects damage of a log that is not the last.
  options.track_and_verify_wals_in_manifest = true;
  // Only starts begin a new manifest. If one begins while the database is in
  // use, version 7.8 may name a log in it that is gone
  // (facebook/rocksdb#10892), and refuses the database at the next start.
  options.max_manifest_file_size = std::numeric_limits<uint64_t>::max();
  options.write_buffer_size = kWriteBufferBytes;
  options.max_total_wal_size = kLogBytesMax;
  options.max_background_jobs = 2;
  options.keep_log_file_num = kInfoLogsMax;
  options.max_log_file_size = kInfoLogBytes;
  options.info_log_level = rocksdb::InfoLogLevel::WARN_LEVEL;
  return options;
}

bool IsThere(const std::string& path, absl::string_view file) {
  return access(absl::StrCat(path, "/", file).c_str(), F_OK) == 0;
}

// Checks that a folder without CURRENT is not a database that has lost it: the
// library would take it for a new one and remove its files.
Status CheckNew(const std::string& path) {
  std::vector<std::string> files = FindFiles(path, ".sst");
  for (std::string& log : FindFiles(path, ".log")) {
    files.push_back(std::move(log));
  }
  struct stat info = {};
  if (stat(SyncedMarkPath(path).c_str(), &info) == 0 && info.st_size > 0) {
    files.emplace_back("SYNCED");
  }
  if (files.empty()) return OkStatus();
  return Damaged(path, absl::StrCat("its file CURRENT is missing, while ",
                                    files.front(), " is there"));
}

// Checks that the manifest begins as the mark says. A newer manifest was made
// by a start that ended before it made its mark.
Status VerifyManifest(const std::string& path, const SyncedMark& mark) {
  if (FindManifest(path) != mark.manifest) return OkStatus();
  const StatusOr<uint32_t> checksum = ComputeChecksum(
      absl::StrCat(path, "/", mark.manifest), 0, 0, mark.manifest_bytes);
  if (checksum.ok() && *checksum == mark.manifest_checksum) {
    return OkStatus();
  }
  return Damaged(path, absl::StrCat("its file ", mark.manifest,
                                    " was cut, overwritten or removed"));
}

// Checks that all acknowledged changes can be read. Reads the whole database
// and changes nothing.
Status Verify(const std::string& path, const rocksdb::Options& options) {
  rocksdb::Env* const env = rocksdb::Env::Default();
  rocksdb::FileLock* lock = nullptr;
  const rocksdb::Status locked = env->LockFile(path + "/LOCK", &lock);
  if (!locked.ok()) return ToStatus("open", path, locked);
  const auto unlock =
      absl::MakeCleanup([&] { env->UnlockFile(lock).PermitUncheckedError(); });
  const StatusOr<std::optional<SyncedMark>> mark = ReadSyncedMark(path);
  if (!mark.ok() && IsDataLoss(mark.status())) {
    return Damaged(path, mark.status().message());
  }
  if (!mark.ok()) return mark.status();
  // Without a mark, an older version wrote the database.
  const SyncedMark synced = mark->value_or(SyncedMark());
  Status status = VerifyManifest(path, synced);
  if (!status.ok()) return status;
  rocksdb::DB* opened = nullptr;
  rocksdb::Status read = rocksdb::DB::OpenForReadOnly(options, path, &opened);
  const std::unique_ptr<rocksdb::DB> database(opened);
  if (read.ok()) read = database->VerifyChecksum();
  // A missing file that other files name.
  if (read.IsPathNotFound()) return Damaged(path, read.ToString());
  if (!read.ok()) return ToStatus("read", path, read);
  const uint64_t last = database->GetLatestSequenceNumber();
  if (last >= synced.sequence) return OkStatus();
  return Damaged(
      path, absl::StrCat("change ", synced.sequence,
                         " was acknowledged, but what can be read ends at "
                         "change ",
                         last,
                         ": a log was cut, overwritten or removed (there "
                         "is ",
                         absl::StrJoin(FindFiles(path, ".log"), ", "), ")"));
}

}  // namespace

StatusOr<std::unique_ptr<Storage>> OpenRocksDb(const std::string& path) {
  Status status = CheckRoom(path);
  if (!status.ok()) return status;
  rocksdb::Options options = DatabaseOptions();
  if (IsThere(path, "CURRENT")) {
    status = Verify(path, options);
  } else {
    options.create_if_missing = true;
    status = CheckNew(path);
  }
  if (!status.ok()) return status;
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status open = rocksdb::DB::Open(options, path, &opened);
  std::unique_ptr<rocksdb::DB> database(opened);
  if (!open.ok()) return ToStatus("open", path, open);
  auto storage = std::make_unique<RocksDbStorage>(path, std::move(database));
  status = storage->Begin();
  if (!status.ok()) return status;
  return storage;
}

}  // namespace muster::coordinator
