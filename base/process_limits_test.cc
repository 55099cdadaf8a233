#include "base/process_limits.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <new>
#include <string>
#include <system_error>
#include <thread>

#include "base/exception_guard.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::base {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMib = 1 << 20;

// Uses a file system root without this process's limits.
class ProcessLimitsTest : public ::testing::Test {
 protected:
  ProcessLimitsTest()
      : root_(std::string(std::getenv("TEST_TMPDIR")) + "/" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
  }

  void Write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = root_ + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  const std::string root_;
};

// Limits the address space to `bytes` more than this process has, and exits
// with the result of `say`.
template <typename Say>
[[noreturn]] void LeaveWith(uint64_t bytes, const Say& say) {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most = pages * sysconf(_SC_PAGESIZE) + bytes;
  const rlimit limit = {.rlim_cur = most, .rlim_max = RLIM_INFINITY};
  if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(1);
  std::cerr << say() << std::endl;
  _exit(0);
}

TEST(AddressSpaceTest, WhatIsLeftIsTheLimitLessWhatIsMapped) {
  EXPECT_EQ(AddressSpaceLeft(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(AddressSpaceLimitText(), "");
  EXPECT_EXIT(
      LeaveWith(100 * kMib, [] { return AddressSpaceLeft() / (10 * kMib); }),
      ::testing::ExitedWithCode(0), "^(9|10)\n$");
}

TEST(AddressSpaceTest, AThreadThatDoesNotStartNamesTheLimits) {
  EXPECT_EXIT(LeaveWith(kMib / 16,
                        [] {
                          return Guarded([] {
                            std::thread([] {}).join();
                            return OkStatus();
                          });
                        }),
              ::testing::ExitedWithCode(0),
              "^RESOURCE_EXHAUSTED: could not start a thread: Resource "
              "temporarily unavailable; RLIMIT_AS \\(ulimit -v\\) is [0-9]+ "
              "bytes");
}

TEST(AddressSpaceTest, MemoryThatIsNotToBeHadNamesItsLimit) {
  EXPECT_EXIT(
      LeaveWith(2 * kMib,
                [] {
                  // Like operator new; that of sanitizers ends the process.
                  return Guarded([]() -> Status { throw std::bad_alloc(); });
                }),
      ::testing::ExitedWithCode(0),
      "^RESOURCE_EXHAUSTED: had no memory left; RLIMIT_AS "
      "\\(ulimit -v\\) is [0-9]+ bytes");
}

TEST(AddressSpaceTest, OtherErrorsOfTheSystemNameNoLimit) {
  const std::system_error error(std::make_error_code(std::errc::address_in_use),
                                "bind");
  EXPECT_EQ(DescribeSystemError(error), "bind: Address already in use");
}

TEST_F(ProcessLimitsTest, AContainersThreadsAreThoseOfItsControlGroup) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/pids.max", "100\n");
  EXPECT_THAT(ThreadLimitsText(root_),
              HasSubstr("; pids.max of control group / is 100"));
}

TEST_F(ProcessLimitsTest, TheControlGroupWithTheLeastLimitIsNamed) {
  Write("/proc/self/cgroup", "0::/job/step/task\n");
  Write("/sys/fs/cgroup/job/step/task/pids.max", "max\n");
  Write("/sys/fs/cgroup/job/step/pids.max", "70\n");
  Write("/sys/fs/cgroup/job/pids.max", "7\n");
  Write("/sys/fs/cgroup/pids.max", "700\n");
  EXPECT_THAT(ThreadLimitsText(root_),
              HasSubstr("; pids.max of control group /job is 7"));
}

TEST_F(ProcessLimitsTest, ControlGroupsOfTheFirstVersion) {
  Write("/proc/self/cgroup", "12:memory:/m\n4:misc,pids:/p\n0::/\n");
  Write("/sys/fs/cgroup/pids/p/pids.max", "8\n");
  EXPECT_THAT(ThreadLimitsText(root_),
              HasSubstr("; pids.max of control group /p is 8"));
}

TEST_F(ProcessLimitsTest, WhereNoGroupHasALimitNoneIsNamed) {
  Write("/proc/self/cgroup", "0::/job\n");
  Write("/sys/fs/cgroup/job/pids.max", "max\n");
  EXPECT_THAT(ThreadLimitsText(root_), ::testing::Not(HasSubstr("pids.max")));
  EXPECT_THAT(ThreadLimitsText(root_ + "/nowhere"),
              ::testing::Not(HasSubstr("pids.max")));
}

using ProcessorsTest = ProcessLimitsTest;

int AllowedHere() {
  cpu_set_t set;
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  return CPU_COUNT(&set);
}

TEST_F(ProcessorsTest, WithoutAQuotaTheyAreThoseOfTheAffinityMask) {
  EXPECT_EQ(UsableProcessors(root_), AllowedHere());
  Write("/proc/self/cgroup", "0::/job\n");
  Write("/sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_FALSE(FindProcessorQuota(root_).has_value());
  EXPECT_EQ(UsableProcessors(root_), AllowedHere());
}

TEST_F(ProcessorsTest, TheLeastQuotaOfAllGroupsAboveCounts) {
  Write("/proc/self/cgroup", "0::/job/step/task\n");
  Write("/sys/fs/cgroup/job/step/task/cpu.max", "max 100000\n");
  Write("/sys/fs/cgroup/job/step/cpu.max", "800000 100000\n");
  Write("/sys/fs/cgroup/job/cpu.max", "75000 50000\n");
  Write("/sys/fs/cgroup/cpu.max", "600000 100000\n");
  const auto quota = FindProcessorQuota(root_);
  ASSERT_TRUE(quota.has_value());
  EXPECT_EQ(quota->processors, 1.5);
  // Rounded down.
  EXPECT_EQ(UsableProcessors(root_), 1);
}

TEST_F(ProcessorsTest, LessThanOneIsOne) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/cpu.max", "20000 100000\n");
  EXPECT_EQ(UsableProcessors(root_), 1);
}

TEST_F(ProcessorsTest, TheFirstVersionHasItsQuotaInTwoFiles) {
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/a/b\n4:memory:/m\n");
  Write("/sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(FindProcessorQuota(root_).has_value());
  // A container sees its own group as the root.
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  const auto quota = FindProcessorQuota(root_);
  ASSERT_TRUE(quota.has_value());
  EXPECT_EQ(quota->processors, 1);
  EXPECT_EQ(UsableProcessors(root_), 1);
}

}  // namespace
}  // namespace muster::base
