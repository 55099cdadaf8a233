#ifndef MUSTER_DATAPLANE_CPU_COLLECTIVES_ALGORITHMS_H_
#define MUSTER_DATAPLANE_CPU_COLLECTIVES_ALGORITHMS_H_

#include "base/status.h"
#include "dataplane/collective.h"
#include "dataplane/cpu/collectives/exchange.h"

namespace muster::dataplane::cpu {

// One function per collective. It runs this rank's part and blocks until that
// is done. It selects its algorithm only by numbers of bytes and ranks that all
// ranks know, so all ranks select the same. The collective is valid and
// supported.

Status AllReduce(const Collective& collective, Exchange& exchange);
Status Broadcast(const Collective& collective, Exchange& exchange);
Status Barrier(const Collective& collective, Exchange& exchange);
Status Reduce(const Collective& collective, Exchange& exchange);
// Also runs kAllGatherIntoTensor.
Status AllGather(const Collective& collective, Exchange& exchange);
Status Gather(const Collective& collective, Exchange& exchange);
Status Scatter(const Collective& collective, Exchange& exchange);
// Also runs kReduceScatterTensor.
Status ReduceScatter(const Collective& collective, Exchange& exchange);
// Also runs kAllToAllSingle.
Status AllToAll(const Collective& collective, Exchange& exchange);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_COLLECTIVES_ALGORITHMS_H_
