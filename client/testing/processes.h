// Ranks as processes, for tests of the communication between processes.

#ifndef MUSTER_CLIENT_TESTING_PROCESSES_H_
#define MUSTER_CLIENT_TESTING_PROCESSES_H_

#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace muster::testing {

// A port on all addresses of this host that no other process gets while this
// object lives. A server that sets SO_REUSEADDR can listen on it.
class ReservedPort {
 public:
  ReservedPort();
  ~ReservedPort();
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;

  int port() const { return port_; }

 private:
  int fd_;
  int port_ = 0;
};

// How a process ended.
struct Exit {
  // -1: ended by a signal, or not in time
  int code = -1;
  int signal = 0;
};

// A child process whose standard output the test reads line by line. Its
// standard error is the test's. The destructor kills it.
class Process {
 public:
  // The environment has these variables and PATH, no others.
  Process(const std::vector<std::string>& command,
          const std::map<std::string, std::string>& environment);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // The next line, without its end. Empty at the end of the output, or if no
  // line comes in time (then failed() is true).
  std::string ReadLine(std::chrono::seconds timeout);
  bool failed() const { return failed_; }

  void WriteLine(const std::string& line);
  void Signal(int signal);
  // Kills the process if it does not end in time.
  Exit Wait(std::chrono::seconds timeout);

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  bool failed_ = false;
  bool ended_ = false;
  std::string buffer_;
};

}  // namespace muster::testing

#endif  // MUSTER_CLIENT_TESTING_PROCESSES_H_
