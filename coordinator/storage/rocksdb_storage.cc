#include "coordinator/storage/rocksdb_storage.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "rocksdb/db.h"
#include "rocksdb/iterator.h"
#include "rocksdb/options.h"
#include "rocksdb/write_batch.h"

namespace muster::coordinator {
namespace {

// Says which version wrote the database. No job's key begins with that byte.
constexpr char kFormatKey[] =
    "\xff"
    "format";
constexpr char kFormat[] = "muster 1";

// The whole state also lies in the coordinator's memory, so the database needs
// no cache: it is written, and read once.
constexpr size_t kWriteBufferBytes = 32 << 20;
constexpr uint64_t kLogBytesMax = 128 << 20;
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

class RocksDbStorage final : public Storage {
 public:
  RocksDbStorage(std::string path, std::unique_ptr<rocksdb::DB> database)
      : path_(std::move(path)), database_(std::move(database)) {}

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
    const rocksdb::Status written =
        database_->Write(rocksdb::WriteOptions(), &batch);
    return written.ok() ? absl::OkStatus() : ErrorOf("write", path_, written);
  }

  const std::string path_;
  const std::unique_ptr<rocksdb::DB> database_;
};

rocksdb::Options DatabaseOptions() {
  rocksdb::Options options;
  options.create_if_missing = true;
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
