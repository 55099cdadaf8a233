// Communication hooks: how DataParallel (data_parallel.h) averages gradients
// over the ranks.
//
//   muster::DataParallel model(parameters,
//                              {.hook = muster::MakeBf16CompressHook()});
//
// A hook of the program:
//
//   class ClippedAverage : public muster::CommunicationHook {
//    public:
//     std::string Describe() const override { return "clipped_average"; }
//     muster::HookStage Start(const muster::GradBucket& bucket) override {
//       Clip(bucket.buffer);
//       return bucket.group->AllReduce(
//           bucket.buffer,
//           {.op = muster::ReduceOp::kAvg, .async_op = true});
//     }
//   };

#ifndef MUSTER_COMMUNICATION_HOOKS_H_
#define MUSTER_COMMUNICATION_HOOKS_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/export.h"
#include "muster/process_group.h"

namespace MUSTER_EXPORT muster {

// GradBucket is a bucket whose gradients are complete on this rank.
struct GradBucket {
  std::shared_ptr<ProcessGroup> group;
  // Buckets start in the order of this number, from 0.
  size_t index = 0;
  // Whether it is the last bucket of the step.
  bool is_last = false;
  // All gradients, one after the other, in one dimension. A hook turns this
  // rank's gradients into the average of all ranks.
  Tensor buffer = {};
  // The gradients with their shapes, which are views of `buffer`, and the
  // indices of their parameters.
  std::vector<Tensor> gradients = {};
  std::vector<size_t> parameters = {};
};

// HookStage is what is left to do once a hook has started something for a
// bucket: to wait for a Work, and then to run a function without arguments that
// returns nothing, or starts more and returns the next HookStage. The function
// may own objects that can only be moved. An empty HookStage has nothing left
// to do.
class HookStage {
 public:
  HookStage() = default;
  // NOLINTNEXTLINE(google-explicit-constructor)
  HookStage(Work work) : HookStage(std::move(work), [] {}) {}
  template <typename F>
  HookStage(Work work, F run) : HookStage(std::move(run)) {
    work_ = std::make_unique<Work>(std::move(work));
  }
  // Only runs a function, which may wait for what was started. DataParallel
  // does not know how long that took (DataParallel::Times).
  template <typename F>
  requires(!std::same_as<std::remove_cvref_t<F>, HookStage> &&
           std::invocable<F&>)  //
      HookStage(F run)          // NOLINT(google-explicit-constructor)
      : function_(std::make_unique<Holder<F>>(std::move(run))) {}

  bool empty() const { return function_ == nullptr; }

  // Null if there is none.
  Work* work() const { return work_.get(); }

  // Waits for the Work and runs the function, once. Must not be empty. Throws
  // what Work::Wait throws.
  HookStage Run() {
    const auto function = std::move(function_);
    const auto work = std::move(work_);
    if (work != nullptr) work->Wait();
    return function->Run();
  }

 private:
  struct Function {
    virtual ~Function() = default;
    virtual HookStage Run() = 0;
  };
  template <typename F>
  struct Holder : Function {
    explicit Holder(F run) : run(std::move(run)) {}
    HookStage Run() override {
      if constexpr (std::is_void_v<std::invoke_result_t<F&>>) {
        run();
        return {};
      } else {
        return run();
      }
    }
    F run;
  };

  std::unique_ptr<Function> function_;
  std::unique_ptr<Work> work_;
};

// CommunicationHook averages the gradients of buckets. One object serves one
// DataParallel, and may keep state by GradBucket::index.
//
// DataParallel never runs two functions of an object at the same time, and runs
// them in the same order on all ranks: Start for each bucket in the order of
// the buckets, on the thread whose Ready completed the bucket (or that of
// FinishStep); then, in FinishStep, the first stage of each bucket in that
// order, then the second of each, and so on. Collectives that functions start
// therefore match, if the hook starts the same ones on every rank. What Start
// does on its thread delays the backward computation; what it starts with
// async_op does not.
//
// The average divides by the size of the group, also if some ranks only take
// part with zeros (DataParallel::ShadowStep). What a function throws ends the
// step (DataParallel).
class CommunicationHook {
 public:
  virtual ~CommunicationHook() = default;

  // A name with the settings. DataParallel compares it over the ranks.
  virtual std::string Describe() const = 0;

  // Starts to average a bucket. `bucket` stays where it is until the stages
  // have run.
  virtual HookStage Start(const GradBucket& bucket) = 0;

  // No rank has used the parameter of gradient `index` of the bucket, whose
  // stages have run: its average, which is still in the buffer, counts nowhere.
  // If the hook has put what it kept of earlier steps into that average (error
  // feedback), it takes the average back.
  virtual void Discard(const GradBucket& /*bucket*/, size_t /*index*/) {}

  // The buckets have other parameters from now on: state by index is void. Also
  // called by the constructor of the DataParallel.
  virtual void BucketsRebuilt() {}
};

// Averages by one all_reduce of the buffer. The default.
std::shared_ptr<CommunicationHook> MakeAllReduceHook();

// Send float32 and float64 gradients rounded to 16 bits; sums are rounded once,
// as all_reduce does with 16 bits. Gradients beyond 65504 become infinite as
// float16. Buckets that have 16 bits anyway are averaged as they are. Half the
// traffic of float32.
std::shared_ptr<CommunicationHook> MakeFp16CompressHook();
std::shared_ptr<CommunicationHook> MakeBf16CompressHook();

// Send 8 bits for each gradient: int8, or float8 with 4 exponent and 3 mantissa
// bits (kFloat8E4m3fn). Each 256 gradients share a float32 scale, by which the
// largest becomes 127 or 448. The rank's rounding errors are added to its
// gradients in the next step (error feedback). Every rank gets its part of all
// ranks' gradients by all_to_all, adds them in float32, rounds the average,
// again with error feedback, and gives it to all by all_gather.
//
// Each rank sends 2 (n-1)/n bytes for each gradient, and 1/64 more for the
// scales; a float32 ring all_reduce sends 8 (n-1)/n. Keeps (1 + 1/n) float32
// and 2 bytes for each gradient. If a block has a NaN or an infinity on any
// rank, all of it becomes NaN. The scales follow 1-bit Adam's two-sided error
// compensation (Tang et al., 2021).
std::shared_ptr<CommunicationHook> MakeInt8CompressHook();
std::shared_ptr<CommunicationHook> MakeFp8CompressHook();

struct PowerSgdOptions {
  // The rank r of the matrices, at least 1. More is closer to the gradient.
  int64_t rank = 1;
  // Averages by all_reduce in this many steps at the beginning, in which
  // gradients change fast. Not negative.
  int64_t start_step = 1000;
  // A matrix is compressed only if it has at least this many times as many
  // elements as what is sent for it. At least 1.
  double min_compression_rate = 2;
  // The first matrices are random, and depend on this.
  uint64_t seed = 0;
};

// PowerSGD (T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical
// Low-Rank Gradient Compression for Distributed Optimization", 2019). A
// gradient of n x m elements (dimension 0, and all others together) is averaged
// as the product of an n x r and an r x m matrix, one all_reduce each, of all
// matrices of a bucket: one iteration of the power method, which begins with
// the last step's matrix (warm start). The rest is added to the gradient in the
// next step (error feedback). Gradients of one dimension, and those for which
// this saves too little, go with the first all_reduce as they are.
//
// Computes in float32. Traffic: (n + m) r of n m elements. Keeps two float32
// for each gradient. Throws DistError (kInvalidArgument) for bad options.
std::shared_ptr<CommunicationHook> MakePowerSgdHook(
    const PowerSgdOptions& options = {});

}  // namespace muster

#endif  // MUSTER_COMMUNICATION_HOOKS_H_
