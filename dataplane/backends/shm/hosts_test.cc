#include "dataplane/backends/shm/hosts.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::shm_internal {
namespace {

using ::testing::ElementsAre;

TEST(HostsTest, AreNumberedByTheirFirstRanksWhateverTheirIdentities) {
  const std::vector<uint64_t> identities = {9, 2, 9, 5, 2, 9};
  const Hosts hosts(identities, /*rank=*/4);
  ASSERT_EQ(hosts.count(), 3);
  EXPECT_EQ(hosts.world_size(), 6);
  EXPECT_THAT(hosts.ranks(0), ElementsAre(0, 2, 5));
  EXPECT_THAT(hosts.ranks(1), ElementsAre(1, 4));
  EXPECT_THAT(hosts.ranks(2), ElementsAre(3));
  EXPECT_EQ(hosts.fewest(), 1u);
  EXPECT_EQ(hosts.most(), 3u);
}

TEST(HostsTest, ARankHasAPlaceOnItsHost) {
  const std::vector<uint64_t> identities = {9, 2, 9, 2};
  const Hosts hosts(identities, /*rank=*/3);
  EXPECT_EQ(hosts.own(), 1);
  EXPECT_EQ(hosts.place(), 1);
  EXPECT_THAT(hosts.neighbours(), ElementsAre(1, 3));
  EXPECT_EQ(hosts.host_of(2), 0);
  EXPECT_EQ(hosts.place_of(2), 1);
  EXPECT_EQ(hosts.At(0, 1), 2);
  EXPECT_EQ(hosts.At(0, 2), -1);
}

}  // namespace
}  // namespace muster::dataplane::shm_internal
