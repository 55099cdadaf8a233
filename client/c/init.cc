#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "client/c/convert.h"
#include "client/c/error.h"
#include "client/c/handles.h"
#include "muster/distributed.h"
#include "muster/muster.h"

namespace muster::c {
namespace {

constexpr struct {
  uint32_t bit;
  int32_t muster_nccl_options::*from;
  std::optional<int> NcclOptions::*to;
} kNcclNumbers[] = {
    {MUSTER_NCCL_CGA_CLUSTER_SIZE, &muster_nccl_options::cga_cluster_size,
     &NcclOptions::cga_cluster_size},
    {MUSTER_NCCL_MIN_CTAS, &muster_nccl_options::min_ctas,
     &NcclOptions::min_ctas},
    {MUSTER_NCCL_MAX_CTAS, &muster_nccl_options::max_ctas,
     &NcclOptions::max_ctas},
    {MUSTER_NCCL_SPLIT_SHARE, &muster_nccl_options::split_share,
     &NcclOptions::split_share},
    {MUSTER_NCCL_TRAFFIC_CLASS, &muster_nccl_options::traffic_class,
     &NcclOptions::traffic_class},
    {MUSTER_NCCL_COLLNET_ENABLE, &muster_nccl_options::collnet_enable,
     &NcclOptions::collnet_enable},
    {MUSTER_NCCL_SHRINK_SHARE, &muster_nccl_options::shrink_share,
     &NcclOptions::shrink_share},
    {MUSTER_NCCL_NVLS_CTAS, &muster_nccl_options::nvls_ctas,
     &NcclOptions::nvls_ctas},
    {MUSTER_NCCL_CHANNELS_PER_NET_PEER,
     &muster_nccl_options::channels_per_net_peer,
     &NcclOptions::channels_per_net_peer},
    {MUSTER_NCCL_NVLINK_CENTRIC_SCHED,
     &muster_nccl_options::nvlink_centric_sched,
     &NcclOptions::nvlink_centric_sched},
};

// Returns -1, which is "not given" in C++, for 0.
int ToSize(int32_t size, const char* name) {
  if (size < 0) {
    ThrowArgument("options", std::string(name) + " is " + std::to_string(size));
  }
  return size == 0 ? -1 : size;
}

InitProcessGroupOptions ToInitOptions(const muster_init_options& from) {
  InitProcessGroupOptions to;
  to.backend = ToString(from.backend);
  to.init_method = ToString(from.init_method);
  if (from.store != nullptr) to.store = from.store->store;
  to.timeout = ToMilliseconds(from.timeout_ms, to.timeout);
  to.world_size = ToSize(from.world_size, "world_size");
  to.min_world_size = ToSize(from.min_world_size, "min_world_size");
  to.max_world_size = ToSize(from.max_world_size, "max_world_size");
  if (from.has_rank != 0) {
    if (from.rank < 0) {
      ThrowArgument("options", "rank is " + std::to_string(from.rank));
    }
    to.rank = from.rank;
  }
  if (from.has_last_call != 0) to.last_call = ToMilliseconds(from.last_call_ms);
  if (from.has_device_id != 0) to.device_id = from.device_id;
  if (auto nccl = ToNcclOptions(from.nccl, "options.nccl")) to.nccl = *nccl;
  to.cpu_transport = ToString(from.cpu_transport);
  to.job = ToString(from.job);
  if (from.has_http_port != 0) to.http_port = from.http_port;
  to.verdict_timeout =
      ToMilliseconds(from.verdict_timeout_ms, to.verdict_timeout);
  return to;
}

}  // namespace

std::optional<NcclOptions> ToNcclOptions(const muster_nccl_options* options,
                                         const char* name) {
  if (options == nullptr) return std::nullopt;
  const muster_nccl_options from = ReadOptions(options, name);
  NcclOptions to;
  to.is_high_priority_stream = from.is_high_priority_stream != 0;
  to.blocking_wait = from.blocking_wait != 0;
  to.blocking = from.blocking != 0;
  to.net_name = ToString(from.net_name);
  uint32_t known = MUSTER_NCCL_CTA_POLICY;
  for (const auto& number : kNcclNumbers) {
    known |= number.bit;
    if ((from.given & number.bit) != 0) to.*number.to = from.*number.from;
  }
  if ((from.given & MUSTER_NCCL_CTA_POLICY) != 0) {
    if (from.cta_policy < 0 || from.cta_policy > 2) {
      ThrowArgument(name, "cta_policy is " + std::to_string(from.cta_policy));
    }
    to.cta_policy = static_cast<NcclOptions::CtaPolicy>(from.cta_policy);
  }
  if ((from.given & ~known) != 0) {
    ThrowArgument(name, "given has bits that this library does not know: " +
                            std::to_string(from.given & ~known));
  }
  return to;
}

}  // namespace muster::c

using muster::c::Guard;
using muster::c::GuardHandle;
using muster::c::MakeStrings;
using muster::c::Need;

muster_status muster_init_process_group(const muster_init_options* options) {
  return Guard(__func__, [&] {
    muster::InitProcessGroup(
        muster::c::ToInitOptions(muster::c::ReadOptions(options)));
  });
}

muster_status muster_is_initialized(int32_t* initialized) {
  return Guard(__func__, [&] {
    Need(initialized, "initialized") = muster::IsInitialized() ? 1 : 0;
  });
}

muster_status muster_destroy_process_group(muster_group* group) {
  return Guard(__func__,
               [&] { muster::DestroyProcessGroup(muster::c::ToGroup(group)); });
}

muster_status muster_is_torchelastic_launched(int32_t* launched) {
  return Guard(__func__, [&] {
    Need(launched, "launched") = muster::IsTorchElasticLaunched() ? 1 : 0;
  });
}

muster_status muster_get_node_local_rank(int32_t fallback_rank, int32_t* rank) {
  return Guard(__func__, [&] {
    Need(rank, "rank") = muster::GetNodeLocalRank(
        fallback_rank < 0 ? std::nullopt : std::optional<int>(fallback_rank));
  });
}

muster_status muster_get_default_store(muster_store** store) {
  return GuardHandle(__func__, store, "store", [] {
    return new muster_store{muster::GetDefaultStore()};
  });
}

muster_status muster_get_debug_address(muster_strings** address) {
  return GuardHandle(__func__, address, "address",
                     [] { return MakeStrings(muster::GetDebugAddress()); });
}
