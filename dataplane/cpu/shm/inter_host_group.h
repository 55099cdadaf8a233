// Collectives among a group that has one rank of each host.

#ifndef MUSTER_DATAPLANE_CPU_SHM_INTER_HOST_GROUP_H_
#define MUSTER_DATAPLANE_CPU_SHM_INTER_HOST_GROUP_H_

#include <vector>

#include "dataplane/cpu/collectives/exchange.h"
#include "dataplane/cpu/collectives/schedules.h"
#include "dataplane/cpu/transport/subset_transport.h"
#include "dataplane/cpu/transport/transport.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane::shm {

using cpu::Blocks;
using cpu::MessageHeader;

// The reduction of an inter-host group, whose elements are accumulators.
struct Sum {
  DataType type = DataType::kFloat32;
  // Neither kAvg nor kPremulSum.
  ReduceOp op = ReduceOp::kSum;
};

// InterHostGroup consists of one rank of each host. These ranks run the gloo
// backend's collectives among each other, as steps of a collective of the whole
// group, whose header is `header`. Ranks are host numbers here.
class InterHostGroup {
 public:
  // `ranks` of `transport`, by host. `transport` must live longer.
  InterHostGroup(cpu::Transport& transport, std::vector<int> ranks);

  Status AllReduce(const MessageHeader& header, const Sum& sum,
                   const Block& accumulators);
  // Reduces to host `root`; the others' accumulators do not change.
  Status Reduce(const MessageHeader& header, const Sum& sum,
                const Block& accumulators, int root);
  // `blocks`, by host: this host's receives the result.
  Status ReduceScatter(const MessageHeader& header, const Sum& sum,
                       const Blocks& blocks);
  // `blocks`, by host: this host's is the input.
  Status AllGather(const MessageHeader& header, DataType type,
                   const Blocks& blocks);
  Status Broadcast(const MessageHeader& header, DataType type,
                   const Block& block, int root);
  Status Barrier(const MessageHeader& header);

 private:
  // Every rank sends `give[h]` to host h, and combines the blocks that it
  // receives into its own, in the order of the hosts.
  Status CombineAtOnce(const Sum& sum, const Blocks& give,
                       cpu::Exchange& exchange);
  // Whether CombineAtOnce runs reductions of `bytes`.
  bool IsAtOnce(size_t bytes) const;

  cpu::SubsetTransport transport_;
  cpu::Workspace workspace_;
};

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_INTER_HOST_GROUP_H_
