#include "coordinator/server/ops/process_usage.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <vector>

#include "base/status.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

TEST(ProcessUsageTest, DescriptorsAreCounted) {
  const double before = ReadProcessUsage().open_fds;
  const int fd = open("/dev/null", O_RDONLY);
  EXPECT_EQ(ReadProcessUsage().open_fds, before + 1);
  close(fd);
  EXPECT_EQ(ReadProcessUsage().open_fds, before);
  EXPECT_GT(ReadProcessUsage().max_fds, before);
}

TEST(ProcessUsageTest, MemoryThatIsTouchedIsResident) {
  constexpr size_t kBytes = 64 << 20;
  const ProcessUsage before = ReadProcessUsage();
  std::vector<char> memory(kBytes, 'x');
  const ProcessUsage with = ReadProcessUsage();
  EXPECT_EQ(memory.back(), 'x');
  EXPECT_GT(with.resident_bytes - before.resident_bytes, kBytes / 2);
  EXPECT_GT(with.virtual_bytes, with.resident_bytes);
}

TEST(ProcessUsageTest, ATightLimitOfAddressSpaceIsNamed) {
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

TEST(ProcessUsageTest, ATightLimitOfDescriptorsIsNamed) {
  EXPECT_TRUE(CheckDescriptors(RLIM_INFINITY, 1'000).ok());
  EXPECT_TRUE(CheckDescriptors(64, 8).ok());
  EXPECT_TRUE(CheckDescriptors(1'024, 800).ok());
  EXPECT_EQ(CheckDescriptors(63, 8),
            ResourceExhaustedError(
                "this process may have 63 file descriptors (ulimit -n) and has "
                "8 open; a coordinator needs at least 64, and one more for "
                "each connection"));
}

// There is no limit for root.
void LimitThreads(rlim_t most) {
  const rlimit limit = {.rlim_cur = most, .rlim_max = most};
  if (setrlimit(RLIMIT_NPROC, &limit) != 0 ||
      (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0)) {
    _exit(1);
  }
}

TEST(ProcessUsageTest, ATightLimitOfThreadsIsNamed) {
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

TEST(ProcessUsageTest, CpuTimeGoesOn) {
  const double before = ReadProcessUsage().cpu_seconds;
  double sum = 0;
  while (ReadProcessUsage().cpu_seconds < before + 0.02) sum += 1;
  EXPECT_GT(sum, 0);
}

TEST(ProcessUsageTest, ItHasStartedALittleWhileAgo) {
  const double now = std::chrono::duration<double>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
  const double start = ReadProcessUsage().start_time_seconds;
  // The clock's second of the machine's start is rounded.
  EXPECT_LT(start, now + 2);
  EXPECT_GT(start, now - 600);
}

}  // namespace
}  // namespace muster::coordinator
