#include "coordinator/storage/synced_mark.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace muster::coordinator {
namespace {

// A disk writes a sector completely or not at all.
constexpr size_t kMarkBytes = 256;
constexpr size_t kReadBytes = 64 << 10;

Status FileError(absl::string_view what, const std::string& path) {
  std::string why = strerror(errno);
  why[0] = absl::ascii_tolower(why[0]);
  return UnavailableError(
      absl::StrCat("storage file ", path, ": cannot ", what, ": ", why));
}

Status Damaged(const std::string& path) {
  return DataLossError(absl::StrCat(
      "storage file ", path,
      " is damaged; where nothing else is, remove it alone: the next start "
      "then takes the log, as far as it can be read, for all that was told"));
}

uint32_t Checksum(uint32_t before, absl::string_view bytes) {
  return static_cast<uint32_t>(
      crc32(before, reinterpret_cast<const Bytef*>(bytes.data()),
            static_cast<uInt>(bytes.size())));
}

std::string FormatFields(const SyncedMark& mark) {
  return absl::StrCat("synced ", mark.sequence, " ", mark.manifest, " ",
                      mark.manifest_bytes, " ", mark.manifest_checksum);
}

// One line of readable text.
std::string ToText(const SyncedMark& mark) {
  const std::string fields = FormatFields(mark);
  std::string text = absl::StrCat(fields, " ", Checksum(0, fields));
  text.resize(kMarkBytes - 1, ' ');
  return text + "\n";
}

// Reads up to `bytes` from the file's current position.
bool ReadSome(int fd, size_t bytes, std::string& out) {
  out.resize(bytes);
  ssize_t count = 0;
  do {
    count = read(fd, out.data(), bytes);
  } while (count < 0 && errno == EINTR);
  out.resize(count < 0 ? 0 : static_cast<size_t>(count));
  return count >= 0;
}

}  // namespace

std::string SyncedMarkPath(const std::string& folder) {
  return folder + "/SYNCED";
}

StatusOr<std::optional<SyncedMark>> ReadSyncedMark(const std::string& folder) {
  const std::string path = SyncedMarkPath(folder);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return std::nullopt;
  if (fd < 0) return FileError("read", path);
  const auto close_it = absl::MakeCleanup([&] { close(fd); });
  std::string text;
  if (!ReadSome(fd, kMarkBytes + 1, text)) return FileError("read", path);
  // The process ended between creating and writing the file.
  if (text.empty()) return std::nullopt;
  const std::vector<std::string> fields =
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  SyncedMark mark;
  if (fields.size() != 6 || !absl::SimpleAtoi(fields[1], &mark.sequence) ||
      !absl::SimpleAtoi(fields[3], &mark.manifest_bytes) ||
      !absl::SimpleAtoi(fields[4], &mark.manifest_checksum)) {
    return Damaged(path);
  }
  mark.manifest = fields[2];
  if (ToText(mark) != text) return Damaged(path);
  return mark;
}

StatusOr<uint32_t> ComputeChecksum(const std::string& path, int64_t begin,
                                   uint32_t before, int64_t end) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError("read", path);
  const auto close_it = absl::MakeCleanup([&] { close(fd); });
  if (lseek(fd, begin, SEEK_SET) < 0) return FileError("read", path);
  uint32_t checksum = before;
  std::string part;
  for (int64_t left = end - begin; left > 0;) {
    const auto most =
        static_cast<size_t>(std::min(left, static_cast<int64_t>(kReadBytes)));
    if (!ReadSome(fd, most, part)) return FileError("read", path);
    if (part.empty()) {
      return DataLossError(absl::StrCat("storage file ", path,
                                        " is shorter than ", end, " bytes"));
    }
    checksum = Checksum(checksum, part);
    left -= static_cast<int64_t>(part.size());
  }
  return checksum;
}

Status SyncFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError("read", path);
  const auto close_it = absl::MakeCleanup([&] { close(fd); });
  return fdatasync(fd) == 0 ? OkStatus() : FileError("sync", path);
}

SyncedMarkFile::SyncedMarkFile(std::string path, int fd)
    : path_(std::move(path)), fd_(fd) {}

SyncedMarkFile::~SyncedMarkFile() { close(fd_); }

StatusOr<std::unique_ptr<SyncedMarkFile>> SyncedMarkFile::Create(
    const std::string& folder, const SyncedMark& mark) {
  const std::string path = SyncedMarkPath(folder);
  const std::string unnamed = path + ".tmp";
  const int fd =
      open(unnamed.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return FileError("write", unnamed);
  std::unique_ptr<SyncedMarkFile> file(new SyncedMarkFile(path, fd));
  Status status = file->Write(mark);
  if (status.ok() && fdatasync(fd) != 0) status = FileError("sync", unnamed);
  if (status.ok() && rename(unnamed.c_str(), path.c_str()) != 0) {
    status = FileError("write", path);
  }
  if (status.ok()) status = SyncFile(folder);
  if (!status.ok()) return status;
  return file;
}

Status SyncedMarkFile::Write(const SyncedMark& mark) {
  const std::string text = ToText(mark);
  ssize_t count = 0;
  do {
    count = pwrite(fd_, text.data(), text.size(), 0);
  } while (count < 0 && errno == EINTR);
  if (count == static_cast<ssize_t>(text.size())) return OkStatus();
  if (count >= 0) errno = ENOSPC;
  return FileError("write", path_);
}

}  // namespace muster::coordinator
