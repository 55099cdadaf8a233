#include "dataplane/cpu/shm/topology.h"

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::shm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HostsTest, AreNumberedByTheirFirstRanksWhateverTheirIdentities) {
  const std::vector<uint64_t> identities = {9, 2, 9, 5, 2, 9};
  const Topology hosts(identities, /*rank=*/4);
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
  const Topology hosts(identities, /*rank=*/3);
  EXPECT_EQ(hosts.own(), 1);
  EXPECT_EQ(hosts.place(), 1);
  EXPECT_THAT(hosts.neighbours(), ElementsAre(1, 3));
  EXPECT_EQ(hosts.host_of(2), 0);
  EXPECT_EQ(hosts.place_of(2), 1);
  EXPECT_EQ(hosts.At(0, 1), 2);
  EXPECT_EQ(hosts.At(0, 2), -1);
}

// A folder that plays the system's root directory.
class IdentifyHostTest : public ::testing::Test {
 protected:
  IdentifyHostTest() {
    root_ = absl::StrCat(
        std::getenv("TEST_TMPDIR"), "/",
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(root_ + "/proc/sys/kernel/random");
    std::filesystem::create_directories(root_ + "/proc/self/ns");
    Boot("7f1c\n");
    Link("net", "net:[1]");
    Link("pid", "pid:[1]");
  }

  void Boot(const std::string& text) {
    std::ofstream(root_ + "/proc/sys/kernel/random/boot_id") << text;
  }
  void Link(const std::string& name, const std::string& target) {
    const std::string path = absl::StrCat(root_, "/proc/self/ns/", name);
    std::filesystem::remove(path);
    if (!target.empty()) std::filesystem::create_symlink(target, path);
  }

  HostIdentity Identify(absl::string_view address = "") {
    const auto identity = IdentifyHost(address, root_);
    EXPECT_TRUE(identity.ok()) << identity.status();
    return identity.value_or(HostIdentity());
  }
  std::string Problem() {
    return std::string(IdentifyHost("", root_).status().message());
  }

  std::string root_;
};

TEST_F(IdentifyHostTest, ABootANetworkAndAnAddressAreAHost) {
  const uint64_t host = Identify().host;
  EXPECT_EQ(Identify().host, host);
  EXPECT_NE(Identify("10.0.0.1").host, host);
  Link("net", "net:[2]");
  EXPECT_NE(Identify().host, host);
  Link("net", "net:[1]");
  Boot("7f1d\n");
  EXPECT_NE(Identify().host, host);
}

TEST_F(IdentifyHostTest, ProcessNumbersAreNoPartOfTheHost) {
  const HostIdentity before = Identify();
  Link("pid", "pid:[2]");
  EXPECT_EQ(Identify().host, before.host);
  EXPECT_NE(Identify().processes, before.processes);
  Link("pid", "");
  EXPECT_EQ(Identify().processes, 0u);
}

TEST_F(IdentifyHostTest, WhatCannotBeReadIsNamed) {
  Boot("");
  const std::string file = root_ + "/proc/sys/kernel/random/boot_id";
  EXPECT_EQ(Problem(), absl::StrCat("cannot tell on which host it is: ", file,
                                    ": is empty"));
  std::filesystem::remove(file);
  EXPECT_EQ(Problem(), absl::StrCat("cannot tell on which host it is: ", file,
                                    ": No such file or directory"));
  Boot("7f1c\n");
  Link("net", "");
  EXPECT_EQ(Problem(),
            absl::StrCat("cannot tell on which host it is: ", root_,
                         "/proc/self/ns/net: No such file or directory"));
}

TEST(StrangersTest, RanksOfAHostWithOtherProcessNumbersAreNamed) {
  const auto describe = [](const std::vector<HostIdentity>& identities) {
    std::vector<uint64_t> hosts;
    for (const HostIdentity& one : identities) hosts.push_back(one.host);
    return DescribeStrangers(Topology(hosts, /*rank=*/0), identities);
  };
  EXPECT_EQ(describe({{1, 7}, {2, 8}, {1, 7}, {2, 8}}), "");
  EXPECT_THAT(describe({{1, 7}, {2, 8}, {1, 7}, {2, 9}}),
              HasSubstr("ranks 1 and 3 are on one host, but in containers with "
                        "process numbers of their own"));
}

}  // namespace
}  // namespace muster::dataplane::shm
