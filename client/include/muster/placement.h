// Placements: which part of a tensor each rank of a device mesh has, how a
// tensor gets from one placement to another, and which placements the result of
// an operation has. Nothing here communicates; dtensor.h does.
//
//   // A matrix on a mesh of 2 x 2 ranks: rows over dimension 0 of the mesh.
//   muster::TensorLayout layout = {{8, 16},
//                                  {muster::Shard(0), muster::Replicate()}};
//   const muster::RedistributePlan plan = muster::PlanRedistribute(
//       layout, {muster::Replicate(), muster::Shard(1)}, {2, 2});
//   std::cout << plan.ToText();
//
// The names and the meaning of placements are those of PyTorch's DTensor.

#ifndef MUSTER_PLACEMENT_H_
#define MUSTER_PLACEMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "muster/base/export.h"
#include "muster/process_group.h"

namespace MUSTER_EXPORT muster {

// How a tensor lies along one dimension of a mesh. A tensor has one placement
// for each dimension of its mesh.
class Placement {
 public:
  enum class Kind : uint8_t {
    // Every rank has the whole tensor.
    kReplicate,
    // The tensor is cut along its dimension dim().
    kShard,
    // Every rank has a tensor of the whole shape; the value is the reduction of
    // all of them by op().
    kPartial,
  };

  // Replicate.
  Placement() = default;

  Kind kind() const { return kind_; }
  bool is_replicate() const { return kind_ == Kind::kReplicate; }
  bool is_shard() const { return kind_ == Kind::kShard; }
  bool is_partial() const { return kind_ == Kind::kPartial; }
  // The dimension of the tensor; -1 unless is_shard().
  int dim() const { return dim_; }
  // kSum unless is_partial().
  ReduceOp op() const { return op_; }

  // "R", "S(1)", "P(sum)".
  std::string ToText() const;

  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  friend Placement Shard(int dim);
  friend Placement Partial(ReduceOp op);

  Kind kind_ = Kind::kReplicate;
  int dim_ = -1;
  ReduceOp op_ = ReduceOp::kSum;
};

// The tensor is cut as torch.chunk cuts: of n elements and k ranks, each rank
// has ceil(n / k), except that the last ranks may have fewer or none. If
// several dimensions of the mesh shard one dimension of the tensor, the first
// cuts the tensor, the next cuts each part, and so on.
Placement Shard(int dim);

Placement Replicate();

// kSum, kAvg, kMin, kMax or kProduct. All partial placements of a tensor have
// the same operation.
Placement Partial(ReduceOp op = ReduceOp::kSum);

// "(S(0), R)".
std::string ToText(const std::vector<Placement>& placements);

// The part of a tensor that one rank has: in each dimension the elements from
// `offsets` on, `lengths` of them. A rank without elements has an offset at the
// end of the dimension.
struct ShardBox {
  std::vector<int64_t> offsets = {};
  std::vector<int64_t> lengths = {};

  int64_t element_count() const;
  // "[0:4, 8:16]".
  std::string ToText() const;

  friend bool operator==(const ShardBox&, const ShardBox&) = default;
};

// Returns the part of the rank at `coordinate` of the mesh. A scalar's box has
// no dimensions. Throws DistError (kInvalidArgument) as CheckLayout does, or if
// the coordinate is not in the mesh.
ShardBox ComputeShardBox(const std::vector<int64_t>& shape,
                         const std::vector<Placement>& placements,
                         const std::vector<int64_t>& mesh_shape,
                         const std::vector<int64_t>& coordinate);

// A tensor on a mesh.
struct TensorLayout {
  // The shape of the whole tensor.
  std::vector<int64_t> shape = {};
  // One for each dimension of the mesh.
  std::vector<Placement> placements = {};
  DataType data_type = DataType::kFloat32;

  // "float32[8,16] (S(0), R)".
  std::string ToText() const;
};

// Throws DistError (kInvalidArgument) unless the layout is possible on the
// mesh: one placement for each dimension of the mesh, each Shard of a dimension
// that the tensor has, each Partial of an operation above and all of the same,
// no negative size, at most 2^52 elements (a size of 0 counts as 1), no mesh
// dimension without ranks.
void CheckLayout(const TensorLayout& layout,
                 const std::vector<int64_t>& mesh_shape);

// One step of a redistribution: along one dimension of the mesh.
struct RedistributeStep {
  enum class Kind : uint8_t {
    // Shard to Replicate.
    kAllGather,
    // Partial to Shard.
    kReduceScatter,
    // Partial to Replicate.
    kAllReduce,
    // Shard to another dimension's Shard.
    kAllToAll,
    // Replicate to Shard: each rank keeps its part. Also every step along a
    // dimension of the mesh that has one rank.
    kSlice,
    // Replicate or Shard to Partial. From Shard, and from Replicate for kSum
    // and kProduct, ranks fill what they do not have, or what another rank
    // contributes, with the operation's neutral element. (For kSum that is -0,
    // which keeps the sign of zero.)
    kFill,
  };

  Kind kind = Kind::kSlice;
  int mesh_dim = 0;
  Placement from = {};
  Placement to = {};
  // The bytes that a rank sends, the rank with the most elements: of n ranks
  // (n-1)/n of the larger tensor, twice that for all_reduce.
  int64_t bytes = 0;
};

struct RedistributePlan {
  TensorLayout from = {};
  std::vector<Placement> to = {};
  std::vector<int64_t> mesh_shape = {};
  std::vector<RedistributeStep> steps = {};

  // The sum of the steps' bytes.
  int64_t bytes() const;

  // For people, a line for the whole and one for each step:
  //   float32[8,16] (S(0), R) to (R, S(1)) on mesh (2, 2): 256 bytes per rank
  //     mesh dim 0: S(0) to R, all_gather, 256 bytes
  //     mesh dim 1: R to S(1), slice, 0 bytes
  std::string ToText() const;
};

// Finds the cheapest way from one layout to other placements: the fewest bytes
// per rank, then the fewest steps, by Dijkstra's algorithm over all placements
// of the tensor on the mesh. All ranks find the same. Where several dimensions
// of the mesh shard one dimension of the tensor, only the last of them can
// change, so others are gathered first. Partial(kAvg) of a Shard goes by way of
// Replicate. Throws as CheckLayout.
RedistributePlan PlanRedistribute(const TensorLayout& from,
                                  const std::vector<Placement>& to,
                                  const std::vector<int64_t>& mesh_shape);

// The rules of operations. Each tells how the inputs must lie so that every
// rank can compute its part of the result from its parts of the inputs, and
// how the result then lies. Of all such ways it takes the one that
// redistributes the fewest bytes now, then the one with the fewest steps; all
// ranks find the same. Where the operation is linear, sums may stay Partial.
// All throw DistError (kInvalidArgument) as CheckLayout, and for shapes that do
// not fit together. They search: call them once for a layer, not once for a
// step of training.
struct Propagation {
  // The placements that each input must have.
  std::vector<std::vector<Placement>> inputs = {};
  TensorLayout output = {};
  // Bytes per rank and steps of the inputs' redistribution. Zero steps: the
  // inputs lie as they must.
  int64_t bytes = 0;
  int64_t steps = 0;
};

// One or more inputs, whose shapes are broadcast as in NumPy. `is_linear`: the
// operation is a sum of multiples of its inputs, as addition is.
Propagation PropagatePointwise(const std::vector<TensorLayout>& inputs,
                               const std::vector<int64_t>& mesh_shape,
                               bool is_linear = false);

// [..., m, k] times [k, n].
Propagation PropagateMatmul(const TensorLayout& a, const TensorLayout& b,
                            const std::vector<int64_t>& mesh_shape);

// The sum over one dimension, which the result does not have.
Propagation PropagateSum(const TensorLayout& input, int dim,
                         const std::vector<int64_t>& mesh_shape);

// Exchanges two dimensions.
Propagation PropagateTranspose(const TensorLayout& input, int dim0, int dim1,
                               const std::vector<int64_t>& mesh_shape);

}  // namespace muster

#endif  // MUSTER_PLACEMENT_H_
