#include "muster/file_store.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/control/deadline.h"
#include "client/control/fork_guard.h"
#include "client/control/log_file.h"
#include "client/control/throw.h"
#include "client/stores/store_rules.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster {
namespace {

using internal::Deadline;
using internal::ErrorSource;
using internal::FileChange;
using internal::LogFile;
using internal::ThrowIfFailed;
using internal::ValueOrThrow;
using Access = internal::LogFile::Access;

// Kinds of records: a value of a key, a store was opened, a store was closed.
constexpr char kSet = 's';
constexpr char kOpened = 'o';
constexpr char kClosed = 'c';

constexpr std::chrono::seconds kCloseTimeout{5};

}  // namespace

// State that clones share: the file, and its content so far.
class FileStore::File {
 public:
  File(const std::string& path, int world_size)
      : path_(path), world_size_(world_size) {}

  ~File() {
    if (log_ == nullptr) return;
    // Ignores errors, which nobody could handle. The file then stays.
    Locked(Access::kExclusive,
           Deadline::After(kCloseTimeout, "5s for closing a FileStore"),
           [&] {
             Status closed = log_->Append({.kind = kClosed});
             if (closed.ok()) closed = Replay();
             if (closed.ok() && opened_ == closed_ && world_size_ >= 0 &&
                 closed_ >= world_size_) {
               log_->Remove();
             }
             return closed;
           })
        .IgnoreError();
  }

  File(const File&) = delete;
  File& operator=(const File&) = delete;

  Status Open(const Deadline& deadline) {
    MutexLock lock(mutex_);
    StatusOr<std::unique_ptr<LogFile>> log = LogFile::Open(path_, deadline);
    if (!log.ok()) return log.status();
    log_ = *std::move(log);
    Status status = Replay();
    if (status.ok()) status = log_->Append({.kind = kOpened});
    log_->Unlock();
    if (!status.ok()) log_ = nullptr;
    return status;
  }

  Status Set(std::string_view key, std::string_view value,
             const Deadline& deadline) {
    return Locked(Access::kExclusive, deadline,
                  [&] { return Put(key, value); });
  }

  StatusOr<int64_t> Add(std::string_view key, int64_t delta,
                        const Deadline& deadline) {
    int64_t result = 0;
    Status status = Locked(Access::kExclusive, deadline, [&] {
      const StatusOr<int64_t> sum =
          internal::Sum(base::ToAbsl(key), Find(key), delta);
      if (!sum.ok()) return sum.status();
      result = *sum;
      return Put(key, absl::StrCat(result));
    });
    if (!status.ok()) return status;
    return result;
  }

  StatusOr<std::string> CompareSet(std::string_view key,
                                   std::string_view expected,
                                   std::string_view desired,
                                   const Deadline& deadline) {
    std::string result;
    Status status = Locked(Access::kExclusive, deadline, [&] {
      const internal::CompareSetDecision decision = internal::DecideCompareSet(
          Find(key), base::ToAbsl(expected), base::ToAbsl(desired));
      result = std::string(decision.result);
      return decision.write ? Put(key, desired) : OkStatus();
    });
    if (!status.ok()) return status;
    return result;
  }

  // Returns the present values of `keys`; nullopt for missing ones.
  StatusOr<std::vector<std::optional<std::string>>> Look(
      const std::vector<std::string>& keys, const Deadline& deadline) {
    std::vector<std::optional<std::string>> values;
    Status status = Locked(Access::kShared, deadline, [&] {
      for (const std::string& key : keys) {
        const std::string* const found = Find(key);
        values.push_back(found == nullptr ? std::nullopt
                                          : std::optional(*found));
      }
      return OkStatus();
    });
    if (!status.ok()) return status;
    return values;
  }

  // As Look, but waits until all exist.
  // Errors: WaitTimeout's.
  StatusOr<std::vector<std::optional<std::string>>> Await(
      const std::vector<std::string>& keys, const Deadline& deadline) {
    std::unique_ptr<FileChange> change;
    const absl::Cleanup give_back = [&] { KeepChange(std::move(change)); };
    for (;;) {
      auto values = Look(keys, deadline);
      if (!values.ok()) return values;
      std::vector<std::string> missing;
      for (size_t i = 0; i < keys.size(); ++i) {
        if (!(*values)[i].has_value()) missing.push_back(keys[i]);
      }
      if (missing.empty()) return values;
      if (deadline.Passed(Clock::now())) {
        return internal::WaitTimeout(missing, deadline);
      }
      if (change == nullptr) {
        change = TakeChange();
      } else {
        change->Await(deadline.at);
      }
    }
  }

  StatusOr<std::vector<std::string>> ListKeys(std::string_view prefix,
                                              const Deadline& deadline) {
    std::vector<std::string> keys;
    Status status = Locked(Access::kShared, deadline, [&] {
      for (auto it = values_.lower_bound(prefix);
           it != values_.end() &&
           absl::StartsWith(it->first, base::ToAbsl(prefix));
           ++it) {
        keys.push_back(it->first);
      }
      return OkStatus();
    });
    if (!status.ok()) return status;
    internal::DropReservedKeys(base::ToAbsl(prefix), keys);
    return keys;
  }

  StatusOr<int64_t> OpenStores(const Deadline& deadline) {
    int64_t count = 0;
    Status status = Locked(Access::kShared, deadline, [&] {
      count = opened_ - closed_;
      return OkStatus();
    });
    if (!status.ok()) return status;
    return count;
  }

  const std::string& path() const { return path_; }

 private:
  // Runs `function` with the file locked and all its records read.
  template <typename Function>
  Status Locked(Access access, const Deadline& deadline, Function function) {
    if (!fork_guard_.is_here()) {
      return FailedPreconditionError(
          absl::StrCat("FileStore ", base::Quote(path_), internal::kIsParents));
    }
    MutexLock lock(mutex_);
    Status status = log_->Lock(access, deadline);
    if (!status.ok()) return status;
    const absl::Cleanup unlock = [this] { log_->Unlock(); };
    status = Replay();
    if (!status.ok()) return status;
    return function();
  }

  Status Replay() {
    return log_->Replay(
        [this](LogFile::Record record) { Apply(std::move(record)); });
  }

  void Apply(LogFile::Record record) {
    switch (record.kind) {
      case kSet:
        values_.insert_or_assign(std::move(record.key),
                                 std::move(record.value));
        break;
      case kOpened:
        ++opened_;
        break;
      case kClosed:
        ++closed_;
        break;
      default:
        break;
    }
  }

  const std::string* Find(std::string_view key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
  }

  Status Put(std::string_view key, std::string_view value) {
    return log_->Append(
        {.kind = kSet, .key = std::string(key), .value = std::string(value)});
  }

  // Unused ones are kept, because the system takes milliseconds to close one.
  std::unique_ptr<FileChange> TakeChange() {
    MutexLock lock(changes_mutex_);
    if (changes_.empty()) return std::make_unique<FileChange>(path_);
    std::unique_ptr<FileChange> change = std::move(changes_.back());
    changes_.pop_back();
    return change;
  }

  void KeepChange(std::unique_ptr<FileChange> change) {
    if (change == nullptr) return;
    MutexLock lock(changes_mutex_);
    changes_.push_back(std::move(change));
  }

  const std::string path_;
  const int world_size_;
  const internal::ForkGuard fork_guard_;

  Mutex changes_mutex_;
  // Watches that no waiting call uses.
  std::vector<std::unique_ptr<FileChange>> changes_
      MUSTER_GUARDED_BY(changes_mutex_);

  // Guards all fields below.
  Mutex mutex_;
  std::unique_ptr<LogFile> log_;
  std::map<std::string, std::string, std::less<>> values_;
  int64_t opened_ = 0;
  int64_t closed_ = 0;
};

FileStore::FileStore(const std::string& path, int world_size)
    : file_(internal::MakeAtHome<File>(path, world_size)) {
  if (path.empty()) {
    internal::Throw(ErrorSource::kStore,
                    InvalidArgumentError("FileStore: path missing"));
  }
  if (world_size < -1) {
    internal::Throw(
        ErrorSource::kStore,
        InvalidArgumentError(absl::StrCat(
            "FileStore: world_size must be at least 0, or -1 for a file that "
            "nobody removes, but was ",
            world_size)));
  }
  ThrowIfFailed(ErrorSource::kStore,
                file_->Open(internal::StoreDeadline(timeout())));
}

FileStore::FileStore(std::shared_ptr<File> file,
                     std::chrono::milliseconds timeout)
    : file_(std::move(file)), timeout_(timeout) {}

FileStore::~FileStore() = default;

void FileStore::Set(std::string_view key, std::string_view value) {
  ThrowIfFailed(ErrorSource::kStore,
                file_->Set(key, value, internal::StoreDeadline(timeout())));
}

std::string FileStore::Get(std::string_view key) {
  const Deadline deadline = internal::StoreDeadline(timeout());
  auto values = file_->Await({std::string(key)}, deadline);
  if (IsDeadlineExceeded(values.status())) {
    internal::Throw(
        ErrorSource::kStore,
        DeadlineExceededError(absl::StrCat(
            "Timeout waiting for key: ", base::Escape(base::ToAbsl(key)),
            " after ", deadline.timeout.count(),
            " ms: ", values.status().message())));
  }
  return *ValueOrThrow(ErrorSource::kStore, std::move(values)).front();
}

int64_t FileStore::Add(std::string_view key, int64_t delta) {
  return ValueOrThrow(
      ErrorSource::kStore,
      file_->Add(key, delta, internal::StoreDeadline(timeout())));
}

bool FileStore::Check(const std::vector<std::string>& keys) {
  const auto values =
      ValueOrThrow(ErrorSource::kStore,
                   file_->Look(keys, internal::StoreDeadline(timeout())));
  return std::all_of(values.begin(), values.end(),
                     [](const auto& value) { return value.has_value(); });
}

std::string FileStore::CompareSet(std::string_view key,
                                  std::string_view expected,
                                  std::string_view desired) {
  return ValueOrThrow(ErrorSource::kStore,
                      file_->CompareSet(key, expected, desired,
                                        internal::StoreDeadline(timeout())));
}

int64_t FileStore::NumKeys() {
  // c10d's FileStore counts a key of its own, too, and programs rely on it.
  return static_cast<int64_t>(ListKeys("").size()) + 1;
}

std::vector<std::string> FileStore::ListKeys(std::string_view prefix) {
  return ValueOrThrow(
      ErrorSource::kStore,
      file_->ListKeys(prefix, internal::StoreDeadline(timeout())));
}

void FileStore::Wait(const std::vector<std::string>& keys,
                     std::chrono::milliseconds timeout) {
  if (keys.empty()) return;
  ThrowIfFailed(ErrorSource::kStore,
                internal::CheckTimeout(timeout, "Store::Wait"));
  ThrowIfFailed(ErrorSource::kStore,
                file_->Await(keys, internal::WaitDeadline(timeout)).status());
}

std::shared_ptr<Store> FileStore::Clone() {
  return std::shared_ptr<Store>(new FileStore(file_, timeout()));
}

void FileStore::SetTimeout(std::chrono::milliseconds timeout) {
  ThrowIfFailed(ErrorSource::kStore, internal::CheckTimeout(timeout));
  timeout_ = timeout;
}

std::chrono::milliseconds FileStore::timeout() const { return timeout_; }

const std::string& FileStore::path() const { return file_->path(); }

int64_t FileStore::OpenStores() {
  return ValueOrThrow(ErrorSource::kStore,
                      file_->OpenStores(internal::StoreDeadline(timeout())));
}

}  // namespace muster
