// Training with few exchanges: ranks train on their own, and average their
// models from time to time.
//
//   muster::DiLoCo diloco(weights, {.period = 100});
//   for (const Batch& batch : batches) {
//     ComputeGradients(batch);
//     optimizer.Step();  // each rank on its own, usually AdamW
//     diloco.Step();     // communicates in every 100th step
//   }
//
// Traffic per rank and step, for P bytes of parameters: all_reduce of gradients
// in every step takes 2P; an average every H steps takes 2P/H, in float32 for
// DiLoCo.
//
// In all classes a step is one step of the program's optimiser, and all ranks
// of the group make the same calls. Tensors are the program's memory; their
// types are float16, bfloat16, float32 and float64. The results are bitwise
// equal on all ranks. Constructors compare the arguments of all ranks, and
// throw DistError (kInvalidArgument) on every rank if one is bad or if they
// differ; the text names the rank, which is in culprits(), and both values. All
// functions throw what a collective throws. In a process that is not in the
// group they log a warning and do nothing. One thread at a time.

#ifndef MUSTER_AVERAGING_H_
#define MUSTER_AVERAGING_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "muster/base/export.h"
#include "muster/process_group.h"

namespace MUSTER_EXPORT muster {

struct PeriodicModelAveragerOptions {
  // The number of steps from one average to the next; at least 1.
  int64_t period = 0;
  // The number of steps at the beginning that are not averaged.
  int64_t warmup_steps = 0;
  // The number of steps that were made before, when training is resumed.
  int64_t first_step = 0;
  // Null is the default group.
  std::shared_ptr<ProcessGroup> group = nullptr;
};

// PeriodicModelAverager is local SGD (Stich, "Local SGD Converges Fast and
// Communicates Little", 2019; torch's class of this name).
class PeriodicModelAverager {
 public:
  PeriodicModelAverager(std::vector<Tensor> parameters,
                        const PeriodicModelAveragerOptions& options);

  // Call it after each step. Averages the parameters after the steps
  // warmup_steps, warmup_steps + period and so on, counted from 0. Returns
  // whether it did.
  bool AverageParameters();

  // The number of calls of AverageParameters, with `first_step`.
  int64_t step() const { return step_; }

 private:
  std::vector<Tensor> parameters_;
  PeriodicModelAveragerOptions options_;
  int64_t step_;
};

struct PostLocalSgdOptions {
  // The number of steps in which gradients are averaged over the group.
  int64_t warmup_steps = 0;
  // As above.
  int64_t period = 0;
  int64_t first_step = 0;
  std::shared_ptr<ProcessGroup> group = nullptr;
  // If given, gradients are averaged over this group in every step after the
  // warm-up: for instance the ranks of one host. All ranks give one that has
  // this rank, and the same as its other ranks.
  std::shared_ptr<ProcessGroup> subgroup = nullptr;
};

// PostLocalSgd averages gradients in every step of a warm-up, and parameters
// periodically after that (Lin et al., "Don't Use Large Mini-Batches, Use Local
// SGD", 2020; torch's post_localSGD_hook and PostLocalSGDOptimizer).
class PostLocalSgd {
 public:
  PostLocalSgd(std::vector<Tensor> parameters, std::vector<Tensor> gradients,
               const PostLocalSgdOptions& options);

  // Call it before each step.
  void AverageGradients();
  // Call it after each step. Returns whether it has averaged.
  bool AverageParameters() { return averager_.AverageParameters(); }

  int64_t step() const { return averager_.step(); }

 private:
  std::vector<Tensor> gradients_;
  PostLocalSgdOptions options_;
  PeriodicModelAverager averager_;
};

struct DiLoCoOptions {
  // The number of steps between outer steps; at least `fragments`.
  int64_t period = 0;
  // Not negative, and finite.
  double outer_learning_rate = 0.7;
  // At least 0 and less than 1.
  double outer_momentum = 0.9;
  // Parameter i belongs to fragment i % fragments. Each fragment has its outer
  // step at another time within the period, so that a slow link carries a part
  // of the traffic at a time (Douillard et al., "Streaming DiLoCo", 2025).
  int fragments = 1;
  // As above. To resume, load the parameters and state() after the constructor.
  int64_t first_step = 0;
  std::shared_ptr<ProcessGroup> group = nullptr;
};

// DiLoCo (Douillard et al., "DiLoCo: Distributed Low-Communication Training of
// Language Models", 2023) takes the average of the ranks' changes of the
// parameters as a gradient, to which an outer optimiser, SGD with Nesterov
// momentum, applies:
//
//   gradient = average over ranks of (parameters after the last outer step -
//              parameters)
//   momentum = outer_momentum * momentum + gradient
//   outer -= outer_learning_rate * (gradient + outer_momentum * momentum)
//   parameters = outer
//
// It computes in float32, for float64 in float64, and takes three times the
// memory of the parameters in that type. Parameters on CUDA devices are
// kUnimplemented.
class DiLoCo {
 public:
  // Sets all ranks' parameters to those of the group's rank 0.
  DiLoCo(const std::vector<Tensor>& parameters, const DiLoCoOptions& options);
  DiLoCo(DiLoCo&&) noexcept;
  DiLoCo& operator=(DiLoCo&&) noexcept;
  ~DiLoCo();

  // Call it after each step. Fragment f has its outer step when the number of
  // steps is (f+1) * period / fragments, or that and a multiple of the period.
  // Returns whether a fragment had one; its parameters are then equal on all
  // ranks.
  bool Step();

  // The number of calls of Step, with `first_step`.
  int64_t step() const;

  // The outer parameters and the momenta: what a checkpoint must save, and load
  // in place. They are equal on all ranks.
  std::vector<Tensor> state() const;

 private:
  struct MUSTER_HIDDEN Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster

#endif  // MUSTER_AVERAGING_H_
