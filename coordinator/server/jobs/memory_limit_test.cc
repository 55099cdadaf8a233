#include "coordinator/server/jobs/memory_limit.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

// Uses a folder that replaces the root of the file system.
class MemoryLimitTest : public ::testing::Test {
 protected:
  MemoryLimitTest() {
    Write("/proc/meminfo", "MemFree: 1 kB\nMemTotal:   1024 kB\n");
  }
  ~MemoryLimitTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  int64_t Limit() const { return MemoryLimit(root_); }

 private:
  const std::string root_ = [] {
    std::string path = ::testing::TempDir() + "/memory_limit.XXXXXX";
    return std::string(mkdtemp(path.data()));
  }();
};

constexpr int64_t kMachine = 1 << 20;

TEST_F(MemoryLimitTest, IsTheMachinesWhereNothingElseIsSaid) {
  EXPECT_EQ(Limit(), kMachine);
  Write("/proc/self/cgroup", "0::/job\n");
  EXPECT_EQ(Limit(), kMachine);
  Write("/sys/fs/cgroup/job/memory.max", "max\n");
  EXPECT_EQ(Limit(), kMachine);
}

TEST_F(MemoryLimitTest, IsThatOfTheGroup) {
  Write("/proc/self/cgroup", "0::/job/step\n");
  Write("/sys/fs/cgroup/job/step/memory.max", "4096\n");
  EXPECT_EQ(Limit(), 4096);
}

TEST_F(MemoryLimitTest, IsTheLeastOfTheGroupsAboveIt) {
  Write("/proc/self/cgroup", "0::/job/step\n");
  Write("/sys/fs/cgroup/job/step/memory.max", "8192\n");
  Write("/sys/fs/cgroup/job/memory.max", "4096\n");
  EXPECT_EQ(Limit(), 4096);
}

TEST_F(MemoryLimitTest, IsThatOfTheTopInAContainerThatSeesNoMore) {
  Write("/proc/self/cgroup", "0::/../../pod/container\n");
  Write("/sys/fs/cgroup/memory.max", "4096\n");
  EXPECT_EQ(Limit(), 4096);
}

TEST_F(MemoryLimitTest, IsThatOfTheFirstVersionToo) {
  Write("/proc/self/cgroup", "5:cpu,memory:/job\n1:name=systemd:/\n0::/\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Limit(), kMachine);
  Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "4096\n");
  EXPECT_EQ(Limit(), 4096);
}

TEST_F(MemoryLimitTest, IsNoneWhereNothingIsKnown) {
  EXPECT_EQ(MemoryLimit("/nowhere"), std::numeric_limits<int64_t>::max());
}

}  // namespace
}  // namespace muster::coordinator
