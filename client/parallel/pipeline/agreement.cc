#include "client/parallel/pipeline/agreement.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/control/throw.h"
#include "muster/errors.h"
#include "muster/objects.h"

namespace muster::internal {
namespace {

using Kind = PipelineActionKind;

// One rank's arguments, as the others get them.
struct Notice {
  // The stages' shapes as texts. Equal texts are equal shapes.
  struct Stage {
    int stage = 0;
    std::string input = {};
    std::string output = {};
  };

  // Says what is wrong with the arguments; empty: nothing.
  std::string fault = {};
  // The name and the numbers of the schedule, and all of it.
  std::string schedule_name = {};
  std::string schedule = {};
  std::vector<Stage> stages = {};
};

// Texts, each after its size.
class Texts {
 public:
  Texts() = default;
  explicit Texts(std::string bytes) : bytes_(std::move(bytes)) {}

  void Add(const std::string& text) {
    const uint64_t size = text.size();
    bytes_.append(reinterpret_cast<const char*>(&size), sizeof(size));
    bytes_ += text;
  }

  // Empty after the end.
  std::string Take() {
    uint64_t size = 0;
    if (bytes_.size() - at_ < sizeof(size)) return "";
    std::memcpy(&size, bytes_.data() + at_, sizeof(size));
    at_ += sizeof(size);
    std::string text = bytes_.substr(at_, size);
    at_ += text.size();
    return text;
  }

  bool at_end() const { return at_ == bytes_.size(); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
  size_t at_ = 0;
};

std::string ToBytes(const Notice& notice) {
  Texts texts;
  texts.Add(notice.fault);
  texts.Add(notice.schedule_name);
  texts.Add(notice.schedule);
  for (const Notice::Stage& stage : notice.stages) {
    texts.Add(absl::StrCat(stage.stage));
    texts.Add(stage.input);
    texts.Add(stage.output);
  }
  return texts.bytes();
}

Notice ToNotice(const std::string& bytes) {
  Texts texts(bytes);
  Notice notice;
  notice.fault = texts.Take();
  notice.schedule_name = texts.Take();
  notice.schedule = texts.Take();
  while (!texts.at_end()) {
    const int stage = std::stoi(texts.Take());
    std::string input = texts.Take();
    notice.stages.push_back({stage, std::move(input), texts.Take()});
  }
  return notice;
}

// Says what is wrong with a tensor of a stage; empty: nothing.
std::string FindShapeFault(const PipelineShape& shape) {
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
  try {
    schedule.Validate();
  } catch (const DistError& error) {
    return absl::StrCat("argument schedule: ", error.status().message());
  }
  if (schedule.ranks() != group.size()) {
    return absl::StrCat("argument schedule: it has ", schedule.ranks(),
                        " ranks, the group has ", group.size());
  }
  const std::string fault = FindStagesFault(schedule, stages, group.rank());
  return fault.empty() ? "" : absl::StrCat("argument stages: ", fault);
}

Notice MakeNotice(const ProcessGroup& group, const PipelineSchedule& schedule,
                  const std::vector<PipelineStage>& stages) {
  Notice notice;
  notice.fault = FindFault(group, schedule, stages);
  notice.schedule_name =
      absl::StrCat(base::Quote(schedule.name), " of ", schedule.ranks(),
                   " ranks, ", schedule.stages(), " stages and ",
                   schedule.microbatches, " microbatches");
  notice.schedule = schedule.ToText();
  if (!notice.fault.empty()) return notice;
  for (const PipelineStage& stage : stages) {
    notice.stages.push_back(
        {stage.stage,
         stage.input.has_value() ? MakeView(*stage.input).Describe() : "",
         MakeView(stage.output).Describe()});
  }
  return notice;
}

[[noreturn]] void Fail(const std::string& text) {
  Invalid(absl::StrCat("Pipeline: ", text));
}

void CheckSchedules(const std::vector<Notice>& notices,
                    const std::vector<int>& ranks) {
  for (size_t i = 1; i < notices.size(); ++i) {
    if (notices[i].schedule == notices[0].schedule &&
        notices[i].schedule_name == notices[0].schedule_name) {
      continue;
    }
    const bool named = notices[i].schedule_name != notices[0].schedule_name;
    Fail(absl::StrCat("argument schedule: rank ", ranks[i], " has ",
                      notices[i].schedule_name, ", rank ", ranks[0], " has ",
                      named ? notices[0].schedule_name
                            : "one of that name with other actions"));
  }
}

void CheckShapes(const std::vector<Notice>& notices,
                 const std::vector<int>& ranks) {
  struct Given {
    Notice::Stage stage;
    int rank;
  };
  std::map<int, Given> all;
  for (size_t i = 0; i < notices.size(); ++i) {
    for (const Notice::Stage& stage : notices[i].stages) {
      all[stage.stage] = {stage, ranks[i]};
    }
  }
  for (const auto& [number, given] : all) {
    if (number == 0) continue;
    const Given& before = all[number - 1];
    if (before.stage.output == given.stage.input) continue;
    Fail(absl::StrCat("argument stages: stage ", number - 1, " of rank ",
                      before.rank, " has the output ", before.stage.output,
                      ", stage ", number, " of rank ", given.rank,
                      " has the input ", given.stage.input));
  }
}

}  // namespace

Tensor MakeTensor(void* memory, const PipelineShape& shape) {
  return {memory, shape.data_type, shape.shape};
}

Tensor MakeView(const PipelineShape& shape) {
  alignas(64) static char memory;
  return MakeTensor(&memory, shape);
}

void AgreeOnPipeline(const std::shared_ptr<ProcessGroup>& group,
                     const PipelineSchedule& schedule,
                     const std::vector<PipelineStage>& stages) {
  std::vector<std::string> bytes;
  AllGatherObject(bytes, ToBytes(MakeNotice(*group, schedule, stages)),
                  {.group = group});
  const std::vector<int> ranks = group->ranks();
  std::vector<Notice> notices;
  for (size_t i = 0; i < bytes.size(); ++i) {
    notices.push_back(ToNotice(bytes[i]));
    if (notices[i].fault.empty()) continue;
    Fail(absl::StrCat("rank ", ranks[i], ": ", notices[i].fault));
  }
  CheckSchedules(notices, ranks);
  CheckShapes(notices, ranks);
}

}  // namespace muster::internal
