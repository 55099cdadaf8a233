// What one rank of each host does with those of the others.

#ifndef MUSTER_DATAPLANE_CPU_SHM_INTER_HOST_GROUP_H_
#define MUSTER_DATAPLANE_CPU_SHM_INTER_HOST_GROUP_H_

#include <vector>

#include "absl/status/status.h"
#include "dataplane/cpu/collectives/exchange.h"
#include "dataplane/cpu/transport/transport.h"
#include "dataplane/cpu/transport/subset_transport.h"
#include "dataplane/cpu/collectives/schedules.h"
#include "dataplane/collective.h"

namespace muster::dataplane::shm_internal {

using gloo_internal::Block;
using gloo_internal::Blocks;
using gloo_internal::NoteHeader;

// What a lane reduces: accumulators, as elements of their own type.
struct Sum {
  DataType type = DataType::kFloat32;
  // Not kAvg nor kPremulSum.
  ReduceOp op = ReduceOp::kSum;
};

// Lane is one rank of each host. They do gloo's collectives among each other,
// as steps of a collective of the group: `header` is that one's. Ranks are the
// numbers of hosts here.
class Lane {
 public:
  // `ranks` of `mesh`, by host. It lives longer.
  Lane(gloo_internal::Mesh& mesh, std::vector<int> ranks);

  absl::Status AllReduce(const NoteHeader& header, const Sum& sum,
                         const Block& accumulators);
  // To host `root`; the others keep theirs.
  absl::Status Reduce(const NoteHeader& header, const Sum& sum,
                      const Block& accumulators, int root);
  // `blocks`, by host: this one's becomes the reduction.
  absl::Status ReduceScatter(const NoteHeader& header, const Sum& sum,
                             const Blocks& blocks);
  // `blocks`, by host: this one's is there.
  absl::Status AllGather(const NoteHeader& header, DataType type,
                         const Blocks& blocks);
  absl::Status Broadcast(const NoteHeader& header, DataType type,
                         const Block& block, int root);
  absl::Status Barrier(const NoteHeader& header);

 private:
  // Every rank gives `give[h]` to host h, and combines what it gets, in the
  // order of the hosts, in its own.
  absl::Status CombineAtOnce(const Sum& sum, const Blocks& give,
                             gloo_internal::Exchange& exchange);
  // Whether reductions of so many bytes go that way.
  bool IsAtOnce(size_t bytes) const;

  gloo_internal::PartMesh mesh_;
  gloo_internal::Workspace workspace_;
};

}  // namespace muster::dataplane::shm_internal

#endif  // MUSTER_DATAPLANE_CPU_SHM_INTER_HOST_GROUP_H_
