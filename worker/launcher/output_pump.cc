#include "worker/launcher/output_pump.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text.h"
#include "muster/base/status.h"

namespace muster::worker {
namespace {

constexpr size_t kReadBytes = 65536;

// Returns whether all of `text` was written.
bool WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(fd, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      // Another process has made the terminal non-blocking.
      pollfd ready = {fd, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

void Signal(int event_fd) {
  const uint64_t one = 1;
  const ssize_t ignored = write(event_fd, &one, sizeof(one));
  (void)ignored;
}

}  // namespace

struct OutputPump::Stream {
  Stream(const std::string& prefix, int fd, int sink,
         const std::string& log_path, int log_fd)
      : lines(prefix), fd(fd), sink(sink), log_path(log_path), log_fd(log_fd) {}
  ~Stream() {
    if (fd >= 0) close(fd);
    if (log_fd >= 0) close(log_fd);
  }

  LinePrefixer lines;
  int fd;  // -1 at its end
  const int sink;
  const std::string log_path;
  int log_fd;
};

OutputPump::OutputPump()
    : news_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      done_fd_(eventfd(0, EFD_CLOEXEC)) {}

OutputPump::~OutputPump() {
  Join();
  close(news_fd_);
  close(done_fd_);
}

void OutputPump::Finish() {
  {
    MutexLock lock(mutex_);
    news_.finished = true;
  }
  Signal(news_fd_);
}

void OutputPump::Join() {
  if (!thread_.joinable()) return;
  Finish();
  thread_.join();
}

StatusOr<int> OutputPump::Add(const std::string& prefix, int sink,
                              const std::string& log_path) {
  int log_fd = -1;
  if (!log_path.empty()) {
    log_fd =
        open(log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (log_fd < 0) {
      return FailedPreconditionError(absl::StrCat("cannot write the log file ",
                                                  base::Quote(log_path), ": ",
                                                  std::strerror(errno)));
    }
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    const int error = errno;
    if (log_fd >= 0) close(log_fd);
    return ResourceExhaustedError(
        absl::StrCat("cannot make a pipe: ", std::strerror(error)));
  }
  streams_.push_back(
      std::make_unique<Stream>(prefix, ends[0], sink, log_path, log_fd));
  {
    MutexLock lock(mutex_);
    news_.streams.push_back(streams_.back().get());
  }
  Signal(news_fd_);
  return ends[1];
}

void OutputPump::Start() {
  thread_ = std::thread([this] { Run(); });
}

const std::deque<std::string>& OutputPump::tail(size_t index) const {
  return streams_[index]->lines.tail();
}

void OutputPump::Print(Stream& stream, const std::string& text) {
  if (text.empty() || stream.sink < 0 ||
      std::count(broken_sinks_.begin(), broken_sinks_.end(), stream.sink) !=
          0) {
    return;
  }
  if (WriteAll(stream.sink, text)) return;
  // Does not end the job. Prints no error if the reader has closed the pipe.
  const int error = errno;
  broken_sinks_.push_back(stream.sink);
  if (error == EPIPE || stream.sink == STDERR_FILENO) return;
  WriteAll(STDERR_FILENO,
           absl::StrCat("muster-run: cannot print the ranks' standard output "
                        "any more: ",
                        std::strerror(error), "\n"));
}

void OutputPump::Run() {
  std::vector<char> buffer(kReadBytes);
  std::vector<Stream*> streams;
  while (true) {
    uint64_t ignored = 0;
    (void)!read(news_fd_, &ignored, sizeof(ignored));
    bool finished = false;
    {
      MutexLock lock(mutex_);
      streams.insert(streams.end(), news_.streams.begin(), news_.streams.end());
      news_.streams.clear();
      finished = news_.finished;
    }
    std::vector<pollfd> ready;
    std::vector<Stream*> polled;
    for (Stream* const stream : streams) {
      if (stream->fd < 0) continue;
      ready.push_back({stream->fd, POLLIN, 0});
      polled.push_back(stream);
    }
    if (ready.empty() && finished) break;
    ready.push_back({news_fd_, POLLIN, 0});
    poll(ready.data(), ready.size(), -1);
    for (size_t i = 0; i < polled.size(); ++i) {
      if (ready[i].revents == 0) continue;
      Stream& stream = *polled[i];
      const ssize_t count = read(stream.fd, buffer.data(), buffer.size());
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count <= 0) {
        Print(stream, stream.lines.Finish());
        close(stream.fd);
        stream.fd = -1;
        continue;
      }
      const absl::string_view bytes(buffer.data(), static_cast<size_t>(count));
      Print(stream, stream.lines.Push(bytes));
      if (stream.log_fd >= 0 && !WriteAll(stream.log_fd, bytes)) {
        const std::string text =
            absl::StrCat("muster-run: cannot write the log file ",
                         base::Quote(stream.log_path),
                         " any more: ", std::strerror(errno), "\n");
        close(stream.log_fd);
        stream.log_fd = -1;
        WriteAll(STDERR_FILENO, text);
      }
    }
  }
  Signal(done_fd_);
}

}  // namespace muster::worker
