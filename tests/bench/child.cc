#include "tests/bench/child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace muster::bench {

Child::Child(const std::vector<std::string>& command) : program_(command[0]) {
  int out[2];
  int in[2];
  // Closed on exec: another child must not hold this one's stdin open.
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(in, O_CLOEXEC) != 0) {
    throw std::runtime_error("pipe failed");
  }
  std::vector<char*> argv;
  for (const std::string& word : command) {
    argv.push_back(const_cast<char*>(word.c_str()));
  }
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(out[1], STDOUT_FILENO);
    dup2(in[0], STDIN_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(out[1]);
  close(in[0]);
  from_ = fdopen(out[0], "r");
  to_ = fdopen(in[1], "w");
}

Child::~Child() {
  kill(pid_, SIGTERM);
  fclose(from_);
  fclose(to_);
  waitpid(pid_, nullptr, 0);
}

std::string Child::ReadLine() {
  char line[512] = {0};
  if (fgets(line, sizeof(line), from_) == nullptr) {
    throw std::runtime_error(absl::StrCat(program_, " ended too early"));
  }
  return line;
}

void Child::WriteLine(const std::string& line) {
  fputs(absl::StrCat(line, "\n").c_str(), to_);
  fflush(to_);
}

std::string ReadGrpcAddress(Child& coordinator) {
  const std::string line = coordinator.ReadLine();
  for (absl::string_view word : absl::StrSplit(line, absl::ByAnyChar(" \n"))) {
    if (absl::ConsumePrefix(&word, "grpc=")) return std::string(word);
  }
  throw std::runtime_error(absl::StrCat(
      "the coordinator's first line names no grpc= address: ", line));
}

}  // namespace muster::bench
