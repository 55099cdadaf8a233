// Data parallel training: every rank has the whole model and its own part of
// the data, and the gradients are averaged while the backward pass goes on.
//
//   std::vector<muster::Parameter> parameters;
//   for (Layer& layer : layers) {
//     parameters.push_back({layer.name, layer.weights, layer.gradients});
//   }
//   muster::DataParallel model(parameters);
//   for (const Batch& batch : batches) {
//     ComputeLoss(batch);
//     for (size_t i = layers.size(); i-- > 0;) {
//       ComputeGradients(layers[i]);
//       model.Ready(i);
//     }
//     model.FinishStep();  // all gradients are averages of all ranks
//     UpdateWeights();
//   }

#ifndef MUSTER_DATA_PARALLEL_H_
#define MUSTER_DATA_PARALLEL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/export.h"
#include "muster/communication_hooks.h"
#include "muster/join.h"
#include "muster/process_group.h"

namespace MUSTER_EXPORT muster {

// One parameter of a model. Tensors are float32, float64, float16 or bfloat16
// on the CPU, and not empty.
struct Parameter {
  std::string name;
  Tensor value;
  // Has the type and shape of `value`: memory of the program, which is copied
  // into a bucket and back. Without data: the gradient lies in the bucket, and
  // DataParallel::Gradient returns it.
  Tensor gradient = {};
};

// A tensor that is not trained, such as a running mean.
struct NamedTensor {
  std::string name;
  Tensor tensor;
};

struct DataParallelOptions {
  // Null is the default group.
  std::shared_ptr<ProcessGroup> group = nullptr;
  // A bucket is complete when it has at least this many bytes; the first of
  // each type is smaller, so that communication begins early.
  int64_t bucket_bytes = int64_t{25} << 20;
  int64_t first_bucket_bytes = int64_t{1} << 20;
  // Broadcast from the group's rank 0 by the constructor and, if
  // `broadcast_buffers`, by each BeginStep.
  std::vector<NamedTensor> buffers = {};
  bool broadcast_buffers = true;
  // True: a step may leave parameters out, which count as zeros. Parameters
  // that no rank has used keep their gradients.
  bool find_unused_parameters = false;
  // True: every step on a rank uses the parameters that this rank used in the
  // first reduced step in which no rank is in ShadowStep. It may have left some
  // out, for which buckets do not wait.
  bool static_graph = false;
  // Null: MakeAllReduceHook(). Not shared with another DataParallel.
  std::shared_ptr<CommunicationHook> hook = nullptr;
};

// DataParallel averages gradients as torch's DistributedDataParallel does (S.
// Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel
// Training", 2020). Gradients lie in buckets of one type, at first in reverse
// order of the parameters. As soon as all gradients of the next bucket are
// there, its reduction begins in the background. The average is the sum divided
// by the size of the group, bitwise equal on all ranks.
//
// A step is BeginStep (needed only if there are buffers to broadcast), Ready
// once for each parameter, in any order and from any threads, and, after all of
// them have returned, FinishStep. All ranks make the same steps in the same
// order, and run no other collectives of the group from the first Ready to the
// end of FinishStep, nor while another rank may do so.
//
// After the first reduced step in which no rank is in ShadowStep the buckets
// are built anew in the order in which the group's rank 0 called Ready (not
// with find_unused_parameters, unless static_graph).
//
// Ranks that have different numbers of inputs use a Join (join.h):
//
//   muster::Join join({&model});
//   for (const Batch& batch : batches) {
//     join.BeginStep();
//     ...  // a step as above
//   }
//   join.Finish();
//
// A rank without input then takes part in the others' steps (ShadowStep), and
// gets the values of the parameters in the end (FinishJoin). For a step within
// NoSync, Join::BeginStep is called within that NoSync or left out: other ranks
// have nothing to do in it.
//
// The memory of the buckets, of the size of all gradients, is symmetric if the
// group has such memory (symmetric.h). Tensors of the program must live as long
// as this object, or until no step runs. From Ready to FinishStep nothing may
// touch a gradient.
//
// On a rank that is not in the group all functions do nothing, after a warning
// of the constructor in the log. Functions but Ready and logging_data are for
// one thread at a time.
//
// Besides the errors below, functions throw what Work::Wait throws and what a
// hook throws. The group is then at an end (ProcessGroup::Abort), and all
// functions throw the same. The destructor waits for what is started.
class DataParallel : public Joinable {
 public:
  // Compares names, types and shapes of parameters and buffers, and the
  // options, over the ranks, then copies the values and the buffers of the
  // group's rank 0 to all ranks. All ranks make the call. Throws DistError on
  // all ranks, with the rank in culprits(), and the group goes on:
  // kInvalidArgument (something differs: the text names the first that does,
  // and both values; no parameters, or two of one name; a tensor of another
  // type or shape than above; two tensors that have the same memory; a size
  // that is not positive), kUnimplemented (CUDA tensors), kResourceExhausted
  // (a rank has no memory for the buckets).
  explicit DataParallel(std::vector<Parameter> parameters,
                        const DataParallelOptions& options = {});
  ~DataParallel() override;

  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // Begins a step, and broadcasts the buffers (not within NoSync). They come
  // from the lowest rank that is not in ShadowStep. Optional if there is
  // nothing to broadcast; the first Ready does it otherwise. A second call does
  // nothing. Throws DistError
  // (kFailedPrecondition) if the last step has parameters that are ready, and
  // was not finished.
  void BeginStep();

  // The gradient of parameter `index` is complete. It is copied to its bucket,
  // unless it lies there, and the reduction of that bucket may begin, on this
  // thread (CommunicationHook::Start). Thread-safe.
  // Throws DistError, and the step goes on: kInvalidArgument (no such
  // parameter), kFailedPrecondition (ready twice in a step; not used in the
  // first step of a static graph; BeginStep is missing; the text names the
  // parameter).
  void Ready(size_t index);

  // Waits until all buckets are reduced. Gradients in memory of the program are
  // then copied back.
  //
  // A parameter that was not ready since the last reduced step counts as zeros.
  // Throws DistError (kFailedPrecondition) on all ranks if there is one on any
  // rank, without find_unused_parameters, or in a later step of a static graph.
  // The text names the ranks and their parameters: 8 of them, all at debug
  // levels INFO and DETAIL. The gradients have no meaning then, and the next
  // step may begin. Throws kFailedPrecondition on this rank alone, and the step
  // goes on, if BeginStep is missing or if calls of Ready have not returned.
  //
  // The first reduced FinishStep may build the buckets anew: then Gradient()
  // returns other memory, to which the averages were copied.
  void FinishStep();

  // Takes part in one reduced step of the other ranks, from BeginStep to
  // FinishStep, for a rank that has no more input (Join). It gives what it has
  // accumulated within NoSync, and zeros for the rest. Afterwards the gradients
  // are the averages, as on the other ranks: a rank that updates its weights
  // stays equal to them. The sum is divided by the size of the group, as by
  // torch's default (divide_by_initial_world_size). A hook with error feedback
  // sends what it has kept. Steps within NoSync reduce nothing and need no
  // shadow. Throws DistError (kFailedPrecondition) within a step and within
  // NoSync.
  void ShadowStep() override;

  // Copies the values and, with broadcast_buffers, the buffers of the highest
  // rank that took part in the last step to all ranks, because shadows have
  // made no updates (torch's _sync_final_model). An optimizer's state is the
  // program's: a joinable after this one may make the update in its ShadowStep,
  // from the averages. Throws DistError (kInvalidArgument) unless the last one
  // of last_ranks is a rank of the group.
  void FinishJoin(const JoinResult& result) override;

  std::shared_ptr<ProcessGroup> join_group() const override;
  // False within NoSync.
  bool RunsInStep() const override;
  std::string DescribeJoin() const override;

  // Steps that begin while a NoSync lives only accumulate: Ready and FinishStep
  // communicate nothing, and the program adds to its gradients. The first step
  // that begins afterwards reduces them. All ranks do the same.
  //
  //   {
  //     const muster::DataParallel::NoSync no_sync(model);
  //     ...  // forward, backward with Ready, FinishStep
  //   }
  //   ...  // forward, backward with Ready, FinishStep: averages of both
  class NoSync {
   public:
    explicit NoSync(DataParallel& model);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DataParallel& model_;
  };

  // The gradient of a parameter: memory of the program, or of a bucket, which
  // is zero at first. The program adds to it or overwrites it before Ready.
  // Throws DistError (kInvalidArgument) if there is no such parameter.
  Tensor Gradient(size_t index) const;

  const std::vector<Parameter>& parameters() const;

  // Times of reduced steps on this rank.
  struct Times {
    // From the first Ready to the last.
    std::chrono::nanoseconds backward_compute_time{0};
    // The time in which at least one bucket was being reduced: from the call of
    // a function of the hook until the Work is complete for which the stage
    // that it returns waits. Without a Work (HookStage), until that stage has
    // run.
    std::chrono::nanoseconds backward_comm_time{0};
    // The part of it before the last Ready, which is hidden.
    std::chrono::nanoseconds backward_compute_comm_overlap_time{0};
    // The rest of it, for which the step waits.
    std::chrono::nanoseconds exposed_comm_time{0};
  };

  struct LoggingData {
    int rank = 0;
    int world_size = 0;
    std::string comm_hook;
    size_t parameter_count = 0;
    int64_t total_parameter_bytes = 0;
    // In the order of the buckets.
    std::vector<int64_t> bucket_sizes;
    bool has_rebuilt_buckets = false;
    // Whether all buckets are in symmetric memory, and how many are. The others
    // are in ordinary memory, because the group has no symmetric memory or not
    // enough of it.
    bool has_symmetric_buckets = false;
    size_t symmetric_bucket_count = 0;
    // Reduced steps, including shadows.
    int64_t num_iterations = 0;
    // The parameters that no rank used in the last step for which that was
    // asked (find_unused_parameters, or the first of a static graph).
    std::vector<std::string> unused_parameters;
    // The last reduced step, and the average of all, without shadows.
    Times last;
    Times average;
  };
  // At debug level INFO the constructor logs this; at DETAIL also every 100th
  // reduced step does. The process's metrics muster_data_parallel_* have the
  // sums over all objects, by hook. Thread-safe.
  LoggingData logging_data() const;

 private:
  class MUSTER_HIDDEN Reducer;

  const std::unique_ptr<Reducer> reducer_;
};

}  // namespace muster

#endif  // MUSTER_DATA_PARALLEL_H_
