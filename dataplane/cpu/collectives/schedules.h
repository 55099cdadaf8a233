#ifndef MUSTER_DATAPLANE_CPU_COLLECTIVES_SCHEDULES_H_
#define MUSTER_DATAPLANE_CPU_COLLECTIVES_SCHEDULES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dataplane/blocks.h"
#include "dataplane/cpu/collectives/exchange.h"
#include "dataplane/reduction.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/tensor.h"

namespace muster::dataplane::cpu {

// Building blocks shared by the algorithms of several collectives.

// Blocks, usually one per rank; few of them need no allocation.
using Blocks = absl::InlinedVector<Block, 8>;

// All even parts of a block, by CutPart.
Blocks CutParts(const Block& whole, size_t parts, size_t element_bytes);

// The blocks that a rank gives to each rank, or takes from each; sizes as by
// PartCounts.
Blocks ToBlocks(const Collective::Tensors& tensors,
                const std::vector<int64_t>& splits, int world_size);
inline Blocks ToBlocks(const Collective::Tensors& tensors, int world_size) {
  return ToBlocks(tensors, {}, world_size);
}

// All of a tensor.
inline Block ToBlock(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data()),
          static_cast<size_t>(tensor.element_count())};
}

// The tensors of these blocks, for a step of another collective.
inline Tensor ToTensor(const Block& block, DataType type) {
  return Tensor(block.data, type, {static_cast<int64_t>(block.count)});
}
Collective::Tensors ToTensors(const Blocks& blocks, DataType type);

// The blocks of ToBlocks, each computed on access, because computing all of
// them takes longer than moving small ones. The tensors must outlive this
// object.
class Parts {
 public:
  // As ToBlocks. One tensor must be divisible by `world_size`.
  Parts(const Collective::Tensors& tensors, int world_size)
      : tensors_(tensors) {
    if (tensors.size() != 1) return;
    count_ = static_cast<size_t>(tensors[0].element_count()) /
             static_cast<size_t>(world_size);
    stride_ = count_ * DataTypeBytes(tensors[0].data_type());
  }
  Parts(const Collective::Tensors& tensors, const std::vector<int64_t>& splits,
        int world_size)
      : Parts(tensors, world_size) {
    if (!splits.empty()) cut_ = ToBlocks(tensors, splits, world_size);
  }

  Block operator[](int rank) const {
    const auto index = static_cast<size_t>(rank);
    if (tensors_.size() != 1) return ToBlock(tensors_[index]);
    if (!cut_.empty()) return cut_[index];
    return {static_cast<std::byte*>(tensors_[0].data()) + index * stride_,
            count_};
  }

 private:
  const Collective::Tensors& tensors_;
  size_t count_ = 0;
  size_t stride_ = 0;
  Blocks cut_;
};

// Copies a block that a rank gives to itself, unless `to` is `from`.
void CopyBlock(const Block& to, const Block& from, size_t element_bytes);

// The rank from which a rank receives (-1 for the root), and the ranks to which
// it sends, in order.
struct Links {
  int parent = -1;
  std::vector<int> children;
};

// Binomial tree over the ranks numbered from the root: a rank's parent is its
// number without the lowest set bit; children with the largest subtrees come
// first.
Links BinomialTree(int rank, int root, int world_size);

// Reduces `accumulators` over all ranks, on every rank, and finishes them, by
// recursive doubling. They must fit into a note.
Status ReduceEverywhere(const Reduction& reduction, std::byte* accumulators,
                        size_t count, Exchange& exchange);

// Pairwise reduce-scatter: reduces `inputs[r]` of all ranks, of one size
// everywhere, to the finished `output` of rank r, which may be its inputs[r].
// `factor` is this rank's (see Reduction). Inputs are sent unchanged, and only
// one rank combines an element: 16-bit types are rounded once.
Status ReduceAndScatter(const Reduction& reduction, double factor,
                        absl::Span<const Block> inputs, Block output,
                        Exchange& exchange);

// The blocks that this rank gives and takes. `give` and `take` have one entry
// per rank; the entries of ranks that are not in `receivers` or `senders`, and
// this rank's own, are ignored.
struct Moves {
  Blocks give = {};
  Blocks take = {};
  std::vector<int> receivers = {};
  std::vector<int> senders = {};

  // Makes all other ranks receivers and senders, nearest first: in step k every
  // rank gives to the rank k ahead, so that no rank is the first of all.
  void WithEverybody(int rank, int world_size);
};

// Makes all moves at once: a small block in a note, a large one from tensor to
// tensor without a copy. `agreed`: earlier notes have shown that all ranks run
// this collective with the same sizes.
Status MoveBlocks(const Moves& moves, bool agreed, Exchange& exchange);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_COLLECTIVES_SCHEDULES_H_
