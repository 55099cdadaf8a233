#ifndef MUSTER_DATAPLANE_CPU_COLLECTIVES_ALGORITHMS_H_
#define MUSTER_DATAPLANE_CPU_COLLECTIVES_ALGORITHMS_H_

#include "base/status.h"
#include "dataplane/collective.h"
#include "dataplane/cpu/collectives/exchange.h"

namespace muster::dataplane::cpu {

// One function per collective, on one rank, blocking until its part is done.
// Each picks its algorithm by numbers of bytes and of ranks alone that all
// ranks know, so that all pick the same. The collective is valid and supported.

Status AllReduce(const Collective& collective, Exchange& exchange);
Status Broadcast(const Collective& collective, Exchange& exchange);
Status Barrier(const Collective& collective, Exchange& exchange);
Status Reduce(const Collective& collective, Exchange& exchange);
// Also of kAllGatherIntoTensor.
Status AllGather(const Collective& collective, Exchange& exchange);
Status Gather(const Collective& collective, Exchange& exchange);
Status Scatter(const Collective& collective, Exchange& exchange);
// Also of kReduceScatterTensor.
Status ReduceScatter(const Collective& collective, Exchange& exchange);
// Also of kAllToAllSingle.
Status AllToAll(const Collective& collective, Exchange& exchange);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_COLLECTIVES_ALGORITHMS_H_
