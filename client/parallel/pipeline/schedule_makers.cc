#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
#include "muster/pipeline_schedule.h"

namespace muster {
namespace {

using Kind = PipelineActionKind;
using Actions = std::vector<PipelineAction>;

void CheckPositive(const std::string& schedule, const std::string& argument,
                   int value) {
  if (value >= 1) return;
  internal::Invalid(absl::StrCat(schedule, ": argument ", argument,
                                 " must be at least 1 but was ", value));
}

PipelineSchedule MakeEmpty(const std::string& name, int ranks, int microbatches,
                           int stages_per_rank = 1) {
  CheckPositive(name, "ranks", ranks);
  CheckPositive(name, "microbatches", microbatches);
  CheckPositive(name, "stages_per_rank", stages_per_rank);
  const int64_t stages = int64_t{ranks} * stages_per_rank;
  if (stages > kStageMicrobatchesMax / microbatches) {
    internal::Invalid(absl::StrCat(
        name, ": ", stages, " stages times argument microbatches of ",
        microbatches, " is above the limit of ", kStageMicrobatchesMax));
  }
  PipelineSchedule schedule;
  schedule.name = name;
  schedule.microbatches = microbatches;
  for (int stage = 0; stage < stages; ++stage) {
    schedule.stage_ranks.push_back(stage % ranks);
  }
  schedule.actions.resize(static_cast<size_t>(ranks));
  return schedule;
}

// The forwards and backwards of a rank with one stage, of which `warmup`
// forwards come first. `backward` adds the backward of a microbatch.
template <typename Backward>
void AddOneForwardOneBackward(int stage, int microbatches, int warmup,
                              Actions& actions, const Backward& backward) {
  int forwards = 0;
  const auto forward = [&] {
    if (forwards == microbatches) return;
    actions.push_back({Kind::kForward, stage, forwards++});
  };
  for (int i = 0; i < std::min(warmup, microbatches); ++i) forward();
  for (int i = 0; i < microbatches; ++i) {
    forward();
    backward(i);
  }
}

}  // namespace

PipelineSchedule MakeGPipe(int ranks, int microbatches) {
  PipelineSchedule schedule = MakeEmpty("gpipe", ranks, microbatches);
  for (int rank = 0; rank < ranks; ++rank) {
    Actions& actions = schedule.actions[static_cast<size_t>(rank)];
    for (const Kind kind : {Kind::kForward, Kind::kBackward}) {
      for (int i = 0; i < microbatches; ++i) actions.push_back({kind, rank, i});
    }
  }
  schedule.AddTransfers();
  return schedule;
}

PipelineSchedule Make1F1B(int ranks, int microbatches) {
  PipelineSchedule schedule = MakeEmpty("1f1b", ranks, microbatches);
  for (int rank = 0; rank < ranks; ++rank) {
    Actions& actions = schedule.actions[static_cast<size_t>(rank)];
    AddOneForwardOneBackward(
        rank, microbatches, ranks - 1 - rank, actions, [&](int microbatch) {
          actions.push_back({Kind::kBackward, rank, microbatch});
        });
  }
  schedule.AddTransfers();
  return schedule;
}

PipelineSchedule MakeInterleaved1F1B(int ranks, int microbatches,
                                     int stages_per_rank) {
  PipelineSchedule schedule =
      MakeEmpty("interleaved 1f1b", ranks, microbatches, stages_per_rank);
  if (microbatches % ranks != 0) {
    internal::Invalid(absl::StrCat(
        "interleaved 1f1b: argument microbatches must be a multiple of the ",
        ranks, " ranks but was ", microbatches));
  }
  const int total = microbatches * stages_per_rank;
  for (int rank = 0; rank < ranks; ++rank) {
    // Computation `number` of a kind: `ranks` microbatches through one stage,
    // then the same ones through the rank's next stage.
    const auto make = [&](Kind kind, int number) {
      int turn = number / ranks % stages_per_rank;
      if (kind == Kind::kBackward) turn = stages_per_rank - 1 - turn;
      return PipelineAction{
          kind, turn * ranks + rank,
          number / (ranks * stages_per_rank) * ranks + number % ranks};
    };
    const int warmup =
        std::min(total, (stages_per_rank - 1) * ranks + 2 * (ranks - 1 - rank));
    Actions& actions = schedule.actions[static_cast<size_t>(rank)];
    for (int i = 0; i < warmup; ++i) actions.push_back(make(Kind::kForward, i));
    for (int i = 0; i < total; ++i) {
      if (warmup + i < total) {
        actions.push_back(make(Kind::kForward, warmup + i));
      }
      actions.push_back(make(Kind::kBackward, i));
    }
  }
  schedule.AddTransfers();
  return schedule;
}

PipelineSchedule MakeZeroBubbleH1(int ranks, int microbatches) {
  PipelineSchedule schedule = MakeEmpty("zb-h1", ranks, microbatches);
  for (int rank = 0; rank < ranks; ++rank) {
    Actions& actions = schedule.actions[static_cast<size_t>(rank)];
    int weights = 0;
    AddOneForwardOneBackward(
        rank, microbatches, ranks - 1 - rank, actions, [&](int microbatch) {
          actions.push_back({Kind::kBackwardInput, rank, microbatch});
          if (microbatch < rank) return;
          actions.push_back({Kind::kBackwardWeight, rank, weights++});
        });
    while (weights < microbatches) {
      actions.push_back({Kind::kBackwardWeight, rank, weights++});
    }
  }
  schedule.AddTransfers();
  return schedule;
}

}  // namespace muster
