// Training with parameters, gradients and optimizer state sharded over the
// ranks of a group: FSDP2, ZeRO stages 2 and 3.
//
//   muster::FullyShard model({{"layer0", {{"w0", w0}, {"b0", b0}}},
//                             {"layer1", {{"w1", w1}, {"b1", b1}}}});
//   muster::Optimizer optimizer(muster::AdamW(), model.Tensors());
//   for (int step = 0; step < steps; ++step) {
//     for (int layer : {0, 1}) {
//       model.WaitUnshard(layer);            // and gathers the next one
//       Forward(layer, model.Value(layer, 0), model.Value(layer, 1));
//       model.Reshard(layer);                // ZeRO 3; without it ZeRO 2
//     }
//     for (int layer : {1, 0}) {
//       model.WaitUnshard(layer);
//       Backward(layer, model.Value(layer, 0), model.Value(layer, 1),
//                model.Gradient(layer, 0), model.Gradient(layer, 1));
//       model.GradientsReady(layer);         // reduces while backward goes on
//     }
//     model.FinishStep();
//     model.ClipGradientNorm(1.0);
//     optimizer.Step(1e-3);
//     model.ZeroGradients();
//   }

#ifndef MUSTER_FULLY_SHARD_H_
#define MUSTER_FULLY_SHARD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/export.h"
#include "muster/process_group.h"
#include "muster/sharded_optimizer.h"

namespace MUSTER_EXPORT muster {

// A parameter as the program gives it: float32, float64, float16 or bfloat16,
// at least one dimension. `value` is read by the constructor alone, and needs
// the rows of this rank's shard only; the memory of a mapped file will do. If
// its data is null, the shard is zero, and the program writes to it (Shards).
struct FullParameter {
  std::string name;
  Tensor value;
};

// The parameters that are gathered and freed together, in one collective,
// usually those of a layer. They have one data type.
struct ShardGroup {
  std::string name;
  std::vector<FullParameter> parameters;
};

struct FullyShardOptions {
  // The ranks over which parameters are sharded. Null: the default group.
  std::shared_ptr<ProcessGroup> group = nullptr;
  // For hybrid sharding: the ranks that hold the same shard as this one. With a
  // mesh of the dimensions (replicate, shard), `group` is mesh.GetGroup(1) and
  // this is mesh.GetGroup(0). All lines of the mesh have the same sizes, and
  // ascending ranks, so that replicas are one rank of their groups. Null:
  // no replicas.
  std::shared_ptr<ProcessGroup> replicate_group = nullptr;
  // Mixed precision: the type of Value and Gradient, and of the all-gather:
  // float16 or bfloat16 for parameters of float32. Not given: the parameters'.
  std::optional<DataType> compute_type = std::nullopt;
  // The type in which gradients are summed: the compute type or the parameters'
  // type. Not given: the parameters'.
  std::optional<DataType> reduce_type = std::nullopt;
  // Provides the memory of the shards and of their gradients (host offload: the
  // engine computes on the CPU, so this is the place where shards may lie
  // elsewhere than in ordinary memory). Called twice for each group.
  AllocateFunction allocate_shards = nullptr;
};

// This rank's part of one parameter: the box of `lengths` elements from
// `offsets` on in the tensor of `global_shape`. It differs from the whole in
// dimension 0 alone. As in torch.chunk, each rank has ceil(rows / ranks) rows
// and the last ones have fewer or none.
struct ParameterShard {
  std::string name;
  std::vector<int64_t> global_shape;
  std::vector<int64_t> offsets;
  std::vector<int64_t> lengths;
  // In the parameter's type. The memory belongs to the FullyShard.
  Tensor value;
  Tensor gradient;
};

// Bytes that a FullyShard has allocated.
struct MemoryStats {
  struct Use {
    int64_t current = 0;
    int64_t peak = 0;
  };
  Use shards = {};
  Use gradient_shards = {};
  // Groups are gathered into these; then their values are copied out.
  Use gather_buffers = {};
  Use values = {};
  Use gradients = {};
  // Gradients are reduced in these, also those of a step without sync.
  Use reduce_buffers = {};
  // The peak of the sum, which may be less than the sum of the peaks.
  Use total = {};
};

// Bytes that this rank has sent, by the formula of optimal collectives: n - 1
// blocks for an all_gather and for a reduce_scatter of n ranks, and
// 2 (n - 1) / n of the data for an all_reduce. A block is this rank's part of a
// group: of each parameter ceil(rows / n) rows, and at an all_gather 16 bytes.
struct TrafficStats {
  int64_t all_gather = 0;
  int64_t reduce_scatter = 0;
  int64_t all_reduce = 0;
};

// FullyShard keeps a model's parameters sharded over a group. It gathers a
// group of parameters before they are used, frees them afterwards, and reduces
// their gradients so that each rank has the average of its shard over all
// ranks (and replicas).
// After torch's FSDP2 (fully_shard) and ZeRO (Rajbhandari et al. 2020).
//
// Memory, for P bytes of parameters in float32 and n ranks: P/n for the shards,
// P/n for their gradients, the optimizer's state (AdamW: 2 P/n), and what one
// group takes: its values and one gather buffer as large as the largest group
// (for the next one), its gradients and one reduce buffer (with replicas two).
// In ZeRO 2 the values of all groups stay from forward to backward. With
// symmetric memory (group of shm) the buffers are symmetric.
// Traffic of a step: 2 all_gathers (ZeRO 2: 1) and 1 reduce_scatter of P.
//
// All ranks call the same functions in the same order: those that gather or
// reduce, and those that say that all ranks call them. If groups come in
// different orders, all ranks get DistError or DistBackendError
// (kInvalidArgument) from WaitUnshard, or at the latest from FinishStep, before
// wrong gradients can be used. After that, and after a failed collective, the
// groups are at an end (ProcessGroup::Abort), so that no rank waits for
// another, and every call throws the same error, except Shards, Tensors, memory
// and traffic. During a step nothing else may run collectives on its groups
// from other threads.
//
// A group is given by its index in the constructor's list, a parameter by its
// index in the group. Bad indices throw DistError (kInvalidArgument), and start
// nothing. If this process is not in the group, all functions do nothing and
// the constructor logs a warning. One thread at a time.
//
// Nothing here computes on a GPU: tensors on CUDA are refused
// (kInvalidArgument).
class FullyShard {
 public:
  // Every rank takes its rows of the values that it is given; so all ranks must
  // give the same values, or only ones of their own rows. Replicas get the
  // shards of the first one. All ranks make the call; names, shapes and types
  // are compared. Throws DistError on all ranks: kInvalidArgument (a
  // difference, a name twice, a type; the text names the rank, the parameter
  // and both values), kResourceExhausted (a rank gets no memory for its shards:
  // allocate_shards returns null or throws). Throws what a collective throws.
  // If some ranks of `group` have a replicate_group and others have none, all
  // ranks get an error, and the replicate_groups are at an end.
  explicit FullyShard(const std::vector<ShardGroup>& groups,
                      const FullyShardOptions& options = {});
  // Waits for what is under way.
  ~FullyShard();

  FullyShard(const FullyShard&) = delete;
  FullyShard& operator=(const FullyShard&) = delete;

  // Starts to gather a group. Needed only to gather earlier than WaitUnshard
  // does by itself. Does nothing if the group is whole or being gathered.
  void Unshard(int group);

  // Returns when the group is whole, and starts to gather the next one of the
  // order of use: that of SetPrefetchOrder, or the order of these calls in the
  // last step that FinishStep ended, except that a step which is only the
  // beginning of the order, such as an evaluation, does not change it.
  //
  // Throws DistError (kFailedPrecondition) if this rank's shards have changed
  // since the group was gathered: between FinishStep and Optimizer::Step the
  // values are still those before the step. Then the groups are at an end.
  void WaitUnshard(int group);

  // Sets the order: groups as WaitUnshard gets them from one FinishStep to the
  // next, forward and backward. Empty: learned again.
  void SetPrefetchOrder(std::vector<int> order);

  // The whole parameter, in the compute type, from WaitUnshard to Reshard or
  // GradientsReady (else DistError, kFailedPrecondition). Not to be written.
  Tensor Value(int group, int parameter) const;

  // The gradient of the whole parameter, in the compute type, until
  // GradientsReady. Zero at the first call; the program adds to it or
  // overwrites it.
  Tensor Gradient(int group, int parameter);

  // Frees the values of a group.
  void Reshard(int group);

  // Frees the values of a group and starts to reduce its gradients, which are
  // added to the gradients of the shards by FinishStep. Gradients that the
  // program did not ask for count as zero. All ranks call it. It may be called
  // several times in a step. Waits for the reduction before that.
  void GradientsReady(int group);

  // False (no_sync): GradientsReady sends nothing; it adds the gradients up
  // here, in the reduce type and at full size, and a later one with sync
  // reduces the sum. For accumulation over microbatches with fewer messages and
  // more memory; with sync the gradients of the shards add up, too.
  void SetGradientSync(bool sync);

  // Ends a step, also one without backward: waits until all gradients are
  // reduced, checks that all ranks did the same, and frees all values. All
  // ranks call it.
  void FinishStep();

  // After FinishStep. The gradients of the shards stay until ZeroGradients.
  void ZeroGradients();

  // Returns the norm of all gradients of all ranks together; infinity as
  // `norm_type` gives the largest absolute value. The norm is the same on all
  // ranks. All ranks call it after FinishStep. Throws DistError
  // (kInvalidArgument) unless norm_type > 0.
  double GradientNorm(double norm_type = 2);

  // Scales all gradients by max_norm / (norm + 1e-6) if that is less than 1, as
  // torch.nn.utils.clip_grad_norm_. Returns the norm before that. The gradients
  // become NaN if the norm is NaN.
  double ClipGradientNorm(double max_norm, double norm_type = 2);

  // This rank's shards, group by group: for checkpoints, and for writing values
  // (not between WaitUnshard and FinishStep).
  std::vector<ParameterShard> Shards() const;
  // The same for Optimizer.
  std::vector<OptimizedTensor> Tensors() const;

  // Gathers the parameters on rank 0 of the group (of the first replica), one
  // by one, and calls `receive` there with each; the tensor lives until it
  // returns. Other ranks' `receive` may be null. All ranks call it.
  void GatherFullState(const std::function<void(const std::string& name,
                                                const Tensor& value)>& receive);

  MemoryStats memory() const;
  TrafficStats traffic() const;

 private:
  class MUSTER_HIDDEN Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster

#endif  // MUSTER_FULLY_SHARD_H_
