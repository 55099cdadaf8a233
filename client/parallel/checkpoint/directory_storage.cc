#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "muster/base/status.h"
#include "muster/checkpoint_storage.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

Status Failure(int error, const fs::path& path) {
  return ErrnoToStatus(error, base::Quote(path.string()));
}

// An open file, which is closed with this object.
class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags)
      : fd_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }

 private:
  const int fd_;
};

// Makes the names in a folder durable.
Status SyncFolder(const fs::path& folder) {
  const Descriptor descriptor(folder, O_RDONLY | O_DIRECTORY);
  // Some file systems have nothing to do: EINVAL.
  if (descriptor.get() < 0 ||
      (fsync(descriptor.get()) != 0 && errno != EINVAL)) {
    return Failure(errno, folder);
  }
  return OkStatus();
}

// Makes a folder and those above it, durably. Other ranks may do so, too.
Status MakeFolder(const fs::path& folder) {
  std::error_code error;
  if (folder.empty() || fs::is_directory(folder, error)) return OkStatus();
  if (Status made = MakeFolder(folder.parent_path()); !made.ok()) return made;
  if (mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) {
    return Failure(errno, folder);
  }
  return SyncFolder(folder.has_parent_path() ? folder.parent_path() : ".");
}

class FileWriter : public CheckpointWriter {
 public:
  explicit FileWriter(fs::path path)
      : path_(std::move(path)), file_(path_, O_WRONLY | O_CREAT | O_EXCL) {}

  bool is_open() const { return file_.get() >= 0; }

  Status Append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = write(file_.get(), bytes.data(), bytes.size());
      if (written >= 0) {
        bytes = bytes.subspan(static_cast<size_t>(written));
      } else if (errno != EINTR) {
        return Failure(errno, path_);
      }
    }
    return OkStatus();
  }

  Status Finish() override {
    if (fsync(file_.get()) != 0) return Failure(errno, path_);
    return OkStatus();
  }

 private:
  const fs::path path_;
  const Descriptor file_;
};

class FileReader : public CheckpointReader {
 public:
  explicit FileReader(fs::path path)
      : path_(std::move(path)), file_(path_, O_RDONLY) {}

  // Returns errno, or 0.
  int Prepare() {
    struct stat info = {};
    if (file_.get() < 0 || fstat(file_.get(), &info) != 0) return errno;
    size_ = info.st_size;
    return S_ISREG(info.st_mode) ? 0 : EISDIR;
  }

  int64_t size() const override { return size_; }

  Status Read(int64_t offset, std::span<std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t got =
          pread(file_.get(), bytes.data(), bytes.size(), offset);
      if (got == 0) {
        return DataLossError(absl::StrCat(base::Quote(path_.string()),
                                          " ends at byte ", offset));
      }
      if (got > 0) {
        offset += got;
        bytes = bytes.subspan(static_cast<size_t>(got));
      } else if (errno == EIO) {
        // Also a server that does not answer, so it is no proof of damage.
        return UnavailableError(absl::StrCat(base::Quote(path_.string()),
                                             " cannot be read at byte ", offset,
                                             ": ", strerror(EIO)));
      } else if (errno != EINTR) {
        return Failure(errno, path_);
      }
    }
    return OkStatus();
  }

 private:
  const fs::path path_;
  const Descriptor file_;
  int64_t size_ = 0;
};

class Directory : public CheckpointStorage {
 public:
  explicit Directory(const std::string& root)
      : root_(root.empty() ? "." : root) {}

  StatusOr<std::unique_ptr<CheckpointWriter>> Create(
      const std::string& path) override {
    const fs::path whole = root_ / path;
    if (Status made = MakeFolder(whole.parent_path()); !made.ok()) return made;
    auto writer = std::make_unique<FileWriter>(whole);
    if (!writer->is_open()) return Failure(errno, whole);
    return writer;
  }

  StatusOr<std::unique_ptr<CheckpointReader>> Open(
      const std::string& path) override {
    auto reader = std::make_unique<FileReader>(root_ / path);
    if (const int error = reader->Prepare()) {
      return Failure(error, root_ / path);
    }
    return reader;
  }

  StatusOr<std::vector<std::string>> ListFolders() override {
    std::error_code error;
    fs::directory_iterator it(root_, error);
    std::vector<std::string> folders;
    for (; !error && it != fs::directory_iterator(); it.increment(error)) {
      std::error_code ignored;
      if (it->is_directory(ignored)) {
        folders.push_back(it->path().filename().string());
      }
    }
    if (error && error != std::errc::no_such_file_or_directory) {
      return Failure(error.value(), root_);
    }
    return folders;
  }

  Status Rename(const std::string& from, const std::string& to) override {
    // rename() would replace an empty folder.
    struct stat info = {};
    if (lstat((root_ / to).c_str(), &info) == 0) {
      return Failure(EEXIST, root_ / to);
    }
    // The files' names must be durable before that of the folder is.
    if (Status synced = SyncFolder(root_ / from); !synced.ok()) return synced;
    if (rename((root_ / from).c_str(), (root_ / to).c_str()) != 0) {
      return Failure(errno, root_ / to);
    }
    Status synced = SyncFolder(root_);
    // A caller that gets an error must find the old name.
    if (!synced.ok()) rename((root_ / to).c_str(), (root_ / from).c_str());
    return synced;
  }

  Status Remove(const std::string& folder) override {
    std::error_code error;
    fs::remove_all(root_ / folder, error);
    if (error) return Failure(error.value(), root_ / folder);
    return OkStatus();
  }

 private:
  const fs::path root_;
};

}  // namespace

std::unique_ptr<CheckpointStorage> DirectoryStorage(
    const std::string& directory) {
  return std::make_unique<Directory>(directory);
}

}  // namespace muster
