#ifndef MUSTER_DATAPLANE_CPU_COLLECTIVES_ALGORITHMS_H_
#define MUSTER_DATAPLANE_CPU_COLLECTIVES_ALGORITHMS_H_

#include "dataplane/cpu/collectives/exchange.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane::cpu {

// One function per collective. It runs this rank's part and blocks until that
// is done. It selects its algorithm by numbers of bytes and ranks that all
// ranks know, so all select the same. The collective must be valid and
// supported. The function of a list form also takes whole tensors
// (CollectiveTraits).

Status AllReduce(const Collective& collective, Exchange& exchange);
Status Broadcast(const Collective& collective, Exchange& exchange);
Status Barrier(const Collective& collective, Exchange& exchange);
Status Reduce(const Collective& collective, Exchange& exchange);
Status AllGather(const Collective& collective, Exchange& exchange);
Status Gather(const Collective& collective, Exchange& exchange);
Status Scatter(const Collective& collective, Exchange& exchange);
Status ReduceScatter(const Collective& collective, Exchange& exchange);
Status AllToAll(const Collective& collective, Exchange& exchange);

using AlgorithmFunction = Status (*)(const Collective& collective,
                                     Exchange& exchange);

// The function of `kind`, or null.
inline AlgorithmFunction FindFunction(CollectiveKind kind) {
  switch (GetTraits(kind).list_form) {
    case CollectiveKind::kAllReduce:
      return &AllReduce;
    case CollectiveKind::kBroadcast:
      return &Broadcast;
    case CollectiveKind::kBarrier:
      return &Barrier;
    case CollectiveKind::kReduce:
      return &Reduce;
    case CollectiveKind::kAllGather:
      return &AllGather;
    case CollectiveKind::kGather:
      return &Gather;
    case CollectiveKind::kScatter:
      return &Scatter;
    case CollectiveKind::kReduceScatter:
      return &ReduceScatter;
    case CollectiveKind::kAllToAll:
      return &AllToAll;
    default:
      return nullptr;
  }
}

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_COLLECTIVES_ALGORITHMS_H_
