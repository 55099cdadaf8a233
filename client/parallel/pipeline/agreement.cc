#include "client/parallel/pipeline/agreement.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/text.h"
#include "client/control/throw.h"
#include "client/parallel/agreement/agreement.h"
#include "muster/errors.h"
#include "muster/objects.h"

namespace muster::internal {
namespace {

using Kind = PipelineActionKind;

// Says what is wrong with a tensor of a stage; empty: nothing.
std::string FindShapeFault(const PipelineShape& shape) {
  for (const PipelineShape& one : shape.tensors) {
    if (!one.tensors.empty()) return "a list of tensors in a list";
    std::string fault = FindShapeFault(one);
    if (!fault.empty()) return fault;
  }
  const Tensor tensor = MakeView(shape);
  if (!tensor.is_valid()) return std::string(tensor.Validate().message());
  if (tensor.element_count() > 0) return "";
  return absl::StrCat(tensor.Describe(), " has no elements");
}

// Says what is wrong with a stage of the schedule; empty: nothing.
std::string FindStageFault(const PipelineSchedule& schedule,
                           const PipelineStage& stage, bool splits) {
  const bool first = stage.stage == 0;
  const bool last = stage.stage + 1 == schedule.stages();
  if (first && stage.input.has_value()) {
    return "input is given for the first stage";
  }
  if (!first && !stage.input.has_value()) return "input is not given";
  if (stage.input.has_value()) {
    const std::string fault = FindShapeFault(*stage.input);
    if (!fault.empty()) return absl::StrCat("input: ", fault);
  }
  const std::string fault = FindShapeFault(stage.output);
  if (!fault.empty()) return absl::StrCat("output: ", fault);
  if (stage.forward == nullptr) return "there is no function forward";
  if (last && stage.loss == nullptr) {
    return "the last stage has no function loss";
  }
  if (!last && stage.loss != nullptr) {
    return "a function loss is given, but not for the last stage";
  }
  const bool halves =
      stage.backward_input != nullptr && stage.backward_weight != nullptr;
  if (splits && !halves) {
    return absl::StrCat(
        "the schedule needs the functions backward_input and backward_weight");
  }
  const bool half =
      stage.backward_input != nullptr || stage.backward_weight != nullptr;
  if ((stage.backward != nullptr) == half || half != halves) {
    return "needs a function backward, or backward_input and backward_weight";
  }
  return "";
}

// Returns whether the stage's backward is in two halves.
bool Splits(const PipelineSchedule& schedule, int stage) {
  const auto rank =
      static_cast<size_t>(schedule.stage_ranks[static_cast<size_t>(stage)]);
  return std::any_of(schedule.actions[rank].begin(),
                     schedule.actions[rank].end(), [&](const auto& action) {
                       return action.stage == stage &&
                              action.kind == Kind::kBackwardInput;
                     });
}

// Says what is wrong with the stages of group rank `rank`; empty: nothing.
std::string FindStagesFault(const PipelineSchedule& schedule,
                            const std::vector<PipelineStage>& stages,
                            int rank) {
  std::map<int, int> given;
  for (const PipelineStage& stage : stages) {
    if (++given[stage.stage] > 1) {
      return absl::StrCat("stage ", stage.stage, " is given twice");
    }
  }
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const bool wanted =
        schedule.stage_ranks[static_cast<size_t>(stage)] == rank;
    if (given.erase(stage) == 0 && wanted) {
      return absl::StrCat("stage ", stage,
                          " is missing, which the schedule has on this rank");
    }
    if (!wanted &&
        std::any_of(stages.begin(), stages.end(),
                    [&](const auto& one) { return one.stage == stage; })) {
      return absl::StrCat("stage ", stage, " is not on this rank");
    }
  }
  if (!given.empty()) {
    return absl::StrCat("stage ", given.begin()->first, " does not exist");
  }
  for (const PipelineStage& stage : stages) {
    const std::string fault =
        FindStageFault(schedule, stage, Splits(schedule, stage.stage));
    if (!fault.empty()) return absl::StrCat("stage ", stage.stage, ": ", fault);
  }
  return "";
}

// Says what is wrong with this rank's arguments; empty: nothing.
std::string FindFault(const ProcessGroup& group,
                      const PipelineSchedule& schedule,
                      const std::vector<PipelineStage>& stages) {
  if (schedule.ranks() != group.size()) {
    return absl::StrCat("argument schedule: it has ", schedule.ranks(),
                        " ranks, the group has ", group.size());
  }
  try {
    schedule.Validate();
  } catch (const DistError& error) {
    return absl::StrCat("argument schedule: ", error.status().message());
  }
  const std::string fault = FindStagesFault(schedule, stages, group.rank());
  return fault.empty() ? "" : absl::StrCat("argument stages: ", fault);
}

// Checks that each stage gives what the next one takes. All ranks have the same
// schedule, and its stages.
void CheckShapes(const std::shared_ptr<ProcessGroup>& group,
                 const PipelineSchedule& schedule,
                 const std::vector<PipelineStage>& stages) {
  // Equal texts are equal shapes. Those of a rank are in the order of stages.
  std::map<int, std::string> mine;
  for (const PipelineStage& stage : stages) {
    mine[stage.stage] =
        absl::StrCat(stage.input.has_value() ? DescribeShape(*stage.input) : "",
                     "\n", DescribeShape(stage.output), "\n");
  }
  std::string texts;
  for (const auto& [stage, text] : mine) texts += text;
  std::vector<std::string> all;
  AllGatherObject(all, texts, {.group = group});
  std::vector<std::vector<std::string>> lines;
  for (const std::string& one : all) {
    lines.push_back(absl::StrSplit(one, '\n'));
  }
  const std::vector<int> ranks = group->ranks();
  std::vector<size_t> next(all.size());
  std::string output;
  for (int number = 0; number < schedule.stages(); ++number) {
    const auto rank =
        static_cast<size_t>(schedule.stage_ranks[static_cast<size_t>(number)]);
    const std::string& input = lines[rank][next[rank]++];
    if (input != output) {
      const int before = schedule.stage_ranks[static_cast<size_t>(number) - 1];
      Invalid(absl::StrCat("Pipeline: argument stages: stage ", number - 1,
                           " of rank ", ranks[static_cast<size_t>(before)],
                           " has the output ", output, ", stage ", number,
                           " of rank ", ranks[rank], " has the input ", input));
    }
    output = lines[rank][next[rank]++];
  }
}

}  // namespace

std::string DescribeShape(const PipelineShape& shape) {
  if (shape.tensors.empty()) return MakeView(shape).Describe();
  return absl::StrCat("(",
                      absl::StrJoin(shape.tensors, ", ",
                                    [](std::string* out, const auto& one) {
                                      out->append(DescribeShape(one));
                                    }),
                      ")");
}

size_t CountAlignedBytes(const PipelineShape& shape) {
  constexpr size_t kAlignment = 64;
  return (MakeView(shape).bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

Tensor MakeTensor(void* memory, const PipelineShape& shape) {
  if (!shape.tensors.empty()) {
    size_t bytes = 0;
    for (const auto& one : shape.tensors) bytes += CountAlignedBytes(one);
    return {memory, DataType::kUint8, {static_cast<int64_t>(bytes)}};
  }
  return {memory, shape.data_type, shape.shape};
}

Tensor MakeView(const PipelineShape& shape) {
  alignas(64) static char memory;
  return MakeTensor(&memory, shape);
}

void AgreeOnPipeline(const std::shared_ptr<ProcessGroup>& group,
                     const PipelineSchedule& schedule,
                     const std::vector<PipelineStage>& stages) {
  Agreement agreement("Pipeline");
  const std::string fault = FindFault(*group, schedule, stages);
  if (!fault.empty()) agreement.AddFault(InvalidArgumentError(fault));
  agreement.Add(
      "argument schedule",
      absl::StrCat(base::Quote(schedule.name), " of ", schedule.ranks(),
                   " ranks, ", schedule.stages(), " stages and ",
                   schedule.microbatches, " microbatches"));
  for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
    const std::vector<PipelineAction>& actions = schedule.actions[rank];
    for (size_t i = 0; i < actions.size(); ++i) {
      agreement.Add(absl::StrCat("argument schedule, action ", i,
                                 " of the group's rank ", rank),
                    actions[i].ToText());
    }
  }
  agreement.Check({group});
  CheckShapes(group, schedule, stages);
}

}  // namespace muster::internal
