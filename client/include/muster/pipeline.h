// Pipeline parallelism: a model is cut into stages, each rank has one or more
// of them, and a batch flows through them in microbatches.
//
//   muster::PipelineStage stage;
//   stage.stage = rank;
//   if (rank > 0) stage.input = {muster::DataType::kFloat32, {8, 512}};
//   stage.output = {muster::DataType::kFloat32, {8, 512}};
//   stage.forward = [&](int microbatch, const auto& input, const auto& output)
//   {
//     layers.Forward(rank == 0 ? batch[microbatch] : input, output);
//   };
//   stage.backward = [&](int microbatch, const auto& input,
//                        const auto& output_gradient,
//                        const auto& input_gradient) {
//     // Adds to the gradients of its weights.
//     layers.Backward(rank == 0 ? batch[microbatch] : input, output_gradient,
//                     input_gradient);
//   };
//   if (rank == ranks - 1) {
//     stage.loss = [&](int microbatch, const auto& output,
//                      const auto& output_gradient) {
//       return CrossEntropy(output, labels[microbatch], output_gradient);
//     };
//   }
//   muster::Pipeline pipeline(muster::Make1F1B(ranks, /*microbatches=*/16),
//                             {stage});
//   for (int step = 0; step < steps; ++step) {
//     layers.ZeroGradients();
//     std::vector<double> losses = pipeline.Step();
//     layers.Update();
//   }

#ifndef MUSTER_PIPELINE_H_
#define MUSTER_PIPELINE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "muster/base/export.h"
#include "muster/pipeline_schedule.h"
#include "muster/process_group.h"

namespace MUSTER_EXPORT muster {

// The type and shape of one microbatch between two stages.
struct PipelineShape {
  DataType data_type = DataType::kFloat32;
  std::vector<int64_t> shape = {};
  // Not empty: several tensors instead of the one above. They are one message,
  // and functions get one tensor uint8[n], which has them one after the other,
  // each aligned to 64 bytes.
  std::vector<PipelineShape> tensors = {};

  // Views of the tensors in a tensor that a function has got for this shape.
  // Throws DistError (kInvalidArgument) for another one.
  std::vector<Tensor> Unpack(const Tensor& packed) const;
};

// PipelineStage is one stage as the program defines it. The functions get
// tensors in memory of the Pipeline, on the CPU, aligned to 64 bytes. A tensor
// that does not exist is float32[0]: the first stage has no input and no
// gradient of it; it gets its data by the microbatch's number.
//
// The functions of a rank run on the thread that calls Step, one at a time. If
// one throws, the step fails (Pipeline::Step).
struct PipelineStage {
  int stage = 0;

  // Not given for the first stage. Every tensor has at least one element, and
  // a stage's input is as the output of the stage before.
  std::optional<PipelineShape> input = std::nullopt;
  PipelineShape output = {};

  // Computes `output`. The input stays as it is until the microbatch's last
  // backward; the output may be gone when the function returns.
  std::function<void(int microbatch, const Tensor& input, const Tensor& output)>
      forward = nullptr;

  // On the last stage, and only there: returns the microbatch's loss and
  // computes its gradient with regard to `output`. Scale the gradient here to
  // average over microbatches. Runs after each forward. Evaluate does not use
  // the gradient.
  std::function<double(int microbatch, const Tensor& output,
                       const Tensor& output_gradient)>
      loss = nullptr;

  // Computes `input_gradient`, and adds to the gradients of the weights, which
  // are the program's. Each schedule of this library runs the backwards of a
  // stage in the order of the microbatches, so that sums are the same bit for
  // bit.
  std::function<void(int microbatch, const Tensor& input,
                     const Tensor& output_gradient,
                     const Tensor& input_gradient)>
      backward = nullptr;

  // The two halves of `backward`, instead of it. A zero-bubble schedule needs
  // them; other schedules run one after the other.
  std::function<void(int microbatch, const Tensor& input,
                     const Tensor& output_gradient,
                     const Tensor& input_gradient)>
      backward_input = nullptr;
  std::function<void(int microbatch, const Tensor& input,
                     const Tensor& output_gradient)>
      backward_weight = nullptr;
};

struct PipelineOptions {
  // Null is the default group.
  std::shared_ptr<ProcessGroup> group = nullptr;
};

// The time of a step on this rank.
struct PipelineTimes {
  std::chrono::nanoseconds step{0};
  // In the functions of the stages.
  std::chrono::nanoseconds compute{0};
  // Waiting for messages that computations need.
  std::chrono::nanoseconds wait{0};
};

// Pipeline runs a schedule on the ranks of a group. Sends and receives go on
// while stages compute. It takes memory for the activations that the schedule
// holds (PipelineSimulation), for as many gradients, and for messages on their
// way, and keeps it for the next step.
//
// One thread at a time. Other sends and receives of the group must not have
// tags from 2^30 on, and one Pipeline at a time may be in a step on a group.
class Pipeline {
 public:
  // `stages` are those that the schedule gives this rank, in any order. All
  // ranks of the group make the call, which returns when all of them have made
  // it. Throws DistError (kInvalidArgument) on every rank, and the group goes
  // on, if an argument of any rank is bad, if ranks have different schedules,
  // or if the shapes of neighbouring stages differ; the text names the ranks,
  // the stages and both values. Also throws what a collective throws.
  //
  // If this process is not in the group, the call logs a warning, and steps do
  // nothing.
  Pipeline(PipelineSchedule schedule, std::vector<PipelineStage> stages,
           const PipelineOptions& options = {});
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;
  ~Pipeline();

  // Runs one step, which all ranks of the group must call. Returns when this
  // rank has done its part and its messages have left. Returns the losses by
  // microbatch on the rank that has the last stage; elsewhere it is empty.
  //
  // A function that throws ends the group, as ProcessGroup::Abort does: its
  // rank gets the exception, and the others DistError with that rank as the
  // culprit; its text names the stage, the microbatch and the exception's text.
  // A rank that has done its part gets it from its next call. Throws what
  // Work::Wait throws if a rank is gone, and after the end of the group.
  //
  // A message may take the group's timeout as often as computations and
  // messages follow one another in a step: PipelineSimulation::makespan, if
  // each takes 1. So a slow stage ends no step as long as each computation
  // takes less than the timeout.
  std::vector<double> Step();

  // Runs a step without its backwards, to find the losses of data that the
  // model is not trained on: the stages' functions are the same, and the
  // program gives them that data meanwhile. Keeps no activations. All ranks of
  // the group must call it. Returns and throws as Step.
  std::vector<double> Evaluate();

  // The times of this rank's last Step or Evaluate.
  PipelineTimes last_times() const;

 private:
  struct MUSTER_HIDDEN Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster

#endif  // MUSTER_PIPELINE_H_
