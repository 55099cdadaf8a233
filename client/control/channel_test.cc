#include "client/control/channel.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iostream>

#include "client/control/admin_client.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/errors.h"
#include "muster/session.h"

namespace muster::internal {
namespace {

// Limits this process to `bytes` more than it has mapped.
void LimitAddressSpace(uint64_t bytes) {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most = pages * sysconf(_SC_PAGESIZE) + bytes;
  const rlimit limit = {.rlim_cur = most, .rlim_max = RLIM_INFINITY};
  if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(1);
}

// Sets a limit of this process.
void SetLimit(__rlimit_resource resource, rlim_t most) {
  const rlimit limit = {.rlim_cur = most, .rlim_max = most};
  if (setrlimit(resource, &limit) != 0) _exit(1);
}

// Root has no such limit.
void LimitThreads(rlim_t most) {
  SetLimit(RLIMIT_NPROC, most);
  if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) _exit(1);
}

// Nothing listens there: without the check, attempts would last for minutes.
SessionOptions Options() {
  SessionOptions options;
  options.address = "127.0.0.1:1";
  options.job = "j";
  return options;
}

constexpr char kProblem[] =
    "^RESOURCE_EXHAUSTED: the threads of a client need [0-9]+ KiB of address "
    "space, and this process has [0-9]+ KiB left of its limit \\(ulimit -v\\)";

// In processes of their own, because threads of gRPC would count.
TEST(ChannelTest, TooLittleAddressSpaceIsAnErrorBeforeThreadsStart) {
  EXPECT_EXIT(
      {
        LimitAddressSpace(100 << 20);
        try {
          Session::Connect(Options());
        } catch (const DistError& error) {
          std::cerr << error.status() << std::endl;
          _exit(0);
        }
        _exit(1);
      },
      ::testing::ExitedWithCode(0), kProblem);
  EXPECT_EXIT(
      {
        LimitAddressSpace(100 << 20);
        std::cerr << AdminClient::Open(Options()).status() << std::endl;
        _exit(0);
      },
      ::testing::ExitedWithCode(0), kProblem);
}

TEST(ChannelTest, TooFewDescriptorsAreAnErrorThatNamesTheLimit) {
  EXPECT_EXIT(
      {
        SetLimit(RLIMIT_NOFILE, 10);
        std::cerr << AdminClient::Open(Options()).status() << std::endl;
        _exit(0);
      },
      ::testing::ExitedWithCode(0),
      "^RESOURCE_EXHAUSTED: a client needs 12 file descriptors, and this "
      "process has [0-9] left of its limit of 10 \\(ulimit -n\\)");
}

TEST(ChannelTest, TooFewThreadsAreAnErrorThatNamesTheLimit) {
  EXPECT_EXIT(
      {
        LimitThreads(3);
        std::cerr << AdminClient::Open(Options()).status() << std::endl;
        _exit(0);
      },
      ::testing::ExitedWithCode(0),
      "^RESOURCE_EXHAUSTED: a client needs [0-9]+ threads, and this process "
      "can "
      "start [0-9]+; RLIMIT_NPROC \\(ulimit -u\\) is 3");
}

TEST(ChannelTest, EnoughAddressSpaceIsNoError) {
  EXPECT_EXIT(
      {
        LimitAddressSpace(uint64_t{4} << 30);
        _exit(CheckProcessLimits().ok() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
  EXPECT_TRUE(CheckProcessLimits().ok());
}

}  // namespace
}  // namespace muster::internal
