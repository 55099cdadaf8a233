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

// Blocks that are one after the other.
using BlockList = Blocks;

// How many elements it has.
size_t CountOf(const BlockList& block_list);

// What all ranks of a group that run `collective` say to each other.
MessageHeader HeaderOf(const Collective& collective);

// The steps that the ranks of one host do together in a collective of a group
// on several hosts. Ranks are numbered by their positions on the host. In the
// first round every rank checks that all run the same collective.
class IntraHost : public Rounds {
 public:
  IntraHost(ShmContext& context, const Collective& collective);

  // All are here.
  Status Meet();

  // The same, and they have shown where `whole` is, which has one size on all
  // of them. Where it is in symmetric memory of all, what others have of it is
  // read there from now on, and is_mapped(): then nobody may leave before all
  // have met again.
  Status MeetAt(const Block& whole);
  bool is_mapped() const { return mapped_.has_value(); }
  bool has_met() const { return has_met_; }

  // `block_lists`, by rank: what each shall have reduced, of this rank's own.
  // They have the same sizes on all ranks. Writes the accumulators of this
  // rank's block list, combined in the order of the ranks, and not finished.
  // They may be the block list itself if that is one block and
  // `reduction.in_place()`. If is_mapped(), block lists are parts of `whole`.
  Status Combine(const Reduction& reduction,
                 const std::vector<BlockList>& block_lists,
                 std::byte* accumulators);

  // `block_lists`, by rank: what each has for the others, here. This rank's own
  // is read, and the others' are written if it `takes` them, but for blocks
  // without data.
  Status Show(const std::vector<BlockList>& block_lists, bool takes);

  // The same of parts of `whole`, which all take.
  Status PublishWhole(const std::vector<BlockList>& block_lists);

 private:
  // Where `peer` has what this rank has at `data`, a part of `whole`.
  const std::byte* There(int peer, const std::byte* data) const {
    return peer == rank_ ? data : mapped_->data[peer] + (data - whole_);
  }
  void CombineThere(const Reduction& reduction, const BlockList& block_list,
                    std::byte* accumulators);

  static std::vector<size_t> CountsOf(
      const std::vector<BlockList>& block_lists);

  bool has_met_ = false;
  // Of MeetAt: where this rank has it; and where all have, if that is mapped.
  const std::byte* whole_ = nullptr;
  std::optional<RemoteBuffers> mapped_;
};

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_INTRA_HOST_H_
