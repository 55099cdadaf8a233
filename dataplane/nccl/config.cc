#include "dataplane/nccl/config.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dataplane/cuda/api.h"

namespace muster::dataplane::nccl {
namespace {

// The first versions with policies, and with the copy engine policy.
constexpr int kCtaVersion = 22700;
constexpr int kZeroCtaVersion = 22800;
// NCCL's limits for blocks in a cluster and for channels.
constexpr int kCgaMax = 8;
constexpr int kCtasMax = 64;
using CtaPolicy = NcclOptions::CtaPolicy;
static_assert(static_cast<int>(CtaPolicy::kEfficiency) ==
                  kCtaPolicyEfficiency &&
              static_cast<int>(CtaPolicy::kZero) == kCtaPolicyZero);

Status CheckCtaPolicy(CtaPolicy policy, int version) {
  const int value = static_cast<int>(policy);
  if (value < 0 || value > kCtaPolicyZero) {
    return InvalidArgumentError(
        absl::StrCat("NcclOptions::cta_policy: ", value, " is no CtaPolicy"));
  }
  const int needed = policy == CtaPolicy::kZero ? kZeroCtaVersion : kCtaVersion;
  if (version >= needed) return OkStatus();
  return UnimplementedError(absl::StrCat("NcclOptions::cta_policy: ", value,
                                         " needs NCCL ", VersionText(needed),
                                         ", this is ", VersionText(version)));
}

// Refuses values that NCCL refuses or silently changes.
Status CheckRange(absl::string_view name, const std::optional<int>& value,
                  int min, int max) {
  if (!value.has_value() || (*value >= min && *value <= max)) {
    return OkStatus();
  }
  return InvalidArgumentError(
      absl::StrCat("NcclOptions::", name, ": ", *value, " is not ",
                   max == INT_MAX ? absl::StrCat(min, " or more")
                   : max == 1     ? "0 or 1"
                                  : absl::StrCat(min, " to ", max)));
}

Status CheckRanges(const NcclOptions& options) {
  Status status =
      CheckRange("cga_cluster_size", options.cga_cluster_size, 0, kCgaMax);
  status.Update(CheckRange("min_ctas", options.min_ctas, 1, INT_MAX));
  status.Update(CheckRange("max_ctas", options.max_ctas, 1, INT_MAX));
  status.Update(CheckRange("split_share", options.split_share, 0, 1));
  status.Update(CheckRange("traffic_class", options.traffic_class, 0, INT_MAX));
  status.Update(CheckRange("collnet_enable", options.collnet_enable, 0, 1));
  status.Update(CheckRange("shrink_share", options.shrink_share, 0, 1));
  status.Update(CheckRange("nvls_ctas", options.nvls_ctas, 1, INT_MAX));
  status.Update(CheckRange("channels_per_net_peer",
                           options.channels_per_net_peer, 1, kCtasMax));
  status.Update(
      CheckRange("nvlink_centric_sched", options.nvlink_centric_sched, 0, 1));
  return status;
}

}  // namespace

Config MakeConfig(const NcclOptions& options, const std::string& group_name,
                  int version) {
  Config config;
  config.version = static_cast<unsigned>(version);
  config.blocking = IsBlocking(options) ? 1 : 0;
  config.comm_name = group_name.c_str();
  if (!options.net_name.empty()) config.net_name = options.net_name.c_str();
  const auto set = [](int& field, const std::optional<int>& value) {
    if (value.has_value()) field = *value;
  };
  set(config.cga_cluster_size, options.cga_cluster_size);
  set(config.min_ctas, options.min_ctas);
  set(config.max_ctas, options.max_ctas);
  // Set because NCCL compares the two also if only the minimum is given.
  if (options.min_ctas.has_value() && !options.max_ctas.has_value()) {
    config.max_ctas = std::max(*options.min_ctas, kCtasMax);
  }
  set(config.split_share, options.split_share);
  set(config.traffic_class, options.traffic_class);
  set(config.collnet_enable, options.collnet_enable);
  if (options.cta_policy.has_value()) {
    config.cta_policy = static_cast<int>(*options.cta_policy);
  }
  set(config.shrink_share, options.shrink_share);
  set(config.nvls_ctas, options.nvls_ctas);
  set(config.channels_per_net_peer, options.channels_per_net_peer);
  set(config.nvlink_centric_sched, options.nvlink_centric_sched);
  return config;
}

bool IsBlocking(const NcclOptions& options) {
  const char* const set = std::getenv("NCCL_COMM_BLOCKING");
  const absl::string_view blocking = set == nullptr ? "" : set;
  return blocking == "1" || (options.blocking && blocking != "0");
}

bool WantsCopyEngines(const NcclOptions& options) {
  return options.cta_policy == CtaPolicy::kZero;
}

Status CheckOptions(const Platform& platform, const BackendOptions& options) {
  const NcclOptions& nccl = GetNcclOptions(options);
  Status range = CheckRanges(nccl);
  if (!range.ok()) return range;
  if (nccl.min_ctas.has_value() && nccl.max_ctas.has_value() &&
      *nccl.min_ctas > *nccl.max_ctas) {
    return InvalidArgumentError(
        absl::StrCat("NcclOptions::min_ctas: ", *nccl.min_ctas,
                     " is above max_ctas, which is ", *nccl.max_ctas));
  }
  if (nccl.cta_policy.has_value()) {
    Status status = CheckCtaPolicy(*nccl.cta_policy, platform.nccl_version);
    if (!status.ok()) return status;
  }
  if (options.device < 0) return OkStatus();
  int count = 0;
  Status status =
      cuda::ToStatus(platform.cuda, platform.cuda.GetDeviceCount(&count),
                     "cudaGetDeviceCount");
  if (!status.ok() || options.device < count) return status;
  return InvalidArgumentError(
      absl::StrCat("argument device_id: ", options.device, ", but there are ",
                   count, count == 1 ? " CUDA device" : " CUDA devices"));
}

}  // namespace muster::dataplane::nccl
