#include "base/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "muster/base/status.h"

namespace muster::base {

StatusOr<std::string> ReadSmallFile(absl::string_view option,
                                    const std::string& path, size_t bytes_max) {
  const auto failure = [&](std::string why) {
    why[0] = absl::ascii_tolower(why[0]);
    return InvalidArgumentError(
        absl::StrCat(option, " ", Quote(path), ": ", why));
  };
  // Without O_NONBLOCK, opening a pipe would wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return failure(strerror(errno));
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  struct stat info = {};
  if (fstat(fd, &info) != 0) return failure(strerror(errno));
  if (S_ISDIR(info.st_mode)) return failure(strerror(EISDIR));
  if (!S_ISREG(info.st_mode)) return failure("not a regular file");
  std::string content;
  char buffer[16 << 10];
  while (content.size() <= bytes_max) {
    const ssize_t bytes = read(fd, buffer, sizeof(buffer));
    if (bytes == 0) return content;
    if (bytes > 0) {
      content.append(buffer, static_cast<size_t>(bytes));
    } else if (errno != EINTR) {
      return failure(strerror(errno));
    }
  }
  return failure(absl::StrCat("more than ", bytes_max, " bytes"));
}

}  // namespace muster::base
