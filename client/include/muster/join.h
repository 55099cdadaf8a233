// Join: training on ranks that have different numbers of inputs.
//
//   muster::JoinableAllReduce sum(muster::DataType::kFloat32,
//   gradients.size()); muster::Join join({&sum}); for (const Batch& batch :
//   batches) {  // more of them on some ranks
//     join.BeginStep();
//     ComputeGradients(batch, gradients);
//     sum.Run(gradients);
//   }
//   // Takes part in the steps of the other ranks until the last one is done.
//   const muster::JoinResult result = join.Finish();
//   muster::Broadcast(weights, result.last_ranks[0]);

#ifndef MUSTER_JOIN_H_
#define MUSTER_JOIN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/export.h"
#include "muster/process_group.h"

namespace MUSTER_EXPORT muster {

// The end of a Join, equal on all ranks but for `is_last`.
struct JoinResult {
  // The global ranks that took part in the last step, ascending. All ranks if
  // none had an input. Empty if this process is not in the group.
  std::vector<int> last_ranks = {};
  // True if this rank is one of them.
  bool is_last = false;
};

// Joinable is anything that runs collectives in every step. (torch's Joinable
// and JoinHook in one: ShadowStep is main_hook, FinishJoin is post_hook.)
class Joinable {
 public:
  virtual ~Joinable() = default;

  // The group of its collectives; null is the default group.
  virtual std::shared_ptr<ProcessGroup> join_group() const = 0;

  // Takes part in all collectives of one step of the other ranks, with neutral
  // elements. Called on a rank that has no more inputs.
  virtual void ShadowStep() = 0;

  // Whether it will run collectives in the step that begins: a DataParallel
  // does not within NoSync. Join::BeginStep asks on a rank that has an input,
  // and no rank shadows a step without collectives. Such ranks must have one
  // answer.
  virtual bool RunsInStep() const { return true; }

  // Called once at the end, on every rank; it may run collectives.
  virtual void FinishJoin(const JoinResult& /*result*/) {}

  // Text that must be equal on all ranks: what its collectives depend on.
  virtual std::string DescribeJoin() const { return ""; }

 protected:
  Joinable() = default;
  Joinable(const Joinable&) = default;
  Joinable& operator=(const Joinable&) = default;
};

struct JoinContextOptions {
  // True: as soon as one rank has no more inputs, all ranks throw DistError
  // (kOutOfRange) from BeginStep or Finish; culprits() are the ranks without
  // inputs. The group and the Join can be used again.
  bool throw_on_early_termination = false;
};

// Join keeps ranks without inputs in step with the others (torch's Join). Every
// step costs one all_gather of 24 bytes per rank.
//
// All ranks of the group make a Join of the same joinables in the same order,
// which is that of their collectives in a step, and call BeginStep before each
// step and Finish after the last one. Then the Join can be used again, for the
// next epoch. A rank that leaves the loop in another way must end the group
// (ProcessGroup::Abort) or the process: the others would wait for it.
//
// A Join is joinable: a Join for the batches may contain one for the
// microbatches within a batch, on the same group. A rank without a batch
// finishes the inner Join in each step of the others. An early termination of
// the inner Join also ends the epoch of the outer one.
//
//   muster::Join inner({&sum});
//   muster::Join outer({&inner, &model});
//   for (const Batch& batch : batches) {
//     outer.BeginStep();
//     for (const Input& input : batch) {
//       inner.BeginStep();
//       ...
//     }
//     inner.Finish();
//     ...
//   }
//   outer.Finish();
//
// In a process that is not in the group BeginStep and Finish log a warning and
// do nothing else. One thread at a time.
class Join : public Joinable {
 public:
  // The joinables must outlive it. Throws DistError (kInvalidArgument) if there
  // are none or more than 63, if one is null, or if they have different groups.
  // Sends nothing.
  explicit Join(std::vector<Joinable*> joinables,
                const JoinContextOptions& options = {});
  ~Join() override;
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  // Says that this rank has an input. Throws DistError (kInvalidArgument) on
  // every rank, with a culprit, and the group goes on: the ranks call two
  // Joins, or their joinables or options differ; they are in different steps;
  // ranks with inputs differ in RunsInStep. The text names both ranks and what
  // they have. Also throws what a collective throws.
  void BeginStep();

  // The global ranks that have an input in the current step, ascending. To
  // average over them, divide a sum by their number.
  const std::vector<int>& active_ranks() const;

  // Says that this rank has no more inputs, and shadows the steps of the other
  // ranks. Returns when no rank has inputs. Throws as BeginStep, and what a
  // joinable throws.
  JoinResult Finish();

  std::shared_ptr<ProcessGroup> join_group() const override;
  // Finish, for a Join within a Join.
  void ShadowStep() override;
  std::string DescribeJoin() const override;

 private:
  struct MUSTER_HIDDEN Impl;
  std::unique_ptr<Impl> impl_;
};

struct JoinableReductionOptions {
  // A rank without inputs gives: 0 for kSum, kAvg, kBor and kBxor, 1 for
  // kProduct, the largest value for kMin, the smallest for kMax, all bits for
  // kBand. kAvg divides by the size of the group, as torch's DDP does.
  ReduceOp op = ReduceOp::kSum;
  // Null is the default group.
  std::shared_ptr<ProcessGroup> group = nullptr;
};

// The classes below run one collective in each step: call Run once. They take
// tensors on the CPU (otherwise kUnimplemented) of the type and the number of
// elements that they were made with (otherwise kInvalidArgument). The
// constructors throw DistError: kInvalidArgument (a negative number),
// kUnimplemented (there is no neutral element, for instance for the minimum of
// complex numbers). A rank without inputs takes memory for one such tensor, or
// for the output and the input.

class JoinableAllReduce : public Joinable {
 public:
  JoinableAllReduce(DataType data_type, int64_t count,
                    const JoinableReductionOptions& options = {});

  // ProcessGroup::AllReduce.
  void Run(const Tensor& tensor);

  std::shared_ptr<ProcessGroup> join_group() const override;
  void ShadowStep() override;
  std::string DescribeJoin() const override;

 private:
  DataType data_type_;
  int64_t count_;
  JoinableReductionOptions options_;
};

class JoinableReduceScatter : public Joinable {
 public:
  // `count` elements for each rank.
  JoinableReduceScatter(DataType data_type, int64_t count,
                        const JoinableReductionOptions& options = {});

  // ProcessGroup::ReduceScatterTensor. A rank without inputs drops its part of
  // the result.
  void Run(const Tensor& output, const Tensor& input);

  std::shared_ptr<ProcessGroup> join_group() const override;
  void ShadowStep() override;
  std::string DescribeJoin() const override;

 private:
  DataType data_type_;
  int64_t count_;
  JoinableReductionOptions options_;
};

class JoinableAllGather : public Joinable {
 public:
  // `count` elements of each rank.
  JoinableAllGather(DataType data_type, int64_t count,
                    const std::shared_ptr<ProcessGroup>& group = nullptr);

  // ProcessGroup::AllGatherIntoTensor. The parts of ranks without inputs are
  // zero (Join::active_ranks).
  void Run(const Tensor& output, const Tensor& input);

  std::shared_ptr<ProcessGroup> join_group() const override;
  void ShadowStep() override;
  std::string DescribeJoin() const override;

 private:
  DataType data_type_;
  int64_t count_;
  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace muster

#endif  // MUSTER_JOIN_H_
