#include "dataplane/cpu/shm/processor_share.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace muster::dataplane::shm {
namespace {

ProcessorShare Share(uint64_t processors, double quota = 0,
                     uint64_t quota_group = 0) {
  return {.processors = processors,
          .online = 8,
          .quota = quota,
          .quota_group = quota_group};
}

TEST(ProcessorShareTest, RanksThatAreMoreThanTheirProcessorsAreCrowded) {
  EXPECT_FALSE(IsCrowded({Share(0b11), Share(0b11)}));
  EXPECT_TRUE(IsCrowded({Share(0b11), Share(0b11), Share(0b11)}));
  EXPECT_FALSE(IsCrowded({Share(0b001), Share(0b010), Share(0b100)}));
}

TEST(ProcessorShareTest, RanksThatAreMoreThanTheirQuotaAreCrowded) {
  EXPECT_FALSE(IsCrowded({Share(0xff, 2, 7), Share(0xff, 2, 7)}));
  EXPECT_TRUE(IsCrowded({Share(0xff, 1.5, 7), Share(0xff, 1.5, 7)}));
  // Each rank has its own quota.
  EXPECT_FALSE(IsCrowded({Share(0xff, 1, 7), Share(0xff, 1, 8)}));
  // A rank with half a processor is slowed down by its own spinning.
  EXPECT_TRUE(IsCrowded({Share(0xff, 0.5, 7), Share(0xff, 0.5, 8)}));
}

TEST(ProcessorShareTest, TheQuotaIsThatOfTheControlGroup) {
  const std::string root = std::string(std::getenv("TEST_TMPDIR")) + "/root";
  std::filesystem::create_directories(root + "/proc/self");
  std::filesystem::create_directories(root + "/sys/fs/cgroup/pod");
  std::ofstream(root + "/proc/self/cgroup") << "0::/pod\n";
  std::ofstream(root + "/sys/fs/cgroup/pod/cpu.max") << "150000 100000\n";
  const ProcessorShare share = FindProcessorShare(root);
  EXPECT_EQ(share.quota, 1.5);
  EXPECT_NE(share.quota_group, 0u);
  EXPECT_NE(share.processors, 0u);
  EXPECT_TRUE(IsCrowded({share, share}));
}

}  // namespace
}  // namespace muster::dataplane::shm
