// Optimizers over plain tensors, and the one whose state is partitioned over
// the ranks of a group (ZeRO stage 1).
//
//   std::vector<muster::OptimizedTensor> tensors = {
//       {"weight", weight, weight_gradient}, {"bias", bias, bias_gradient}};
//   muster::ShardedOptimizer optimizer(muster::AdamW(), tensors);
//   for (int step = 0; step < steps; ++step) {
//     ComputeGradients();
//     for (const auto& tensor : tensors) {
//       muster::AllReduce(tensor.gradient, {.op = muster::ReduceOp::kAvg});
//     }
//     optimizer.Step(/*learning_rate=*/1e-3);
//   }

#ifndef MUSTER_SHARDED_OPTIMIZER_H_
#define MUSTER_SHARDED_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "muster/base/export.h"
#include "muster/process_group.h"

namespace MUSTER_EXPORT muster {

// A parameter, or a shard of one, and its gradient: two tensors on the CPU with
// the same shape and data type. The program owns the memory.
struct OptimizedTensor {
  std::string name;
  Tensor value;
  Tensor gradient;
};

// The update of one tensor.
struct OptimizerUpdate {
  Tensor value;
  Tensor gradient;
  // OptimizerRule::state_slots tensors, each like `value`.
  std::span<const Tensor> state;
  double learning_rate = 0;
  // The number of this step, from 1 on.
  int64_t step = 1;
};

// The function of an optimizer, on one tensor: AdamW, Sgd, or a function of the
// program, for instance
//
//   muster::OptimizerRule sign_sgd = {
//       .state_slots = 0, .update = [](const muster::OptimizerUpdate& update) {
//         SignSgd(update.value, update.gradient, update.learning_rate);
//       }};
//
// A rule for shards must work element by element, because it sees a part of a
// parameter.
struct OptimizerRule {
  // How many tensors of state each tensor has. They are zero at first.
  int state_slots = 0;
  // Writes `value` and `state`. Not called for tensors without elements.
  std::function<void(const OptimizerUpdate&)> update = nullptr;
};

struct SgdOptions {
  double momentum = 0;
  double weight_decay = 0;
};

// Stochastic gradient descent as torch.optim.SGD: one slot, the momentum's
// buffer, if there is a momentum, else none. Types: float32, float64, float16
// and bfloat16; the last two compute in float32.
OptimizerRule Sgd(const SgdOptions& options = {});

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
};

// AdamW (Loshchilov and Hutter 2019) as torch.optim.AdamW: two slots, the
// averages of the gradient and of its square. Types as Sgd.
OptimizerRule AdamW(const AdamWOptions& options = {});

// Returns memory of at least this many bytes, aligned to 64 bytes: huge pages,
// a mapped file on a disk, another NUMA node. Its content is overwritten. The
// last owner of the pointer frees it. Null: there is no such memory; then the
// caller throws DistError (kResourceExhausted).
using AllocateFunction = std::function<std::shared_ptr<void>(size_t bytes)>;

// Optimizer keeps the state of a rule for tensors of this rank, for instance
// the shards of a FullyShard. It is local: it runs no collectives. One thread
// at a time. Throws DistError (kInvalidArgument) if a tensor is not valid, not
// on the CPU or not like its gradient, or if the rule is not complete.
class Optimizer {
 public:
  // `allocate`, if given, provides the memory of the state. Throws what it
  // throws.
  Optimizer(OptimizerRule rule, std::vector<OptimizedTensor> tensors,
            const AllocateFunction& allocate = nullptr);

  // Updates all tensors.
  void Step(double learning_rate);

  const std::vector<OptimizedTensor>& tensors() const { return tensors_; }
  // The state of tensor `index`, one tensor for each slot. For checkpoints:
  // read it, or write it together with set_steps.
  std::span<const Tensor> state(size_t index) const;
  int64_t state_bytes() const { return state_bytes_; }
  // How many steps there were.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

 private:
  OptimizerRule rule_;
  std::vector<OptimizedTensor> tensors_;
  std::shared_ptr<void> memory_;
  // All slots of the first tensor, then those of the second, and so on.
  std::vector<Tensor> state_;
  int64_t state_bytes_ = 0;
  int64_t steps_ = 0;
};

struct ShardedOptimizerOptions {
  // Null: the default group.
  std::shared_ptr<ProcessGroup> group = nullptr;
  AllocateFunction allocate_state = nullptr;
};

// ShardedOptimizer is an optimizer for parameters that every rank holds in
// full, whose state exists once in the group (ZeRO stage 1, Rajbhandari et al.
// 2020; torch's ZeroRedundancyOptimizer). Each parameter has one owner: the
// parameters are dealt out from the largest to the smallest, each to the rank
// with the fewest elements so far. The owner updates it and broadcasts it.
//
// All ranks give the same tensors in the same order. Gradients must be reduced
// before Step. A step sends every parameter once: of P bytes each rank sends
// P * (n - 1) / n, if the backend's broadcast is optimal and the parts are
// equal; its state takes 1/n of the memory.
//
// If this process is not in the group, the functions log a warning and do
// nothing. One thread at a time.
class ShardedOptimizer {
 public:
  // Compares names, shapes and types over the ranks. Throws on all ranks
  // DistError (kInvalidArgument) that names the first difference, or a rank
  // whose arguments are bad, with what Optimizer refuses; kResourceExhausted if
  // a rank gets no memory for its state (allocate_state returns null or
  // throws). Throws what a collective throws.
  ShardedOptimizer(OptimizerRule rule, std::vector<OptimizedTensor> tensors,
                   const ShardedOptimizerOptions& options = {});

  // Updates the parameters that this rank owns, and makes all parameters equal
  // on all ranks. Throws what a collective throws, and what the rule throws,
  // after which the group is at an end (ProcessGroup::Abort).
  void Step(double learning_rate);

  // The rank in the group that owns tensor `index`; -1 if this process is not
  // in the group.
  int owner(size_t index) const {
    return own_ == nullptr ? -1 : owners_.at(index);
  }
  // As Optimizer::state; empty if another rank owns the tensor.
  std::span<const Tensor> state(size_t index) const;
  int64_t state_bytes() const { return own_ ? own_->state_bytes() : 0; }
  int64_t steps() const { return own_ ? own_->steps() : 0; }
  void set_steps(int64_t steps) {
    if (own_) own_->set_steps(steps);
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::vector<OptimizedTensor> tensors_;
  std::vector<int> owners_;
  // The index in `own_` of each tensor that this rank owns; else -1.
  std::vector<int64_t> own_index_;
  // The tensors that this rank owns. Null: this process is not in the group.
  std::unique_ptr<Optimizer> own_;
};

}  // namespace muster

#endif  // MUSTER_SHARDED_OPTIMIZER_H_
