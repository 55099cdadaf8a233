#include "tests/fault/killed_coordinator.h"

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace muster::fault {

using std::chrono::seconds;

KilledCoordinator::KilledCoordinator(std::vector<std::string> flags)
    : flags_(std::move(flags)),
      storage_(::testing::TempDir() + "/killed.XXXXXX") {
  if (mkdtemp(storage_.data()) == nullptr) {
    perror(storage_.c_str());
    abort();
  }
  protection_.SetEnvironment();
  Start();
}

void KilledCoordinator::Start() {
  std::vector<std::string> command = {
      "coordinator/muster-coordinator",
      absl::StrCat("--listen=127.0.0.1:", port()),
      "--http_listen=", "--storage=rocksdb",
      absl::StrCat("--storage_path=", storage_)};
  command.insert(command.end(), flags_.begin(), flags_.end());
  for (const std::string& flag : protection_.flags()) command.push_back(flag);
  process_ = std::make_unique<testing::Process>(
      command, std::map<std::string, std::string>());
  const std::string line = process_->ReadLine(seconds(60));
  if (absl::StartsWith(line, "listening")) return;
  fprintf(stderr, "the coordinator does not start: %s\n", line.c_str());
  abort();
}

void KilledCoordinator::KillAndRestart() {
  process_->Signal(SIGKILL);
  EXPECT_EQ(process_->Wait(seconds(60)).signal, SIGKILL);
  Start();
}

std::string KilledCoordinator::address() const {
  return absl::StrCat("127.0.0.1:", port());
}

void ReadNumbers(int argc, char** argv,
                 const std::map<std::string, int64_t*>& numbers) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const auto found = numbers.find(argument.substr(0, equals));
    if (found != numbers.end() && equals != std::string::npos &&
        absl::SimpleAtoi(argument.substr(equals + 1), found->second) &&
        *found->second > 0) {
      continue;
    }
    fprintf(stderr, "unknown or bad argument %s\n", argv[i]);
    exit(2);
  }
}

}  // namespace muster::fault
