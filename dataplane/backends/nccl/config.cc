#include "dataplane/backends/nccl/config.h"

#include <optional>

namespace muster::dataplane::nccl {

Config ConfigOf(const NcclOptions& options, const std::string& group_name,
                int version) {
  Config config;
  config.version = static_cast<unsigned>(version);
  // Else nothing could end it while ranks are missing.
  config.blocking = 0;
  config.comm_name = group_name.c_str();
  if (!options.net_name.empty()) config.net_name = options.net_name.c_str();
  const auto set = [](int& field, const std::optional<int>& value) {
    if (value.has_value()) field = *value;
  };
  set(config.cga_cluster_size, options.cga_cluster_size);
  set(config.min_ctas, options.min_ctas);
  set(config.max_ctas, options.max_ctas);
  set(config.split_share, options.split_share);
  set(config.traffic_class, options.traffic_class);
  set(config.collnet_enable, options.collnet_enable);
  set(config.cta_policy, options.cta_policy);
  set(config.shrink_share, options.shrink_share);
  set(config.nvls_ctas, options.nvls_ctas);
  set(config.channels_per_net_peer, options.channels_per_net_peer);
  set(config.nvlink_centric_sched, options.nvlink_centric_sched);
  return config;
}

}  // namespace muster::dataplane::nccl
