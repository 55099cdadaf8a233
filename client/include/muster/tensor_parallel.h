// Tensor parallel: the communication of layers whose weights are cut over the
// ranks of a group, forward and backward. Products of matrices and functions of
// elements are the program's.
//
//   // An MLP. Rank r has columns of w1 and the same rows of w2; x and y are
//   // whole on all ranks.
//   const muster::TensorParallelOptions tp = {.group = mesh.GetGroup("tp")};
//   using muster::Region;
//   // Forward.
//   Multiply(h, x, w1);
//   Gelu(g, h);
//   Multiply(y, g, w2);
//   muster::RegionForward(Region::kReduce, y, y, tp);
//   // Backward: from dy to dw2, dw1 and dx. (kReduce has nothing to do.)
//   MultiplyTransposed(dg, dy, w2);
//   ...
//   MultiplyTransposed(dx, dh, w1);
//   muster::RegionBackward(Region::kCopy, dx, dx, tp);
//
// After Shoeybi et al.: Megatron-LM (2019), and Korthikanti et al.: Reducing
// Activation Recomputation in Large Transformer Models (2022), for sequence
// parallel.

#ifndef MUSTER_TENSOR_PARALLEL_H_
#define MUSTER_TENSOR_PARALLEL_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "muster/base/export.h"
#include "muster/process_group.h"

namespace MUSTER_EXPORT muster {

// These functions are collectives of the group, and what process_group.h says
// about arguments and errors holds for them. All ranks call them in the same
// order with whole tensors of the same shape. The result of one call is the
// same bits on all ranks that have the same part. Parts are cut along a
// dimension as Shard (placement.h) says, so the last ranks may have less or
// nothing. On a rank that is not in the group the functions log a warning and
// do nothing.
struct TensorParallelOptions {
  // Null is the default group.
  std::shared_ptr<ProcessGroup> group = nullptr;
  // The dimension of the tensor along which regions gather and cut.
  int dim = 0;
  // Before a function communicates, the ranks compare their arguments, by an
  // all_reduce of 16 bytes. A bad argument of one rank, and a region,
  // dimension, shape, vocabulary or target that differs, is then the same
  // DistError (kInvalidArgument, kUnimplemented, kResourceExhausted) on every
  // rank, and the group goes on. Without it, and in a group on CUDA devices
  // alone, a bad argument is as one of a collective, and of differences only
  // those that change a collective's kind, type or sizes are errors.
  bool compare = true;
};

// The borders between what is whole on all ranks and what is cut over them.
// Each is a pair of functions that are each other's dual: the second computes
// the gradient of the input from that of the output.
//
//   region                  forward         backward
//   kCopy                   nothing         all_reduce      (Megatron's f)
//   kReduce                 all_reduce      nothing         (Megatron's g)
//   kGather                 all_gather      own part
//   kScatter                own part        all_gather
//   kGatherSequence         all_gather      reduce_scatter  (g of 2022)
//   kReduceScatterSequence  reduce_scatter  all_gather      (its dual)
//
// kCopy is the entrance of a column-wise linear layer and kReduce the exit of a
// row-wise one. With sequence parallel, where activations between the layers
// are cut along the sequence, kGatherSequence and kReduceScatterSequence take
// their places. After kGather every rank goes on with the same computation, so
// the gradient is whole on each; after kGatherSequence each computes something
// else with it, so the gradients are added.
enum class Region : uint8_t {
  kCopy,
  kReduce,
  kGather,
  kScatter,
  kGatherSequence,
  kReduceScatterSequence,
};

// Run a region. `output` and `input` have one type, and shapes that fit: the
// same, or whole and part. They may be one tensor where the shapes are equal
// (kCopy, kReduce), and may not overlap otherwise. Sums in float16 and bfloat16
// are rounded once. CUDA tensors work where parts are contiguous (dimension 0)
// and no part is copied by the host; otherwise kUnimplemented.
// Throw DistError (kInvalidArgument, kUnimplemented) and what collectives
// throw.
void RegionForward(Region region, const Tensor& output, const Tensor& input,
                   const TensorParallelOptions& options = {});
void RegionBackward(Region region, const Tensor& input_gradient,
                    const Tensor& output_gradient,
                    const TensorParallelOptions& options = {});

// RegionForward(kGatherSequence) along dimension 0 that calls `compute` for
// each rank's rows as soon as they are here, this rank's first, while the
// others' are under way: `rows` is a part of `output` that begins with row
// `first_row`. A program multiplies them by its weight there. The parts go
// around in a ring of sends and receives with the tag kGatherTag, so each rank
// sends what an all_gather sends. `compute` is called on the calling thread,
// also for parts without rows. If it throws, the ring is completed without it,
// so that no other rank waits, and the exception is thrown at the end. CPU
// tensors.
void GatherSequenceInParts(
    const Tensor& output, const Tensor& input,
    const std::function<void(const Tensor& rows, int64_t first_row)>& compute,
    const TensorParallelOptions& options = {});
inline constexpr int kGatherTag = 1'497'120;

// The rows of the vocabulary that this rank has.
struct VocabularyRange {
  int64_t first = 0;
  int64_t count = 0;
};
VocabularyRange GetVocabularyRange(int64_t vocabulary,
                                   const TensorParallelOptions& options = {});

// The embedding, by a table whose rows are cut over the ranks. Both compute on
// this rank alone. CPU tensors of floating point; `ids` is int64[...] from 0 to
// `vocabulary` - 1, `table` is [count of the range, width], `output` is that
// type's [..., width] with the shape of `ids` in front.
//
// Forward writes the rows of the ids that are in the range, and zeros for the
// others: the sum over the ranks is the embedding, so kReduce or
// kReduceScatterSequence comes next. Backward adds to `table_gradient` the rows
// of `output_gradient` whose ids are in the range; that is the gradient after
// the backward of that region, whole on all ranks. The sum of a row is rounded
// once. Throw DistError (kInvalidArgument).
void ParallelEmbeddingForward(const Tensor& output, const Tensor& table,
                              const Tensor& ids, int64_t vocabulary,
                              const TensorParallelOptions& options = {});
void ParallelEmbeddingBackward(const Tensor& table_gradient,
                               const Tensor& output_gradient, const Tensor& ids,
                               int64_t vocabulary,
                               const TensorParallelOptions& options = {});

// The cross entropy of logits that are cut over the ranks along the vocabulary
// (loss parallel): no rank has a whole row. CPU tensors of floating point,
// computed in double: `logits` and `softmax` are [..., count of the range],
// `targets` int64[...], the same on all ranks, `loss` [...].
//
// Forward: loss = log(sum(exp(logits))) - logits[target], with two all_reduces
// of 24 bytes in all for each row: the maximum, then the sum and the target's
// logit. It also writes the softmax, which may be `logits` itself, for
// Backward: the logits' gradient is (softmax - 1 at the target) times that of
// the loss, and needs no communication. `logits_gradient` may be `softmax`.
// Throw DistError (kInvalidArgument) and what collectives throw.
void ParallelCrossEntropyForward(const Tensor& loss, const Tensor& softmax,
                                 const Tensor& logits, const Tensor& targets,
                                 int64_t vocabulary,
                                 const TensorParallelOptions& options = {});
void ParallelCrossEntropyBackward(const Tensor& logits_gradient,
                                  const Tensor& softmax, const Tensor& targets,
                                  const Tensor& loss_gradient,
                                  int64_t vocabulary,
                                  const TensorParallelOptions& options = {});

}  // namespace muster

#endif  // MUSTER_TENSOR_PARALLEL_H_
