// The steps of a hierarchical collective within one host.

#ifndef MUSTER_DATAPLANE_CPU_SHM_INTRA_HOST_H_
#define MUSTER_DATAPLANE_CPU_SHM_INTRA_HOST_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "base/status.h"
#include "dataplane/collective.h"
#include "dataplane/cpu/collectives/exchange.h"
#include "dataplane/cpu/shm/rounds.h"
#include "dataplane/reduction.h"

namespace muster::dataplane::shm {

// Blocks that form one sequence of elements.
using BlockList = Blocks;

// The number of elements of `block_list`.
size_t CountElements(const BlockList& block_list);

// The header of `collective`, the same on all ranks of its group.
MessageHeader MakeHeader(const Collective& collective);

// The steps that the ranks of one host do together in a collective of a group
// on several hosts. Ranks are numbered by their positions on the host. In the
// first round every rank checks that all run the same collective.
class IntraHost : public Rounds {
 public:
  IntraHost(ShmContext& context, const Collective& collective);

  // Waits until all ranks of the host have come.
  Status Meet();

  // As Meet, and the ranks publish the location of `whole`, which has one size
  // on all. If it is in symmetric memory on all ranks, is_mapped() becomes true
  // and the others' data is read from there: then no rank may leave before all
  // have met again.
  Status MeetAt(const Block& whole);
  bool is_mapped() const { return mapped_.has_value(); }
  bool has_met() const { return has_met_; }

  // `block_lists`, by rank: this rank's inputs for the part that each rank
  // reduces. They have the same sizes on all ranks. Writes to `accumulators`
  // this rank's part, combined in rank order and not finished. `accumulators`
  // may be its block list if that is one block and `reduction.in_place()`. If
  // is_mapped(), block lists must be parts of `whole`.
  Status Combine(const Reduction& reduction,
                 const std::vector<BlockList>& block_lists,
                 std::byte* accumulators);

  // `block_lists`, by rank: the data that each rank gives to the others. Reads
  // this rank's own and, if it `takes`, writes the others', except blocks
  // without data.
  Status Publish(const std::vector<BlockList>& block_lists, bool takes);

  // As Show, for parts of `whole`, which all ranks take.
  Status PublishWhole(const std::vector<BlockList>& block_lists);

 private:
  // The address of the peer's data that corresponds to `data`, a part of
  // `whole`.
  const std::byte* There(int peer, const std::byte* data) const {
    return peer == rank_ ? data : mapped_->data[peer] + (data - whole_);
  }
  void CombineThere(const Reduction& reduction, const BlockList& block_list,
                    std::byte* accumulators);

  static std::vector<size_t> ComputeCounts(
      const std::vector<BlockList>& block_lists);

  bool has_met_ = false;
  // Set by MeetAt: this rank's `whole`, and all ranks', if mapped.
  const std::byte* whole_ = nullptr;
  std::optional<RemoteBuffers> mapped_;
};

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_INTRA_HOST_H_
