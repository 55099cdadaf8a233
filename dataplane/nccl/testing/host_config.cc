#include "dataplane/nccl/testing/host_config.h"

#include <climits>

#include "absl/strings/str_cat.h"

namespace muster::dataplane::nccl::testing {
namespace {

constexpr int kChannelsMax = 64;

struct Field {
  const char* name;
  int value;
  int min;
  int max;
};

}  // namespace

std::string WhatIsWrongWith(const Config& config) {
  if (config.size != sizeof(Config) || config.magic != Config().magic) {
    return "a configuration that was not initialized";
  }
  for (const Field& field : {
           Field{"blocking", config.blocking, 0, 1},
           Field{"cgaClusterSize", config.cga_cluster_size, 0, INT_MAX},
           Field{"minCTAs", config.min_ctas, 1, INT_MAX},
           Field{"maxCTAs", config.max_ctas, 1, INT_MAX},
           Field{"splitShare", config.split_share, 0, 1},
           Field{"collnetEnable", config.collnet_enable, 0, 1},
           Field{"CTAPolicy", config.cta_policy, 0, 3},
           Field{"shrinkShare", config.shrink_share, 0, 1},
           Field{"nvlsCTAs", config.nvls_ctas, 1, INT_MAX},
           Field{"nChannelsPerNetPeer", config.channels_per_net_peer, 1,
                 kChannelsMax},
           Field{"nvlinkCentricSched", config.nvlink_centric_sched, 0, 1},
       }) {
    if (field.value == kUndefined ||
        (field.value >= field.min && field.value <= field.max)) {
      continue;
    }
    return absl::StrCat(field.name, " ", field.value);
  }
  // Also compares a missing one, which is the least int.
  if (config.min_ctas > config.max_ctas) {
    return absl::StrCat("minCTAs ", config.min_ctas, ", maxCTAs ",
                        config.max_ctas);
  }
  return "";
}

}  // namespace muster::dataplane::nccl::testing
