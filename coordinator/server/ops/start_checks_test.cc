#include "coordinator/server/ops/start_checks.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <iostream>

#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::coordinator {
namespace {

TEST(StartChecksTest, ATightLimitOfAddressSpaceIsNamed) {
  EXPECT_TRUE(CheckAddressSpace(RLIM_INFINITY, 1'000).ok());
  EXPECT_TRUE(CheckAddressSpace(uint64_t{1} << 30, 2).ok());
  EXPECT_TRUE(CheckAddressSpace(uint64_t{1} << 30, 1).ok());
  EXPECT_FALSE(CheckAddressSpace(uint64_t{1} << 30, 3).ok());
  EXPECT_TRUE(CheckAddressSpace(uint64_t{4} << 30, 1'000).ok());
  EXPECT_EQ(CheckAddressSpace(300'000 << 10, 2),
            ResourceExhaustedError(
                "this process may have 300000 KiB of address space (ulimit "
                "-v), and a coordinator's threads need 1048576"));
}

TEST(StartChecksTest, ATightLimitOfDescriptorsIsNamed) {
  EXPECT_TRUE(CheckDescriptors(RLIM_INFINITY, 1'000).ok());
  EXPECT_TRUE(CheckDescriptors(64, 8).ok());
  EXPECT_TRUE(CheckDescriptors(1'024, 800).ok());
  EXPECT_EQ(CheckDescriptors(63, 8),
            ResourceExhaustedError(
                "this process may have 63 file descriptors (ulimit -n) and has "
                "8 open; a coordinator needs at least 64, and one more for "
                "each connection"));
}

// Has no effect for root.
void LimitThreads(rlim_t most) {
  const rlimit limit = {.rlim_cur = most, .rlim_max = most};
  if (setrlimit(RLIMIT_NPROC, &limit) != 0 ||
      (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0)) {
    _exit(1);
  }
}

TEST(StartChecksTest, ATightLimitOfThreadsIsNamed) {
  EXPECT_TRUE(CheckThreads(2).ok());
  EXPECT_EXIT(
      {
        LimitThreads(3);
        std::cerr << CheckThreads(2) << std::endl;
        _exit(0);
      },
      ::testing::ExitedWithCode(0),
      "RESOURCE_EXHAUSTED: a coordinator needs 28 threads, and this process "
      "can start [0-9]+ \\(ulimit -u is 3;");
}

}  // namespace
}  // namespace muster::coordinator
