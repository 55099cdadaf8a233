// Schedules of pipeline parallelism: what each rank computes, sends and
// receives in one training step, in which order.
//
//   auto schedule = muster::Make1F1B(/*ranks=*/4, /*microbatches=*/8);
//   std::cout << schedule.ToText();
//   // rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 ...
//
//   // A forward takes 1 ms, a backward 2 ms, a message 0.1 ms.
//   auto simulation = schedule.Simulate([](const muster::PipelineAction& one) {
//     if (one.kind == muster::PipelineActionKind::kForward) return 1.0;
//     return one.computes() ? 2.0 : 0.1;
//   });
//   std::cout << simulation.bubble_fraction;
//
// pipeline.h runs them.

#ifndef MUSTER_PIPELINE_SCHEDULE_H_
#define MUSTER_PIPELINE_SCHEDULE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "muster/base/export.h"

namespace MUSTER_EXPORT muster {

// The letters are those of torch's pipeline schedules.
enum class PipelineActionKind : uint8_t {
  kForward,         // F
  kBackward,        // B: the gradients of the input and of the weights
  kBackwardInput,   // I: the gradient of the input alone
  kBackwardWeight,  // W: the gradients of the weights alone
  // Start to send the stage's output to the next stage, or to receive its input
  // from the previous one. They do not wait.
  kSendActivation,     // SEND_F
  kReceiveActivation,  // RECV_F
  // Start to send the gradient of the stage's input to the previous stage, or
  // to receive the gradient of its output from the next one. They do not wait.
  kSendGradient,     // SEND_B
  kReceiveGradient,  // RECV_B
};

// One action of a rank. A computation first waits for the messages that it
// needs.
struct PipelineAction {
  PipelineActionKind kind = PipelineActionKind::kForward;
  int stage = 0;
  int microbatch = 0;

  // True for F, B, I and W.
  bool computes() const { return kind < PipelineActionKind::kSendActivation; }

  // The stage, the letters of the kind, the microbatch: "2SEND_F0".
  std::string ToText() const;

  friend bool operator==(const PipelineAction&,
                         const PipelineAction&) = default;
};

// The result of a simulation. Times are in the unit of the given durations.
struct PipelineSimulation {
  struct Rank {
    double busy = 0;    // Computing.
    double bubble = 0;  // The rest of the makespan.
    // The most microbatches, counted once for each stage, whose forward has
    // begun and whose last backward has not ended. The inputs of that many
    // stages are in memory.
    int activations_max = 0;
  };

  double makespan = 0;
  // The bubbles of all ranks, as a part of all ranks' makespans.
  double bubble_fraction = 0;
  std::vector<Rank> ranks = {};
};

// A schedule has at most so many stages times microbatches.
inline constexpr int64_t kStageMicrobatchesMax = 1 << 20;

// PipelineSchedule is data: programs may write their own, call AddTransfers,
// and check it with Validate. Ranks are ranks in the group.
struct PipelineSchedule {
  // Describes it in error texts.
  std::string name = {};
  int microbatches = 0;
  // The rank that has each stage.
  std::vector<int> stage_ranks = {};
  // Each rank's actions, in their order.
  std::vector<std::vector<PipelineAction>> actions = {};

  int stages() const { return static_cast<int>(stage_ranks.size()); }
  int ranks() const { return static_cast<int>(actions.size()); }

  // Adds the sends and receives to a schedule that has computations alone. A
  // send follows the computation of its content. A receive comes one
  // computation earlier than needed, so that the message can arrive meanwhile.
  void AddTransfers();

  // Throws DistError (kInvalidArgument), whose text names the rank and the
  // action, unless
  // - stages times microbatches are at most kStageMicrobatchesMax;
  // - each stage computes every microbatch once: F and B, or F, I and W;
  // - each computation comes after those of its rank that it needs, and after
  //   the start of the receives that it needs;
  // - each message between two ranks is sent once, after its content was
  //   computed, and received once;
  // - no rank waits forever. Otherwise the text says which rank waits for what.
  void Validate() const;

  // One line for each rank.
  std::string ToText() const;

  // Runs the schedule in simulated time: each rank does one computation at a
  // time, as soon as it can. `duration` gives the time of each computation and
  // each send; a message arrives that long after the start of the send, and
  // messages do not slow each other. Throws as Validate, and DistError
  // (kInvalidArgument) for a negative duration.
  PipelineSimulation Simulate(
      const std::function<double(const PipelineAction&)>& duration) const;
};

// In the formulas below p is the number of ranks, m that of the microbatches, v
// that of stages per rank. F, B, I and W are the times of these actions on one
// rank, all its stages together; B = I + W. Bubbles are parts of the makespan,
// if all stages take the same time and messages take none.
//
// All throw DistError (kInvalidArgument) unless every number is at least 1, and
// stages times microbatches at most kStageMicrobatchesMax.

// All forwards, then all backwards (Huang et al., GPipe, 2019). The bubble is
// (p-1) / (m+p-1). Each rank holds m activations.
PipelineSchedule MakeGPipe(int ranks, int microbatches);

// One forward, one backward, after p-1-r forwards on rank r (Narayanan et al.,
// PipeDream-Flush in "Memory-Efficient Pipeline-Parallel DNN Training", 2021).
// The bubble is that of GPipe. Rank r holds min(m, p-r) activations.
PipelineSchedule Make1F1B(int ranks, int microbatches);

// 1F1B with v stages on each rank: rank r has the stages r, r+p, r+2p, ...
// (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
// Clusters Using Megatron-LM", 2021). The bubble is (p-1) / (v*m+p-1), with v
// times as many messages. Rank r holds min(v*m, (v-1)*p + 2*(p-r) - 1)
// activations of stages that are 1/v as large.
// Throws DistError (kInvalidArgument) unless m is a multiple of p.
PipelineSchedule MakeInterleaved1F1B(int ranks, int microbatches,
                                     int stages_per_rank);

// ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", 2023): 1F1B in which
// only the gradient of the input is urgent, and rank r computes those of the
// weights r microbatches later. If m >= p, each rank idles (p-1) * (F+I-W),
// instead of (p-1) * (F+I+W) in 1F1B: the bubble is a third if F = I = W. Each
// rank holds min(m, p) activations.
PipelineSchedule MakeZeroBubbleH1(int ranks, int microbatches);

}  // namespace muster

#endif  // MUSTER_PIPELINE_SCHEDULE_H_
