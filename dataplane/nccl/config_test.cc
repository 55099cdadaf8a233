// From users' options to NCCL's configuration, on the fake NCCL and CUDA.

#include "dataplane/nccl/config.h"

#include <cstdlib>
#include <string>

#include "dataplane/nccl/testing/backend_test.h"
#include "dataplane/nccl/testing/host_nccl.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::nccl {
namespace {

class ConfigTest : public testing::BackendTest {
 protected:
  // The configuration of a communicator made with `options`.
  Config Made(const NcclOptions& options) {
    Make(1, -1, options);
    EXPECT_EQ(Wait(AllReduce(0, OnDevice(1, 1))), OkStatus());
    backends_.clear();
    return testing::LastConfig();
  }

  // The error of making a group with `options`.
  std::string Refused(const NcclOptions& options) {
    const Status status =
        CreateNcclBackend(platform_,
                          {.nccl = std::make_shared<NcclOptions>(options)})
            .status();
    EXPECT_TRUE(IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }
};

TEST_F(ConfigTest, AllOptionsComeToNccl) {
  const std::string name = "Socket";
  NcclOptions options = {.blocking = true,
                         .cga_cluster_size = 2,
                         .min_ctas = 3,
                         .max_ctas = 4,
                         .net_name = name,
                         .split_share = 1,
                         .traffic_class = 5,
                         .collnet_enable = 0,
                         .cta_policy = NcclOptions::CtaPolicy::kZero,
                         .shrink_share = 1,
                         .nvls_ctas = 6,
                         .channels_per_net_peer = 8,
                         .nvlink_centric_sched = 1};
  Make(1, -1, options);
  EXPECT_EQ(Wait(AllReduce(0, OnDevice(1, 1))), OkStatus());
  const Config config = testing::LastConfig();
  EXPECT_EQ(config.version, 22809U);
  EXPECT_EQ(config.blocking, 1);
  EXPECT_EQ(config.cga_cluster_size, 2);
  EXPECT_EQ(config.min_ctas, 3);
  EXPECT_EQ(config.max_ctas, 4);
  EXPECT_EQ(config.net_name, name);
  EXPECT_EQ(config.split_share, 1);
  EXPECT_EQ(config.traffic_class, 5);
  EXPECT_EQ(config.comm_name, std::string("world"));
  EXPECT_EQ(config.collnet_enable, 0);
  EXPECT_EQ(config.cta_policy, kCtaPolicyZero);
  EXPECT_EQ(config.shrink_share, 1);
  EXPECT_EQ(config.nvls_ctas, 6);
  EXPECT_EQ(config.channels_per_net_peer, 8);
  EXPECT_EQ(config.nvlink_centric_sched, 1);
}

TEST_F(ConfigTest, WhatIsNotGivenIsNcclsChoiceButThatItDoesNotBlock) {
  const Config config = Made({});
  EXPECT_EQ(config.blocking, 0);
  EXPECT_EQ(config.net_name, nullptr);
  for (const int value :
       {config.cga_cluster_size, config.min_ctas, config.max_ctas,
        config.split_share, config.traffic_class, config.collnet_enable,
        config.cta_policy, config.shrink_share, config.nvls_ctas,
        config.channels_per_net_peer, config.nvlink_centric_sched}) {
    EXPECT_EQ(value, kUndefined);
  }
}

// NCCL treats a missing maximum as the least int.
TEST_F(ConfigTest, TheLeastOfCtasCanBeGivenAlone) {
  const Config config = Made({.min_ctas = 4});
  EXPECT_EQ(config.min_ctas, 4);
  EXPECT_EQ(config.max_ctas, 64);
}

TEST_F(ConfigTest, NcclsEnvironmentSaysFirstWhetherItBlocks) {
  setenv("NCCL_COMM_BLOCKING", "1", /*overwrite=*/1);
  EXPECT_EQ(Made({}).blocking, 1);
  setenv("NCCL_COMM_BLOCKING", "0", /*overwrite=*/1);
  EXPECT_EQ(Made({.blocking = true}).blocking, 0);
  unsetenv("NCCL_COMM_BLOCKING");
}

TEST_F(ConfigTest, WhatNcclWouldRefuseIsAnErrorThatNamesIt) {
  EXPECT_EQ(Refused({.min_ctas = 4, .max_ctas = 3}),
            "NcclOptions::min_ctas: 4 is above max_ctas, which is 3");
  EXPECT_EQ(Refused({.cga_cluster_size = 9}),
            "NcclOptions::cga_cluster_size: 9 is not 0 to 8");
  EXPECT_EQ(Refused({.min_ctas = 0}),
            "NcclOptions::min_ctas: 0 is not 1 or more");
  EXPECT_EQ(Refused({.max_ctas = -1}),
            "NcclOptions::max_ctas: -1 is not 1 or more");
  EXPECT_EQ(Refused({.split_share = 2}),
            "NcclOptions::split_share: 2 is not 0 or 1");
  EXPECT_EQ(Refused({.traffic_class = -1}),
            "NcclOptions::traffic_class: -1 is not 0 or more");
  EXPECT_EQ(Refused({.collnet_enable = -1}),
            "NcclOptions::collnet_enable: -1 is not 0 or 1");
  EXPECT_EQ(Refused({.shrink_share = 2}),
            "NcclOptions::shrink_share: 2 is not 0 or 1");
  EXPECT_EQ(Refused({.nvls_ctas = 0}),
            "NcclOptions::nvls_ctas: 0 is not 1 or more");
  EXPECT_EQ(Refused({.channels_per_net_peer = 65}),
            "NcclOptions::channels_per_net_peer: 65 is not 1 to 64");
  EXPECT_EQ(Refused({.nvlink_centric_sched = 2}),
            "NcclOptions::nvlink_centric_sched: 2 is not 0 or 1");
}

TEST_F(ConfigTest, ACtaPolicyThatNcclIsTooOldForIsAnError) {
  const auto made = [&](int version, NcclOptions::CtaPolicy policy) {
    platform_.nccl_version = version;
    NcclOptions options;
    options.cta_policy = policy;
    return CreateNcclBackend(platform_,
                             {.nccl = std::make_shared<NcclOptions>(options)})
        .status();
  };
  using enum NcclOptions::CtaPolicy;
  EXPECT_EQ(made(22604, kDefault),
            UnimplementedError("NcclOptions::cta_policy: 0 needs NCCL "
                               "2.27.0, this is 2.26.4"));
  EXPECT_EQ(made(22703, kEfficiency), OkStatus());
  EXPECT_EQ(made(22703, kZero),
            UnimplementedError("NcclOptions::cta_policy: 2 needs NCCL "
                               "2.28.0, this is 2.27.3"));
  EXPECT_EQ(made(22800, kZero), OkStatus());
  EXPECT_EQ(made(22800, static_cast<NcclOptions::CtaPolicy>(3)),
            InvalidArgumentError("NcclOptions::cta_policy: 3 is no CtaPolicy"));
}

}  // namespace
}  // namespace muster::dataplane::nccl
