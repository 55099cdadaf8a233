#include "dataplane/cpu/shm/available_memory.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace muster::dataplane::shm {
namespace {

constexpr uint64_t kMib = 1 << 20;

// A system with 1000 MiB left.
class AvailableMemoryTest : public ::testing::Test {
 protected:
  AvailableMemoryTest() : root_(std::getenv("TEST_TMPDIR") + std::string("/")) {
    root_ += ::testing::UnitTest::GetInstance()->current_test_info()->name();
    Write("/proc/meminfo",
          "MemTotal:  9999999 kB\nMemAvailable:  1024000 kB\n");
  }

  void Write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = root_ + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  uint64_t Mib() { return FindMemoryLeft(root_).bytes / kMib; }
  std::string Scope() { return FindMemoryLeft(root_).where; }

  std::string root_;
};

TEST_F(AvailableMemoryTest, WithoutControlGroupsItIsTheSystems) {
  EXPECT_EQ(Mib(), 1000);
  Write("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(Mib(), 1000);
  EXPECT_EQ(FindMemoryLeft(root_).Describe(),
            "there are 1048576000 left on the host");
}

TEST_F(AvailableMemoryTest, AContainersLimitCounts) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "104857600\n");
  Write("/sys/fs/cgroup/memory.current", "31457280\n");
  EXPECT_EQ(Mib(), 70);
  // Cached files count as left: the system drops them when memory is needed.
  Write("/sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 20971520\n");
  EXPECT_EQ(Mib(), 90);
  EXPECT_EQ(Scope(), "to control group / (memory.max)");
  Write("/sys/fs/cgroup/memory.current", "999999999\n");
  EXPECT_EQ(Mib(), 0);
  Write("/sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(Mib(), 1000);
}

TEST_F(AvailableMemoryTest, EveryGroupAboveCounts) {
  Write("/proc/self/cgroup", "0::/job/step/task\n");
  Write("/sys/fs/cgroup/job/step/memory.max", "104857600\n");
  Write("/sys/fs/cgroup/job/step/memory.current", "0\n");
  Write("/sys/fs/cgroup/job/step/task/memory.max", "max\n");
  Write("/sys/fs/cgroup/job/step/task/memory.current", "0\n");
  EXPECT_EQ(Mib(), 100);
  Write("/sys/fs/cgroup/job/memory.max", "52428800\n");
  Write("/sys/fs/cgroup/job/memory.current", "0\n");
  EXPECT_EQ(Mib(), 50);
  EXPECT_EQ(Scope(), "to control group /job (memory.max)");
}

TEST_F(AvailableMemoryTest, TheFirstVersionHasOtherNames) {
  Write("/proc/self/cgroup",
        "5:devices:/other\n4:cpu,memory:/docker/1\n0::/\n");
  Write("/sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "104857600\n");
  Write("/sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes", "41943040\n");
  Write("/sys/fs/cgroup/memory/docker/1/memory.stat",
        "inactive_file 1\ntotal_inactive_file 10485760\n");
  EXPECT_EQ(Mib(), 70);
  EXPECT_EQ(Scope(), "to control group /docker/1 (memory.limit_in_bytes)");
  // A container sees its own group as the root.
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "20971520\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n");
  EXPECT_EQ(Mib(), 20);
}

}  // namespace
}  // namespace muster::dataplane::shm
