#include "base/process_usage.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <vector>

#include "gtest/gtest.h"

namespace muster::base {
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
  // The start of the machine is rounded to a second.
  EXPECT_LT(start, now + 2);
  EXPECT_GT(start, now - 600);
}

}  // namespace
}  // namespace muster::base
