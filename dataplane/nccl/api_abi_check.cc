// Compares api.h with NCCL's header, if this program is built with it.

#ifdef MUSTER_HAVE_CUDA

#include <nccl.h>

#include <cstddef>

#include "dataplane/cuda/same_function.h"
#include "dataplane/nccl/api.h"

namespace muster::dataplane::nccl {
namespace {

#define MUSTER_SAME(name) \
  static_assert(cuda::kSameFunction<decltype(Api::name), decltype(&nccl##name)>)

MUSTER_SAME(GetVersion);
MUSTER_SAME(GetErrorString);
MUSTER_SAME(GetLastError);
MUSTER_SAME(GetUniqueId);
MUSTER_SAME(CommInitRankConfig);
MUSTER_SAME(CommSplit);
MUSTER_SAME(CommFinalize);
MUSTER_SAME(CommDestroy);
MUSTER_SAME(CommAbort);
MUSTER_SAME(CommGetAsyncError);
MUSTER_SAME(RedOpCreatePreMulSum);
MUSTER_SAME(RedOpDestroy);
MUSTER_SAME(GroupStart);
MUSTER_SAME(GroupEnd);
MUSTER_SAME(AllReduce);
MUSTER_SAME(Broadcast);
MUSTER_SAME(Reduce);
MUSTER_SAME(AllGather);
MUSTER_SAME(ReduceScatter);
MUSTER_SAME(Send);
MUSTER_SAME(Recv);

static_assert(kSuccess == ncclSuccess);
static_assert(kInProgress == ncclInProgress);
static_assert(kUint32 == ncclUint32 && kUint64 == ncclUint64 &&
              kInt8 == ncclInt8 && kUint8 == ncclUint8 && kInt32 == ncclInt32 &&
              kInt64 == ncclInt64 && kFloat16 == ncclFloat16 &&
              kFloat32 == ncclFloat32 && kFloat64 == ncclFloat64 &&
              kBfloat16 == ncclBfloat16);
static_assert(kSum == ncclSum && kProd == ncclProd && kMax == ncclMax &&
              kMin == ncclMin && kAvg == ncclAvg);
static_assert(kScalarHostImmediate == ncclScalarHostImmediate);
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
MUSTER_SAME(CommShrink);
MUSTER_SAME(MemAlloc);
MUSTER_SAME(MemFree);
MUSTER_SAME(CommWindowRegister);
MUSTER_SAME(CommWindowDeregister);
static_assert(kFloat8e4m3 == ncclFloat8e4m3 && kFloat8e5m2 == ncclFloat8e5m2);
static_assert(kSplitNoColor == NCCL_SPLIT_NOCOLOR);
static_assert(kShrinkDefault == NCCL_SHRINK_DEFAULT &&
              kShrinkAbort == NCCL_SHRINK_ABORT);
static_assert(kWindowSymmetric == NCCL_WIN_COLL_SYMMETRIC);
#endif

#define MUSTER_SAME_FIELD(ours, theirs)                                     \
  static_assert(offsetof(Config, ours) == offsetof(ncclConfig_t, theirs) && \
                sizeof(Config::ours) == sizeof(ncclConfig_t::theirs))

// Later versions have more fields at the end.
static_assert(kUndefined == NCCL_CONFIG_UNDEF_INT);
MUSTER_SAME_FIELD(size, size);
MUSTER_SAME_FIELD(magic, magic);
MUSTER_SAME_FIELD(version, version);
MUSTER_SAME_FIELD(blocking, blocking);
MUSTER_SAME_FIELD(cga_cluster_size, cgaClusterSize);
MUSTER_SAME_FIELD(min_ctas, minCTAs);
MUSTER_SAME_FIELD(max_ctas, maxCTAs);
MUSTER_SAME_FIELD(net_name, netName);
MUSTER_SAME_FIELD(split_share, splitShare);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
MUSTER_SAME_FIELD(traffic_class, trafficClass);
MUSTER_SAME_FIELD(comm_name, commName);
MUSTER_SAME_FIELD(collnet_enable, collnetEnable);
MUSTER_SAME_FIELD(cta_policy, CTAPolicy);
MUSTER_SAME_FIELD(shrink_share, shrinkShare);
MUSTER_SAME_FIELD(nvls_ctas, nvlsCTAs);
MUSTER_SAME_FIELD(channels_per_net_peer, nChannelsPerNetPeer);
MUSTER_SAME_FIELD(nvlink_centric_sched, nvlinkCentricSched);
static_assert(sizeof(Config) <= sizeof(ncclConfig_t));
static_assert(kCtaPolicyEfficiency == NCCL_CTA_POLICY_EFFICIENCY &&
              kCtaPolicyZero == NCCL_CTA_POLICY_ZERO);
MUSTER_SAME(AlltoAll);
MUSTER_SAME(Scatter);
static_assert(kWindowAlignment == NCCL_WIN_REQUIRED_ALIGNMENT);
#endif

#undef MUSTER_SAME_FIELD
#undef MUSTER_SAME

}  // namespace
}  // namespace muster::dataplane::nccl

#endif  // MUSTER_HAVE_CUDA
