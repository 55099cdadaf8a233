#include "coordinator/storage/rocksdb_storage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/iterator.h"
#include "rocksdb/options.h"
#include "rocksdb/write_batch.h"

namespace muster::coordinator {
namespace {

// Says which version wrote the database. No job's key begins with that byte.
constexpr char kFormatKey[] =
    "\xff"
    "format";
constexpr char kFormat[] = "muster 2";

// The whole state also lies in the coordinator's memory, so the database needs
// no cache: it is written, and read once.
constexpr size_t kWriteBufferBytes = 32 << 20;
constexpr uint64_t kLogBytesMax = 128 << 20;
// What a start may write before anything of its own.
constexpr size_t kRoomBytes = 1 << 20;
constexpr int kInfoLogsMax = 4;
constexpr size_t kInfoLogBytes = 1 << 20;

rocksdb::Slice SliceOf(absl::string_view bytes) {
  return rocksdb::Slice(bytes.data(), bytes.size());
}

absl::string_view ViewOf(const rocksdb::Slice& slice) {
  return absl::string_view(slice.data(), slice.size());
}

absl::Status ErrorOf(absl::string_view what, const std::string& path,
                     const rocksdb::Status& status) {
  const std::string text = absl::StrCat("storage ", path, ": cannot ", what,
                                        ": ", status.ToString());
  if (status.IsCorruption()) return absl::DataLossError(text);
  if (absl::StrContains(text, "lock ") || status.IsBusy()) {
    return absl::FailedPreconditionError(
        absl::StrCat(text, "; another coordinator has it open"));
  }
  return absl::UnavailableError(text);
}

absl::Status SystemError(absl::string_view what, const std::string& path,
                         int error) {
  std::string why = strerror(error);
  why[0] = absl::ascii_tolower(why[0]);
  return absl::UnavailableError(
      absl::StrCat("storage ", path, ": cannot ", what, ": ", why));
}

// The library, as the distribution builds it, ends the process when the disk
// has no room for the first bytes that it writes.
absl::Status CheckRoom(const std::string& path) {
  // What is wrong with the folder itself is for the library to say.
  if (!rocksdb::Env::Default()->CreateDirIfMissing(path).ok()) {
    return absl::OkStatus();
  }
  const std::string probe = path + "/room.tmp";
  const int fd = open(probe.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) {
    return errno == EACCES || errno == EROFS
               ? absl::OkStatus()
               : SystemError("write", path, errno);
  }
  const auto remove = absl::MakeCleanup([&] {
    close(fd);
    unlink(probe.c_str());
  });
  const int error = posix_fallocate(fd, 0, kRoomBytes);
  return error == 0 ? absl::OkStatus() : SystemError("write", path, error);
}

// Which file it is, whatever its name.
ino_t InodeOf(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

class RocksDbStorage final : public Storage {
 public:
  RocksDbStorage(std::string path, std::unique_ptr<rocksdb::DB> database)
      : path_(std::move(path)),
        database_(std::move(database)),
        lock_file_(path_ + "/LOCK"),
        lock_inode_(InodeOf(lock_file_)) {}

  ~RocksDbStorage() override {
    const rocksdb::Status closed = database_->Close();
    if (!closed.ok()) {
      LOG(ERROR) << "storage_not_closed: path=" << path_ << " cause=\""
                 << closed.ToString() << "\"";
    }
  }

  // Writes the version into a new database, checks that of an old one.
  absl::Status CheckFormat() {
    std::string format;
    const rocksdb::Status found =
        database_->Get(rocksdb::ReadOptions(), kFormatKey, &format);
    if (found.IsNotFound()) {
      return Write({{kFormatKey, std::string(kFormat)}});
    }
    if (!found.ok()) return ErrorOf("read", path_, found);
    if (format == kFormat) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("storage ", path_, ": written by format \"", format,
                     "\", this coordinator reads \"", kFormat, "\""));
  }

  absl::Status Load(
      absl::FunctionRef<absl::Status(absl::string_view, absl::string_view)>
          entry) override {
    rocksdb::ReadOptions options;
    options.verify_checksums = true;
    options.fill_cache = false;
    const std::unique_ptr<rocksdb::Iterator> it(
        database_->NewIterator(options));
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      if (ViewOf(it->key()) == kFormatKey) continue;
      absl::Status status = entry(ViewOf(it->key()), ViewOf(it->value()));
      if (!status.ok()) return status;
    }
    if (!it->status().ok()) return ErrorOf("read", path_, it->status());
    return absl::OkStatus();
  }

  absl::Status Write(const std::vector<StorageChange>& changes) override {
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

  absl::Status ErasePrefix(absl::string_view prefix) override {
    // The first key after all that begin with the prefix: its last byte is
    // the end of a job's name, which is never 0xff.
    std::string end(prefix);
    ++end.back();
    rocksdb::WriteBatch batch;
    batch.DeleteRange(SliceOf(prefix), end);
    return Apply(batch);
  }

  absl::Status Sync() override {
    const rocksdb::Status synced = database_->SyncWAL();
    return synced.ok() ? absl::OkStatus() : ErrorOf("sync", path_, synced);
  }

 private:
  absl::Status Apply(rocksdb::WriteBatch& batch) {
    // Files that were removed take what is written, and lose it; and another
    // coordinator could have the folder open by now.
    if (InodeOf(lock_file_) != lock_inode_) {
      return absl::DataLossError(absl::StrCat(
          "storage ", path_, ": the folder was removed or replaced"));
    }
    const rocksdb::Status written =
        database_->Write(rocksdb::WriteOptions(), &batch);
    return written.ok() ? absl::OkStatus() : ErrorOf("write", path_, written);
  }

  const std::string path_;
  const std::unique_ptr<rocksdb::DB> database_;
  const std::string lock_file_;
  const ino_t lock_inode_;
};

rocksdb::Options DatabaseOptions() {
  rocksdb::Options options;
  options.create_if_missing = true;
  // A start then writes next to nothing, so a disk that is nearly full does.
  options.avoid_flush_during_recovery = true;
  options.paranoid_checks = true;
  options.write_buffer_size = kWriteBufferBytes;
  options.max_total_wal_size = kLogBytesMax;
  options.max_background_jobs = 2;
  options.keep_log_file_num = kInfoLogsMax;
  options.max_log_file_size = kInfoLogBytes;
  options.info_log_level = rocksdb::InfoLogLevel::WARN_LEVEL;
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Storage>> OpenRocksDb(const std::string& path) {
  absl::Status room = CheckRoom(path);
  if (!room.ok()) return room;
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status =
      rocksdb::DB::Open(DatabaseOptions(), path, &opened);
  std::unique_ptr<rocksdb::DB> database(opened);
  if (!status.ok()) return ErrorOf("open", path, status);
  auto storage = std::make_unique<RocksDbStorage>(path, std::move(database));
  absl::Status format = storage->CheckFormat();
  if (!format.ok()) return format;
  return storage;
}

}  // namespace muster::coordinator
