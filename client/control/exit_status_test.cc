#include "client/control/exit_status.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace muster::internal {
namespace {

ExitStatus After(const std::function<void()>& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    child();
    _exit(0);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  return ExitStatus::OfWait(status);
}

TEST(ExitStatusTest, OfAProcessThatExits) {
  EXPECT_TRUE(After([] {}).ok());
  const ExitStatus status = After([] { _exit(3); });
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.shell_status(), 3);
  EXPECT_EQ(Describe(status), "exited with status 3");
}

TEST(ExitStatusTest, OfAProcessThatASignalKills) {
  const ExitStatus status = After([] { kill(getpid(), SIGKILL); });
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.shell_status(), 137);
  EXPECT_EQ(Describe(status), "was killed by signal 9 (SIGKILL)");
}

TEST(ExitStatusTest, ASignalWithoutANameHasItsNumber) {
  EXPECT_EQ(SignalName(SIGTERM), "SIGTERM");
  EXPECT_EQ(SignalName(SIGRTMIN + 6), "signal " + std::to_string(SIGRTMIN + 6));
}

}  // namespace
}  // namespace muster::internal
