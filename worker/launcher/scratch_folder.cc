#include "worker/launcher/scratch_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text.h"
#include "muster/base/status.h"

namespace muster::worker {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kPrefix = "muster-run.";

// Returns a descriptor or -1.
int Open(const fs::path& folder) {
  return open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

void RemoveStale(const fs::path& root) {
  std::error_code error;
  for (fs::directory_iterator each(root, error), end; !error && each != end;
       each.increment(error)) {
    const fs::path& path = each->path();
    if (!absl::StartsWith(path.filename().string(), kPrefix)) continue;
    const int fd = Open(path);
    struct stat entry;
    if (fd >= 0 && fstat(fd, &entry) == 0 && entry.st_uid == geteuid() &&
        flock(fd, LOCK_EX | LOCK_NB) == 0) {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
    if (fd >= 0) close(fd);
  }
}

// Whether this process owns the folder of `fd` from now on. Not if another
// process is just removing it as a stale one.
bool Lock(int fd) {
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    // Without locks no process removes it.
    return errno != EWOULDBLOCK;
  }
  struct stat entry;
  return fstat(fd, &entry) == 0 && entry.st_nlink > 0;
}

StatusOr<fs::path> Root(absl::string_view purpose) {
  std::error_code error;
  fs::path root = fs::temp_directory_path(error);
  if (!error) return root;
  const char* const given = std::getenv("TMPDIR");
  return FailedPreconditionError(
      absl::StrCat("cannot make a folder for ", purpose, " in TMPDIR \"",
                   given == nullptr ? "/tmp" : given, "\": ", error.message()));
}

// Returns the template of a new folder for mkdtemp.
std::string NameIn(const fs::path& root, absl::string_view prefix) {
  return (root / absl::StrCat(prefix, "XXXXXX")).string();
}

Status CannotMake(const std::string& path) {
  return FailedPreconditionError(absl::StrCat(
      "cannot make a folder ", base::Quote(path), ": ", std::strerror(errno)));
}

}  // namespace

StatusOr<std::string> MakeFolderToKeep(absl::string_view prefix,
                                       absl::string_view purpose) {
  const StatusOr<fs::path> root = Root(purpose);
  if (!root.ok()) return root.status();
  std::string path = NameIn(*root, prefix);
  if (mkdtemp(path.data()) == nullptr) return CannotMake(path);
  return path;
}

StatusOr<ScratchFolder> ScratchFolder::Create() {
  const StatusOr<fs::path> root = Root("the ranks' error files");
  if (!root.ok()) return root.status();
  RemoveStale(*root);
  while (true) {
    std::string path = NameIn(*root, kPrefix);
    int fd = -1;
    if (mkdtemp(path.data()) == nullptr || (fd = Open(path)) < 0) {
      std::error_code error;
      if (errno == ENOENT && fs::is_directory(*root, error)) continue;
      return CannotMake(path);
    }
    if (Lock(fd)) return ScratchFolder(std::move(path), fd);
    close(fd);
  }
}

ScratchFolder::ScratchFolder(std::string path, int lock_fd)
    : path_(std::move(path)), lock_fd_(lock_fd) {}

ScratchFolder::ScratchFolder(ScratchFolder&& other) noexcept
    : path_(std::move(other.path_)),
      lock_fd_(std::exchange(other.lock_fd_, -1)) {}

ScratchFolder::~ScratchFolder() {
  if (lock_fd_ < 0) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  close(lock_fd_);
}

}  // namespace muster::worker
