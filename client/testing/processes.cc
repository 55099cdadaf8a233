#include "client/testing/processes.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "glog/logging.h"

namespace muster::testing {
namespace {

using Clock = std::chrono::steady_clock;

std::pair<int, int> Pipe() {
  std::array<int, 2> ends{};
  PCHECK(pipe2(ends.data(), O_CLOEXEC) == 0);
  return {ends[0], ends[1]};
}

// Whether `fd` becomes readable before `deadline`.
bool AwaitReadable(int fd, Clock::time_point deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = poll(&waiting, 1, static_cast<int>(left.count()));
    if (ready > 0) return true;
  }
}

}  // namespace

ReservedPort::ReservedPort()
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  PCHECK(fd_ >= 0);
  const int yes = 1;
  PCHECK(setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  // Also covers 127.0.0.2.
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof(address);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  PCHECK(bind(fd_, raw, size) == 0);
  PCHECK(getsockname(fd_, raw, &size) == 0);
  port_ = ntohs(address.sin_port);
}

ReservedPort::~ReservedPort() { close(fd_); }

Process::Process(const std::vector<std::string>& command,
                 const std::map<std::string, std::string>& environment) {
  std::vector<std::string> variables = {
      "PATH=/usr/bin:/bin", "GLOG_minloglevel=1", "GLOG_logtostderr=1"};
  for (const auto& [name, value] : environment) {
    variables.push_back(name);
    variables.back().append("=").append(value);
  }
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& each : command) {
    arguments.push_back(const_cast<char*>(each.c_str()));
  }
  arguments.push_back(nullptr);
  std::vector<char*> envp;
  envp.reserve(variables.size() + 1);
  for (const std::string& each : variables) {
    envp.push_back(const_cast<char*>(each.c_str()));
  }
  envp.push_back(nullptr);
  const auto [child_in, in] = Pipe();
  const auto [out, child_out] = Pipe();
  pid_ = fork();
  PCHECK(pid_ >= 0);
  if (pid_ == 0) {
    // Processes of a broken test must not outlive it.
    dup2(child_in, STDIN_FILENO);
    dup2(child_out, STDOUT_FILENO);
    execve(arguments[0], arguments.data(), envp.data());
    _exit(127);
  }
  close(child_in);
  close(child_out);
  input_ = in;
  output_ = out;
}

Process::~Process() {
  if (!ended_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (input_ >= 0) close(input_);
  close(output_);
}

std::string Process::ReadLine(std::chrono::seconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  for (;;) {
    const size_t end = buffer_.find('\n');
    if (end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    if (!AwaitReadable(output_, deadline)) {
      failed_ = true;
      return "";
    }
    std::array<char, 4096> chunk{};
    const ssize_t size = read(output_, chunk.data(), chunk.size());
    if (size <= 0) return std::exchange(buffer_, "");
    buffer_.append(chunk.data(), static_cast<size_t>(size));
  }
}

void Process::WriteLine(const std::string& line) {
  const std::string text = line + "\n";
  PCHECK(write(input_, text.data(), text.size()) ==
         static_cast<ssize_t>(text.size()));
}

void Process::Signal(int signal) { PCHECK(kill(pid_, signal) == 0); }

Exit Process::Wait(std::chrono::seconds timeout) {
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  PCHECK(pidfd >= 0);
  const bool in_time = AwaitReadable(pidfd, Clock::now() + timeout);
  close(pidfd);
  if (!in_time) kill(pid_, SIGKILL);
  int status = 0;
  PCHECK(waitpid(pid_, &status, 0) == pid_);
  ended_ = true;
  if (!in_time) return {};
  if (WIFSIGNALED(status)) return {.code = -1, .signal = WTERMSIG(status)};
  return {.code = WEXITSTATUS(status), .signal = 0};
}

}  // namespace muster::testing
