#include "client/control/log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/text.h"

namespace muster::internal {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// The file begins with this line. The records follow: head, key, value.
constexpr absl::string_view kMagic = "muster file store 1\n";

struct Head {
  uint32_t checksum = 0;  // CRC-32 of the rest of the record.
  uint32_t key_bytes = 0;
  uint32_t value_bytes = 0;
  uint32_t kind = 0;
};

constexpr milliseconds kLookInterval{10};
constexpr microseconds kLockRetryMin{50};
constexpr microseconds kLockRetryMax{2'000};

// Repeats a system call that a signal has interrupted.
template <typename Function>
auto Retry(Function function) {
  auto result = function();
  while (result < 0 && errno == EINTR) result = function();
  return result;
}

uint32_t Checksum(absl::string_view bytes) {
  return static_cast<uint32_t>(
      crc32_z(crc32_z(0, nullptr, 0),
              reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

Status SystemError(absl::string_view path, absl::string_view what, int error) {
  std::array<char, 128> buffer{};
  std::string cause = strerror_r(error, buffer.data(), buffer.size());
  if (!cause.empty()) cause[0] = absl::ascii_tolower(cause[0]);
  return Status(
      ErrnoToStatusCode(error),
      absl::StrCat("file ", base::Quote(path), ": cannot ", what, ": ", cause));
}

bool SameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

LogFile::LogFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

LogFile::~LogFile() { close(fd_); }

Status LogFile::Failure(absl::string_view what, int error) const {
  return SystemError(path_, what, error);
}

Status LogFile::Damaged(absl::string_view what) const {
  return DataLossError(absl::StrCat("file ", base::Quote(path_), ": ", what));
}

StatusOr<std::unique_ptr<LogFile>> LogFile::Open(const std::string& path,
                                                 const Deadline& deadline) {
  for (;;) {
    const int fd = Retry(
        [&] { return open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644); });
    if (fd < 0) {
      return SystemError(path, "open it", errno);
    }
    std::unique_ptr<LogFile> file(new LogFile(path, fd));
    Status locked = file->Lock(Access::kExclusive, deadline);
    if (!locked.ok()) return locked;
    // The last user of the file may have removed it since it was opened.
    if (file->IsAtItsPath()) return file;
  }
}

bool LogFile::IsAtItsPath() const {
  struct stat mine = {};
  struct stat there = {};
  return fstat(fd_, &mine) == 0 && stat(path_.c_str(), &there) == 0 &&
         SameFile(mine, there);
}

Status LogFile::Lock(Access access, const Deadline& deadline) {
  const int mode = access == Access::kShared ? LOCK_SH : LOCK_EX;
  // Polls, because flock has no timeout, and the process with the lock may be
  // stopped.
  microseconds pause = kLockRetryMin;
  while (Retry([&] { return flock(fd_, mode | LOCK_NB); }) != 0) {
    if (errno != EWOULDBLOCK) return Failure("lock it", errno);
    const Instant now = Clock::now();
    if (deadline.Passed(now)) {
      return DeadlineExceededError(
          absl::StrCat("file ", base::Quote(path_), ": timeout after ",
                       FormatDuration(deadline.timeout),
                       ", another process keeps it locked ", deadline.Blame()));
    }
    std::this_thread::sleep_for(
        std::min<Clock::duration>(pause, deadline.at - now));
    pause = std::min(2 * pause, kLockRetryMax);
  }
  return OkStatus();
}

void LogFile::Unlock() {
  Retry([&] { return flock(fd_, LOCK_UN); });
}

StatusOr<std::string> LogFile::ReadFrom(int64_t offset, int64_t bytes) const {
  std::string text(static_cast<size_t>(bytes), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = Retry([&] {
      return pread(fd_, text.data() + done, text.size() - done,
                   offset + static_cast<int64_t>(done));
    });
    if (count < 0) return Failure("read it", errno);
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  text.resize(done);
  return text;
}

Status LogFile::WriteAt(int64_t offset, absl::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t count =
        Retry([&] { return pwrite(fd_, bytes.data(), bytes.size(), offset); });
    if (count < 0) return Failure("write it", errno);
    bytes.remove_prefix(static_cast<size_t>(count));
    offset += count;
  }
  return OkStatus();
}

Status LogFile::Replay(const std::function<void(Record)>& apply) {
  struct stat status = {};
  if (fstat(fd_, &status) != 0) return Failure("look at it", errno);
  if (status.st_size < offset_) {
    return Damaged(absl::StrCat("somebody has cut it from ", offset_, " to ",
                                status.st_size, " bytes"));
  }
  size_ = status.st_size;
  const int64_t start = offset_;
  StatusOr<std::string> text = ReadFrom(start, size_ - start);
  if (!text.ok()) return text.status();
  absl::string_view rest = *text;
  if (offset_ == 0) {
    if (rest.size() < kMagic.size() && absl::StartsWith(kMagic, rest)) {
      return OkStatus();
    }
    if (!absl::ConsumePrefix(&rest, kMagic)) {
      return Damaged("it is no store's, and will not be touched");
    }
    offset_ = static_cast<int64_t>(kMagic.size());
  }
  while (rest.size() >= sizeof(Head)) {
    Head head;
    memcpy(&head, rest.data(), sizeof(head));
    const uint64_t bytes =
        sizeof(Head) + uint64_t{head.key_bytes} + head.value_bytes;
    if (bytes > rest.size()) break;
    const absl::string_view checked =
        rest.substr(sizeof(head.checksum), bytes - sizeof(head.checksum));
    if (Checksum(checked) != head.checksum) {
      // Perhaps only a part of the last record has reached the disk.
      if (bytes == rest.size()) break;
      return Damaged(absl::StrCat("it is damaged at byte ", offset_));
    }
    apply({.kind = static_cast<char>(head.kind),
           .key = std::string(rest.substr(sizeof(Head), head.key_bytes)),
           .value = std::string(
               rest.substr(sizeof(Head) + head.key_bytes, head.value_bytes))});
    rest.remove_prefix(bytes);
    offset_ += static_cast<int64_t>(bytes);
  }
  return OkStatus();
}

Status LogFile::Append(const Record& record) {
  constexpr size_t kBytesMax = std::numeric_limits<uint32_t>::max();
  if (record.key.size() > kBytesMax || record.value.size() > kBytesMax) {
    return ResourceExhaustedError(absl::StrCat(
        "file ", base::Quote(path_), ": a key of ", record.key.size(),
        " bytes with a value of ", record.value.size(),
        " bytes is too large: at most ", kBytesMax, " each"));
  }
  // Removes the partial record of a writer that died.
  if (size_ > offset_ && Retry([&] { return ftruncate(fd_, offset_); }) != 0) {
    return Failure("cut it", errno);
  }
  Head head = {.key_bytes = static_cast<uint32_t>(record.key.size()),
               .value_bytes = static_cast<uint32_t>(record.value.size()),
               .kind = static_cast<unsigned char>(record.kind)};
  std::string bytes = offset_ == 0 ? std::string(kMagic) : std::string();
  const size_t begin = bytes.size();
  bytes.append(reinterpret_cast<const char*>(&head), sizeof(head));
  bytes.append(record.key);
  bytes.append(record.value);
  head.checksum =
      Checksum(absl::string_view(bytes).substr(begin + sizeof(head.checksum)));
  memcpy(bytes.data() + begin, &head.checksum, sizeof(head.checksum));
  Status written = WriteAt(offset_, bytes);
  if (!written.ok()) {
    // The disk may be full. Removes the partial record.
    static_cast<void>(Retry([&] { return ftruncate(fd_, offset_); }));
  }
  return written;
}

void LogFile::Remove() {
  if (IsAtItsPath()) unlink(path_.c_str());
}

FileChange::FileChange(const std::string& path)
    : notify_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
  if (notify_ >= 0) inotify_add_watch(notify_, path.c_str(), IN_MODIFY);
}

FileChange::~FileChange() {
  if (notify_ >= 0) close(notify_);
}

void FileChange::Await(Instant until) {
  const Instant now = Clock::now();
  if (now >= until) return;
  const auto pause = std::min<Clock::duration>(kLookInterval, until - now);
  pollfd changed = {.fd = notify_, .events = POLLIN, .revents = 0};
  // A signal may end it early; the caller then reads once more.
  const int count =
      poll(&changed, 1,
           static_cast<int>(std::chrono::ceil<milliseconds>(pause).count()));
  if (count <= 0) return;
  std::array<char, 4096> events;
  while (read(notify_, events.data(), events.size()) > 0) {
  }
}

}  // namespace muster::internal
