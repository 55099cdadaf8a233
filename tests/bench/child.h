#ifndef MUSTER_TESTS_BENCH_CHILD_H_
#define MUSTER_TESTS_BENCH_CHILD_H_

#include <sys/types.h>

#include <cstdio>
#include <string>
#include <vector>

namespace muster::bench {

// A child process with pipes as stdin and stdout, for an exchange of lines.
// Killed with its parent, and by the destructor. Throws std::runtime_error.
class Child {
 public:
  explicit Child(const std::vector<std::string>& command);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int pid() const { return pid_; }

  // Returns the next line that the child prints. Throws if there is none.
  std::string ReadLine();
  void WriteLine(const std::string& line);

 private:
  const std::string program_;
  pid_t pid_ = -1;
  FILE* from_ = nullptr;
  FILE* to_ = nullptr;
};

// Returns the address in the first line that a coordinator prints, `listening
// grpc=127.0.0.1:41234 http=...`. Throws if there is none.
std::string ReadGrpcAddress(Child& coordinator);

}  // namespace muster::bench

#endif  // MUSTER_TESTS_BENCH_CHILD_H_
