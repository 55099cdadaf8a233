#include "muster/pipeline.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
#include "client/groups/group_state.h"
#include "client/parallel/pipeline/agreement.h"
#include "client/parallel/pipeline/buffer_pool.h"
#include "muster/distributed.h"
#include "muster/pipeline_schedule.h"
#include "muster/process_group.h"

namespace muster {
namespace {

using internal::BufferPool;
using Buffer = BufferPool::Buffer;
using Kind = PipelineActionKind;
using SteadyClock = std::chrono::steady_clock;

// The first tag of the messages, which have one tag each.
constexpr int kFirstTag = 1 << 30;

// One microbatch in one stage. A receive is destroyed before its buffer.
struct Slot {
  // Kept from the receive or the computation until the last backward.
  Buffer input = nullptr;
  Buffer output_gradient = nullptr;
  // Kept until they are sent.
  Buffer output = nullptr;
  Buffer input_gradient = nullptr;
  Work input_receive = {};
  Work gradient_receive = {};
};

struct StartedSend {
  Buffer buffer;
  Work work;
};

class Stopwatch {
 public:
  explicit Stopwatch(std::chrono::nanoseconds& total)
      : total_(total), began_(SteadyClock::now()) {}
  ~Stopwatch() { total_ += SteadyClock::now() - began_; }

  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  std::chrono::nanoseconds& total_;
  const SteadyClock::time_point began_;
};

bool IsForward(Kind kind) {
  return kind == Kind::kForward || kind == Kind::kSendActivation ||
         kind == Kind::kReceiveActivation;
}

// The longest that a message takes in a step whose every computation and
// message takes no longer than `timeout`.
std::chrono::milliseconds ComputeMessageTimeout(
    const PipelineSchedule& schedule, std::chrono::milliseconds timeout) {
  const auto in_a_row = static_cast<int64_t>(
      schedule.Simulate([](const PipelineAction&) { return 1.0; }).makespan);
  return std::min(timeout, std::chrono::milliseconds::max() / in_a_row) *
         in_a_row;
}

std::string GetText(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace

struct Pipeline::Impl {
  Impl(PipelineSchedule the_schedule, std::vector<PipelineStage> the_stages,
       const PipelineOptions& options)
      : schedule(std::move(the_schedule)),
        group(options.group == nullptr ? WorldGroup() : options.group) {
    if (group->state()->IsForOthers("pipeline")) return;
    internal::AgreeOnPipeline(group, schedule, the_stages);
    message_timeout = ComputeMessageTimeout(schedule, group->timeout());
    stages.resize(schedule.stage_ranks.size());
    slots.resize(stages.size());
    for (PipelineStage& stage : the_stages) {
      const auto number = static_cast<size_t>(stage.stage);
      stages[number] = std::move(stage);
      slots[number].resize(static_cast<size_t>(schedule.microbatches));
    }
  }

  std::vector<double> Step(bool only_forward);
  void Run(const PipelineAction& action);
  void Forward(const PipelineAction& action);
  void Backward(const PipelineAction& action);
  void Call(const PipelineAction& action, const Slot& slot);
  void Send(const PipelineAction& action);
  void Receive(const PipelineAction& action);
  void Await(Work& receive);
  // Takes a buffer for this shape, after the return of those of messages that
  // have left.
  Buffer Take(const PipelineShape& shape);
  void FinishSends();
  // Ends the group, and drops all that the failed step has left.
  void Abort(const std::string& reason);

  const PipelineStage& GetStage(const PipelineAction& action) const {
    return stages[static_cast<size_t>(action.stage)];
  }
  Slot& GetSlot(int stage, int microbatch) {
    return slots[static_cast<size_t>(stage)][static_cast<size_t>(microbatch)];
  }
  bool IsHere(int stage) const { return GetRank(stage) == group->rank(); }
  int GetRank(int stage) const {
    return schedule.stage_ranks[static_cast<size_t>(stage)];
  }
  bool IsLast(int stage) const { return stage + 1 == schedule.stages(); }

  const PipelineSchedule schedule;
  const std::shared_ptr<ProcessGroup> group;
  // By stage, also those of other ranks, which are empty.
  std::vector<PipelineStage> stages;
  // The pool outlives the buffers.
  BufferPool pool;
  // By stage and microbatch; no microbatches for stages of other ranks.
  std::vector<std::vector<Slot>> slots;
  std::vector<StartedSend> sends;
  std::vector<double> losses;
  std::chrono::milliseconds message_timeout{0};
  // Whether the step that runs has no backwards.
  bool evaluates = false;
  // The action that runs; null while the last sends leave.
  const PipelineAction* current = nullptr;
  PipelineTimes times;
};

std::vector<double> Pipeline::Impl::Step(bool only_forward) {
  if (group->state()->IsForOthers("pipeline step")) return {};
  evaluates = only_forward;
  internal::ThrowIfFailed(internal::ErrorSource::kBackend, group->status());
  times = {};
  const Stopwatch stopwatch(times.step);
  const bool has_loss = IsHere(schedule.stages() - 1);
  losses.assign(has_loss ? static_cast<size_t>(schedule.microbatches) : 0, 0);
  try {
    for (const PipelineAction& action :
         schedule.actions[static_cast<size_t>(group->rank())]) {
      if (evaluates && !IsForward(action.kind)) continue;
      current = &action;
      Run(action);
    }
    current = nullptr;
    FinishSends();
  } catch (...) {
    Abort(GetText(std::current_exception()));
    throw;
  }
  return std::move(losses);
}

void Pipeline::Impl::Run(const PipelineAction& action) {
  switch (action.kind) {
    case Kind::kForward:
      return Forward(action);
    case Kind::kBackward:
    case Kind::kBackwardInput:
    case Kind::kBackwardWeight:
      return Backward(action);
    case Kind::kSendActivation:
    case Kind::kSendGradient:
      return Send(action);
    case Kind::kReceiveActivation:
    case Kind::kReceiveGradient:
      return Receive(action);
  }
}

void Pipeline::Impl::Forward(const PipelineAction& action) {
  Slot& slot = GetSlot(action.stage, action.microbatch);
  Await(slot.input_receive);
  slot.output = Take(GetStage(action).output);
  if (IsLast(action.stage))
    slot.output_gradient = Take(GetStage(action).output);
  Call(action, slot);
  if (IsLast(action.stage)) {
    slot.output = nullptr;
  } else if (IsHere(action.stage + 1)) {
    GetSlot(action.stage + 1, action.microbatch).input = std::move(slot.output);
  }
  if (!evaluates) return;
  slot.input = nullptr;
  slot.output_gradient = nullptr;
}

void Pipeline::Impl::Backward(const PipelineAction& action) {
  Slot& slot = GetSlot(action.stage, action.microbatch);
  const bool first = action.stage == 0;
  const bool has_input = action.kind != Kind::kBackwardWeight;
  if (has_input) {
    Await(slot.gradient_receive);
    if (!first) slot.input_gradient = Take(*GetStage(action).input);
  }
  Call(action, slot);
  if (has_input && !first && IsHere(action.stage - 1)) {
    GetSlot(action.stage - 1, action.microbatch).output_gradient =
        std::move(slot.input_gradient);
  }
  if (action.kind != Kind::kBackwardInput) {
    slot.input = nullptr;
    slot.output_gradient = nullptr;
  }
}

void Pipeline::Impl::Call(const PipelineAction& action, const Slot& slot) {
  const PipelineStage& stage = GetStage(action);
  const int microbatch = action.microbatch;
  const auto view = [](const Buffer& buffer, const PipelineShape& shape) {
    return buffer == nullptr ? Tensor()
                             : internal::MakeTensor(buffer.get(), shape);
  };
  const PipelineShape input_shape = stage.input.value_or(PipelineShape());
  const Tensor input = view(slot.input, input_shape);
  const Tensor input_gradient = view(slot.input_gradient, input_shape);
  const Tensor output = view(slot.output, stage.output);
  const Tensor output_gradient = view(slot.output_gradient, stage.output);
  const Stopwatch stopwatch(times.compute);
  if (action.kind == Kind::kForward) {
    stage.forward(microbatch, input, output);
    if (stage.loss != nullptr) {
      losses[static_cast<size_t>(microbatch)] =
          stage.loss(microbatch, output, output_gradient);
    }
  } else if (action.kind == Kind::kBackward && stage.backward != nullptr) {
    stage.backward(microbatch, input, output_gradient, input_gradient);
  } else {
    if (action.kind != Kind::kBackwardWeight) {
      stage.backward_input(microbatch, input, output_gradient, input_gradient);
    }
    if (action.kind != Kind::kBackwardInput) {
      stage.backward_weight(microbatch, input, output_gradient);
    }
  }
}

void Pipeline::Impl::Send(const PipelineAction& action) {
  Slot& slot = GetSlot(action.stage, action.microbatch);
  const bool forth = action.kind == Kind::kSendActivation;
  const PipelineStage& stage = GetStage(action);
  Buffer buffer = std::move(forth ? slot.output : slot.input_gradient);
  const Tensor tensor =
      internal::MakeTensor(buffer.get(), forth ? stage.output : *stage.input);
  // Two tags for each stage and microbatch: one of what it sends forth, and one
  // of what it sends back.
  const int tag =
      kFirstTag +
      2 * (action.stage * schedule.microbatches + action.microbatch) +
      (forth ? 0 : 1);
  Work work = group->Isend(
      tensor, std::nullopt,
      {.tag = tag,
       .timeout = message_timeout,
       .group_dst = GetRank(forth ? action.stage + 1 : action.stage - 1)});
  sends.push_back({std::move(buffer), std::move(work)});
}

void Pipeline::Impl::Receive(const PipelineAction& action) {
  Slot& slot = GetSlot(action.stage, action.microbatch);
  const bool forth = action.kind == Kind::kReceiveActivation;
  const PipelineStage& stage = GetStage(action);
  const PipelineShape& shape = forth ? *stage.input : stage.output;
  const int sender = forth ? action.stage - 1 : action.stage + 1;
  Buffer& buffer = forth ? slot.input : slot.output_gradient;
  buffer = Take(shape);
  const int tag = kFirstTag +
                  2 * (sender * schedule.microbatches + action.microbatch) +
                  (forth ? 0 : 1);
  (forth ? slot.input_receive : slot.gradient_receive) = group->Irecv(
      internal::MakeTensor(buffer.get(), shape), std::nullopt,
      {.tag = tag, .timeout = message_timeout, .group_src = GetRank(sender)});
}

void Pipeline::Impl::Await(Work& receive) {
  const Stopwatch stopwatch(times.wait);
  receive.Wait();
  receive = Work();
}

Buffer Pipeline::Impl::Take(const PipelineShape& shape) {
  sends.erase(std::remove_if(sends.begin(), sends.end(),
                             [](const StartedSend& send) {
                               return send.work.IsSuccess();
                             }),
              sends.end());
  return pool.Take(internal::MakeView(shape).bytes());
}

void Pipeline::Impl::FinishSends() {
  for (StartedSend& send : sends) send.work.Wait();
  sends.clear();
}

void Pipeline::Impl::Abort(const std::string& reason) {
  // Has no effect if the group has ended already.
  group->Abort(current == nullptr
                   ? reason
                   : absl::StrCat("pipeline stage ", current->stage,
                                  ", microbatch ", current->microbatch, " (",
                                  current->ToText(), "): ", reason));
  // Nothing waits for the group now.
  sends.clear();
  for (auto& stage : slots) stage = std::vector<Slot>(stage.size());
}

std::vector<Tensor> PipelineShape::Unpack(const Tensor& packed) const {
  const Tensor expected = internal::MakeTensor(packed.data(), *this);
  if (tensors.empty() || packed.data_type() != expected.data_type() ||
      packed.bytes() != expected.bytes()) {
    internal::Invalid(absl::StrCat("argument packed: ", packed.Describe(),
                                   " is not ", internal::DescribeShape(*this)));
  }
  std::vector<Tensor> all;
  auto* memory = static_cast<std::byte*>(packed.data());
  for (const PipelineShape& one : tensors) {
    all.push_back(internal::MakeTensor(memory, one));
    memory += internal::CountAlignedBytes(one);
  }
  return all;
}

Pipeline::Pipeline(PipelineSchedule schedule, std::vector<PipelineStage> stages,
                   const PipelineOptions& options)
    : impl_(std::make_unique<Impl>(std::move(schedule), std::move(stages),
                                   options)) {}

Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;
Pipeline::~Pipeline() = default;

std::vector<double> Pipeline::Step() {
  return impl_->Step(/*only_forward=*/false);
}

std::vector<double> Pipeline::Evaluate() {
  return impl_->Step(/*only_forward=*/true);
}

PipelineTimes Pipeline::last_times() const { return impl_->times; }

}  // namespace muster
