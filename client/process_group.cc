#include "muster/process_group.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "client/control/continuations.h"
#include "client/control/deadline.h"
#include "client/control/throw.h"
#include "client/groups/group_state.h"
#include "muster/base/status.h"
#include "muster/errors.h"
#include "muster/prepared.h"

namespace muster {
namespace {

using dataplane::Collective;
using dataplane::CollectiveKind;
using internal::CheckNotNegative;
using internal::GroupState;

void Add(const Tensor& tensor, Collective::Tensors& list) {
  list.push_back(tensor);
}
void Add(const std::vector<Tensor>& tensors, Collective::Tensors& list) {
  list.assign(tensors.begin(), tensors.end());
}

template <typename Options>
Collective MakeReduction(CollectiveKind kind, const Options& options) {
  Collective collective;
  collective.kind = kind;
  internal::SetReduction(options.op, options.factor, collective);
  collective.timeout = CheckNotNegative(options.timeout);
  return collective;
}

Collective MakeMovement(CollectiveKind kind,
                        std::chrono::milliseconds timeout) {
  Collective collective;
  collective.kind = kind;
  collective.timeout = CheckNotNegative(timeout);
  return collective;
}

// Returns the device in BarrierOptions::device_ids, for a group with `backend`.
int BarrierDevice(const std::vector<int>& device_ids,
                  const std::string& backend) {
  const auto refuse = [](const std::string& text) {
    internal::Throw(internal::ErrorSource::kControl,
                    InvalidArgumentError(text));
  };
  if (backend != "nccl" && !absl::StrContains(backend, "cuda:nccl")) {
    refuse(absl::StrCat(
        "Function argument device_ids not supported for the selected backend ",
        backend));
  }
  if (device_ids.size() > 1 || device_ids.front() < 0) {
    refuse(absl::StrCat(
        "BarrierOptions::device_ids must be one device, not negative, but was ",
        "{", absl::StrJoin(device_ids, ", "), "}"));
  }
  return device_ids.front();
}

// Returns what `make` makes, for a call that counts: bad arguments that it
// finds use up a number, as those do that the data plane finds.
template <typename Make>
Collective MakeCounted(GroupState& group, CollectiveKind kind, Make&& make) {
  try {
    return std::forward<Make>(make)();
  } catch (const DistError& error) {
    group.UseUpNumber(kind, error.status());
    throw;
  }
}

template <typename Make>
Work RunMade(GroupState& group, CollectiveKind kind, bool async_op,
             Make&& make) {
  return group.Run(MakeCounted(group, kind, std::forward<Make>(make)),
                   async_op);
}

// The collectives of the verbs, from their arguments.

Collective MakeAllReduce(const Tensor& tensor,
                         const AllReduceOptions& options) {
  Collective collective = MakeReduction(CollectiveKind::kAllReduce, options);
  Add(tensor, collective.tensors);
  return collective;
}

Collective MakeBroadcast(const GroupState& group, const Tensor& tensor,
                         std::optional<int> src,
                         const BroadcastOptions& options) {
  Collective collective =
      MakeMovement(CollectiveKind::kBroadcast, options.timeout);
  Add(tensor, collective.tensors);
  collective.root = group.ToGroupRank({src, options.group_src}, "src");
  return collective;
}

Collective MakeReduce(const GroupState& group, const Tensor& tensor,
                      std::optional<int> dst, const ReduceOptions& options) {
  Collective collective = MakeReduction(CollectiveKind::kReduce, options);
  Add(tensor, collective.tensors);
  collective.root = group.ToGroupRank({dst, options.group_dst}, "dst");
  return collective;
}

// `inputs`, `outputs`: a tensor or a list.
template <typename Inputs, typename Outputs>
Collective MakeMovement(CollectiveKind kind, std::chrono::milliseconds timeout,
                        const Inputs& inputs, const Outputs& outputs) {
  Collective collective = MakeMovement(kind, timeout);
  Add(inputs, collective.inputs);
  Add(outputs, collective.outputs);
  return collective;
}

Collective MakeGather(const GroupState& group, const Tensor& tensor,
                      const std::vector<Tensor>& gather_list,
                      std::optional<int> dst, const GatherOptions& options) {
  Collective collective = MakeMovement(CollectiveKind::kGather, options.timeout,
                                       tensor, gather_list);
  collective.root =
      group.ToGroupRank(internal::OrZero({dst, options.group_dst}), "dst");
  return collective;
}

Collective MakeScatter(const GroupState& group, const Tensor& tensor,
                       const std::vector<Tensor>& scatter_list,
                       std::optional<int> src, const ScatterOptions& options) {
  Collective collective = MakeMovement(CollectiveKind::kScatter,
                                       options.timeout, scatter_list, tensor);
  collective.root =
      group.ToGroupRank(internal::OrZero({src, options.group_src}), "src");
  return collective;
}

// The `count` elements of `whole` from `first` on.
Tensor Slice(const Tensor& whole, int64_t first, int64_t count) {
  auto* const data = static_cast<std::byte*>(whole.data()) +
                     static_cast<size_t>(first) * whole.element_bytes();
  const std::span<const int64_t> shape(&count, 1);
  return whole.data_type() == DataType::kOpaque
             ? Tensor::Opaque(data, whole.element_bytes(), shape,
                              whole.device())
             : Tensor(data, whole.data_type(), shape, whole.device());
}

// With one dimension, as the parts of the other buffer have. An invalid tensor
// is refused later.
Tensor Flatten(const Tensor& tensor) {
  return Slice(tensor, 0, tensor.element_count());
}

// Two parts that overlap, the one that begins first in front.
std::optional<std::pair<size_t, size_t>> FindOverlap(
    const std::vector<int64_t>& counts,
    const std::vector<int64_t>& displacements) {
  std::vector<size_t> order;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) order.push_back(i);
  }
  std::ranges::sort(order, {}, [&](size_t i) { return displacements[i]; });
  for (size_t i = 1; i < order.size(); ++i) {
    const size_t before = order[i - 1];
    if (displacements[before] + counts[before] > displacements[order[i]]) {
      return std::pair(before, order[i]);
    }
  }
  return std::nullopt;
}

// `inputs`: a tensor or a list.
template <typename Inputs>
Collective MakeReduceScatter(CollectiveKind kind, const Tensor& output,
                             const Inputs& inputs,
                             const ReduceScatterOptions& options) {
  Collective collective = MakeReduction(kind, options);
  Add(inputs, collective.inputs);
  Add(output, collective.outputs);
  return collective;
}

// How an uneven buffer of a collective is named in its errors.
struct BufferName {
  const char* tensor;
  // Its parts are written, and so must not overlap.
  bool is_output;
};

// The parts of `buffer`, as the arguments `counts` and `displacements` say.
// `own`: the tensor of this rank alone. Errors: kInvalidArgument, naming the
// argument and its value.
StatusOr<std::vector<Tensor>> CutBuffer(
    const GroupState& group, BufferName name, const Tensor& buffer,
    const Tensor& own, const std::vector<int64_t>& counts,
    const std::vector<int64_t>& displacements) {
  const auto invalid = [](const auto&... pieces) {
    return InvalidArgumentError(absl::StrCat("argument ", pieces...));
  };
  const char* const own_name = name.is_output ? "input" : "output";
  if (!buffer.is_valid()) {
    return invalid(name.tensor, ": ", buffer.Validate().message());
  }
  if (!own.is_valid()) {
    return invalid(own_name, ": ", own.Validate().message());
  }
  const auto ranks = static_cast<size_t>(group.size());
  if (counts.size() != ranks) {
    return invalid("counts: has ", counts.size(), " values for ", ranks,
                   " ranks");
  }
  if (!displacements.empty() && displacements.size() != ranks) {
    return invalid("displacements: has ", displacements.size(), " values for ",
                   ranks, " ranks");
  }
  const int64_t size = buffer.element_count();
  std::vector<Tensor> parts;
  parts.reserve(ranks);
  int64_t next = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const int64_t count = counts[rank];
    if (count < 0) return invalid("counts[", rank, "]: negative value ", count);
    const int64_t first = displacements.empty() ? next : displacements[rank];
    if (first < 0) {
      return invalid("displacements[", rank, "]: negative value ", first);
    }
    if (first > size || count > size - first) {
      return invalid(displacements.empty() ? "counts[" : "displacements[", rank,
                     "]: ", count, " elements from ", first,
                     " on are beyond the ", size, " of ", name.tensor, ", ",
                     buffer.Describe());
    }
    next = first + count;
    parts.push_back(Slice(buffer, first, count));
  }
  const auto rank = static_cast<size_t>(group.rank());
  if (counts[rank] != own.element_count()) {
    return invalid("counts[", rank, "]: ", counts[rank],
                   " elements, but this rank's ", own_name, " is ",
                   own.Describe());
  }
  if (name.is_output && !displacements.empty()) {
    const auto clash = FindOverlap(counts, displacements);
    if (clash.has_value()) {
      return invalid("displacements[", clash->second,
                     "]: ", counts[clash->second], " elements from ",
                     displacements[clash->second], " on overlap the ",
                     counts[clash->first], " from displacements[", clash->first,
                     "] = ", displacements[clash->first]);
    }
  }
  return parts;
}

Collective MakeAllToAllSingle(const Tensor& output, const Tensor& input,
                              const AllToAllSingleOptions& options) {
  Collective collective = MakeMovement(CollectiveKind::kAllToAllSingle,
                                       options.timeout, input, output);
  collective.input_splits = options.input_split_sizes;
  collective.output_splits = options.output_split_sizes;
  return collective;
}

Collective MakeAllGather(const Tensor& input,
                         std::chrono::milliseconds timeout) {
  Collective collective = MakeMovement(CollectiveKind::kAllGather, timeout);
  Add(Flatten(input), collective.inputs);
  return collective;
}

Collective MakeReduceScatterV(const Tensor& output,
                              const ReduceScatterVOptions& options) {
  Collective collective =
      MakeReduction(CollectiveKind::kReduceScatter, options);
  Add(Flatten(output), collective.outputs);
  return collective;
}

// Sets `list` of `collective` to the parts of `buffer`: see CutBuffer. A bad
// argument of a collective that is not prepared uses up its number.
void SetParts(GroupState& group, BufferName name, const Tensor& buffer,
              const Tensor& own, const std::vector<int64_t>& counts,
              const std::vector<int64_t>& displacements, Collective& collective,
              Collective::Tensors& list, bool is_prepared) {
  // A rank outside the group does nothing.
  if (!group.is_member()) return;
  const StatusOr<std::vector<Tensor>> parts =
      CutBuffer(group, name, buffer, own, counts, displacements);
  if (parts.ok()) return Add(*parts, list);
  group.Refuse(std::move(collective), parts.status(), is_prepared);
}

Collective MakeBarrier(const GroupState& group, const BarrierOptions& options) {
  Collective collective =
      MakeMovement(CollectiveKind::kBarrier, options.timeout);
  if (!options.device_ids.empty() && group.is_member()) {
    collective.device =
        BarrierDevice(options.device_ids, group.options().backend);
  }
  return collective;
}

WorkResult ToWorkResult(const DistError& error) {
  if (IsDeadlineExceeded(error.status())) return WorkResult::kTimeout;
  if (dynamic_cast<const DistNetworkError*>(&error) != nullptr) {
    return WorkResult::kCommError;
  }
  const bool is_argument =
      IsInvalidArgument(error.status()) || IsUnimplemented(error.status());
  return is_argument || dynamic_cast<const DistBackendError*>(&error) == nullptr
             ? WorkResult::kUnknown
             : WorkResult::kCommError;
}

}  // namespace

namespace internal {

void SetReduction(const ReduceOperator& op, double factor,
                  Collective& collective) {
  if (factor != 1 && op.op() != ReduceOp::kPremulSum) {
    Throw(ErrorSource::kControl,
          InvalidArgumentError(absl::StrCat("argument factor: ", factor,
                                            " is for premul_sum alone, but the "
                                            "reduction is ",
                                            dataplane::ReduceOpName(op.op()))));
  }
  collective.reduce_op = op.op();
  collective.factor = factor;
  if (op.op() == ReduceOp::kUser) collective.function = op.function();
}

}  // namespace internal

Work::Work(std::shared_ptr<dataplane::Work> work,
           std::shared_ptr<internal::GroupState> group,
           std::span<const Tensor> result)
    : work_(std::move(work)), group_(std::move(group)) {
  SetResult(result);
}

void Work::AddResults(std::span<const Tensor> results) {
  more_results_.assign(results.begin(), results.end());
}

std::vector<Tensor> Work::ResultTensors() const {
  std::vector<Tensor> tensors;
  if (first_result_.has_value()) tensors.push_back(*first_result_);
  tensors.insert(tensors.end(), more_results_.begin(), more_results_.end());
  return tensors;
}

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    Finish();
    work_ = std::move(other.work_);
    group_ = std::move(other.group_);
    continuations_number_ = other.continuations_number_;
    first_result_ = std::move(other.first_result_);
    more_results_ = std::move(other.more_results_);
    waited_ = other.waited_;
    future_ = std::move(other.future_);
  }
  return *this;
}

void Work::FinishStarted() noexcept {
  if (!group_->is_here()) {
    // Only the parent has the threads that would complete it.
    internal::KeepForParent(new auto(std::move(work_)));
    return;
  }
  if (!waited_ && !work_->IsCompleted()) work_->Synchronize().IgnoreError();
}

void Work::Wait() {
  if (work_ == nullptr) return;
  group_->CheckIsHere();
  const Status status = work_->Synchronize();
  if (!status.ok()) group_->ThrowFailure(status);
  waited_ = true;
}

bool Work::WaitFor(std::chrono::milliseconds timeout) {
  const auto until =
      internal::Deadline::After(CheckNotNegative(timeout), "WaitFor");
  if (work_ == nullptr) return true;
  group_->CheckIsHere();
  const Status status = work_->Wait(until.at);
  if (!work_->IsCompleted()) return false;
  if (!status.ok()) {
    if (!group_->AwaitExplained(status, until.at)) return false;
    Wait();
  }
  return true;
}

bool Work::IsCompleted() const {
  if (work_ == nullptr) return true;
  group_->CheckIsHere();
  if (!work_->IsCompleted()) return false;
  const Status status = work_->status();
  return status.ok() || group_->AwaitExplained(status, Instant::min());
}

bool Work::IsSuccess() const {
  return IsCompleted() && (work_ == nullptr || work_->status().ok());
}

std::exception_ptr Work::Exception() const {
  if (IsSuccess() || !IsCompleted()) return nullptr;
  try {
    group_->ThrowFailure(work_->status());
  } catch (...) {
    return std::current_exception();
  }
}

std::vector<Tensor> Work::Result() const {
  if (!IsCompleted() && !waited_) {
    internal::Throw(internal::ErrorSource::kControl,
                    FailedPreconditionError(
                        "Work needs to be completed before calling result(). "
                        "Should call wait() before result()."));
  }
  if (IsCompleted() && !IsSuccess()) group_->ThrowFailure(work_->status());
  return ResultTensors();
}

Future<std::vector<Tensor>> Work::GetFuture() {
  if (work_ != nullptr) group_->CheckIsHere();
  if (future_.has_value()) return *future_;
  std::shared_ptr<internal::Continuations> continuations;
  if (group_ != nullptr) {
    continuations = group_->continuations();
  } else if (continuations_number_ != 0) {
    continuations = internal::Continuations::Find(continuations_number_);
  } else {
    continuations = internal::Continuations::CreateUnnumbered();
  }
  auto state = std::make_shared<internal::FutureState<std::vector<Tensor>>>(
      std::move(continuations));
  state->value.emplace(ResultTensors());
  future_ = Future<std::vector<Tensor>>(state);
  if (work_ == nullptr) {
    state->Complete(nullptr);
    return *future_;
  }
  // This callback runs on the thread that moves data, so it only forwards:
  // finding the error may take a while.
  work_->OnCompletion(
      [state, group = group_, work = work_](const Status& status) {
        state->thread()->Run([state, group, work, status] {
          // The Work is complete only when its callbacks have returned. Waits
          // for that, so that the Work of a complete future is complete.
          if (state->thread()->IsThisThread()) work->Wait().IgnoreError();
          std::exception_ptr error;
          try {
            if (!status.ok()) group->ThrowFailure(status);
          } catch (...) {
            error = std::current_exception();
          }
          state->Complete(std::move(error));
        });
      });
  return *future_;
}

Future<WorkResult> Work::GetFutureResult() {
  return GetFuture().Then([](const Future<std::vector<Tensor>>& done) {
    try {
      done.Value();
      return WorkResult::kSuccess;
    } catch (const DistError& error) {
      return ToWorkResult(error);
    }
  });
}

int Work::SourceRank() const {
  if (work_ != nullptr) group_->CheckIsHere();
  const int rank = work_ == nullptr ? -1 : work_->source_rank();
  return rank < 0 ? -1 : group_->ToGlobalRank(rank);
}

ProcessGroup::ProcessGroup(std::shared_ptr<internal::GroupState> state)
    : state_(std::move(state)) {}

int ProcessGroup::rank() const { return state_->rank(); }

int ProcessGroup::size() const { return state_->size(); }

std::vector<int> ProcessGroup::ranks() const { return state_->ranks(); }

const std::string& ProcessGroup::name() const { return state_->options().name; }

const std::string& ProcessGroup::description() const {
  return state_->options().description;
}

std::string ProcessGroup::backend() const { return state_->options().backend; }

LastRun ProcessGroup::last_run(DeviceType device) const {
  return state_->last_run(device);
}

std::chrono::milliseconds ProcessGroup::timeout() const {
  return state_->options().timeout;
}

Work ProcessGroup::AllReduce(const Tensor& tensor,
                             const AllReduceOptions& options) {
  return RunMade(*state_, CollectiveKind::kAllReduce, options.async_op,
                 [&] { return MakeAllReduce(tensor, options); });
}

PreparedCollective ProcessGroup::PrepareAllReduce(
    const Tensor& tensor, const AllReduceOptions& options) {
  return state_->Prepare(MakeAllReduce(tensor, options));
}

Work ProcessGroup::Broadcast(const Tensor& tensor, std::optional<int> src,
                             const BroadcastOptions& options) {
  return RunMade(*state_, CollectiveKind::kBroadcast, options.async_op,
                 [&] { return MakeBroadcast(*state_, tensor, src, options); });
}

PreparedCollective ProcessGroup::PrepareBroadcast(
    const Tensor& tensor, std::optional<int> src,
    const BroadcastOptions& options) {
  return state_->Prepare(MakeBroadcast(*state_, tensor, src, options));
}

Work ProcessGroup::Reduce(const Tensor& tensor, std::optional<int> dst,
                          const ReduceOptions& options) {
  return RunMade(*state_, CollectiveKind::kReduce, options.async_op,
                 [&] { return MakeReduce(*state_, tensor, dst, options); });
}

PreparedCollective ProcessGroup::PrepareReduce(const Tensor& tensor,
                                               std::optional<int> dst,
                                               const ReduceOptions& options) {
  return state_->Prepare(MakeReduce(*state_, tensor, dst, options));
}

Work ProcessGroup::AllGather(const std::vector<Tensor>& tensor_list,
                             const Tensor& tensor,
                             const AllGatherOptions& options) {
  return RunMade(*state_, CollectiveKind::kAllGather, options.async_op, [&] {
    return MakeMovement(CollectiveKind::kAllGather, options.timeout, tensor,
                        tensor_list);
  });
}

PreparedCollective ProcessGroup::PrepareAllGather(
    const std::vector<Tensor>& tensor_list, const Tensor& tensor,
    const AllGatherOptions& options) {
  return state_->Prepare(MakeMovement(CollectiveKind::kAllGather,
                                      options.timeout, tensor, tensor_list));
}

Work ProcessGroup::AllGatherV(const Tensor& output, const Tensor& input,
                              const std::vector<int64_t>& counts,
                              const AllGatherVOptions& options) {
  Collective collective = MakeCounted(*state_, CollectiveKind::kAllGather, [&] {
    return MakeAllGather(input, options.timeout);
  });
  SetParts(*state_, {"output", /*is_output=*/true}, output, input, counts,
           options.displacements, collective, collective.outputs,
           /*is_prepared=*/false);
  return state_->Run(std::move(collective), options.async_op);
}

PreparedCollective ProcessGroup::PrepareAllGatherV(
    const Tensor& output, const Tensor& input,
    const std::vector<int64_t>& counts, const AllGatherVOptions& options) {
  Collective collective = MakeAllGather(input, options.timeout);
  SetParts(*state_, {"output", /*is_output=*/true}, output, input, counts,
           options.displacements, collective, collective.outputs,
           /*is_prepared=*/true);
  return state_->Prepare(std::move(collective));
}

Work ProcessGroup::ReduceScatterV(const Tensor& output, const Tensor& input,
                                  const std::vector<int64_t>& counts,
                                  const ReduceScatterVOptions& options) {
  Collective collective =
      MakeCounted(*state_, CollectiveKind::kReduceScatter,
                  [&] { return MakeReduceScatterV(output, options); });
  SetParts(*state_, {"input", /*is_output=*/false}, input, output, counts,
           options.displacements, collective, collective.inputs,
           /*is_prepared=*/false);
  return state_->Run(std::move(collective), options.async_op);
}

PreparedCollective ProcessGroup::PrepareReduceScatterV(
    const Tensor& output, const Tensor& input,
    const std::vector<int64_t>& counts, const ReduceScatterVOptions& options) {
  Collective collective = MakeReduceScatterV(output, options);
  SetParts(*state_, {"input", /*is_output=*/false}, input, output, counts,
           options.displacements, collective, collective.inputs,
           /*is_prepared=*/true);
  return state_->Prepare(std::move(collective));
}

Work ProcessGroup::AllGatherIntoTensor(const Tensor& output,
                                       const Tensor& input,
                                       const AllGatherOptions& options) {
  return RunMade(*state_, CollectiveKind::kAllGatherIntoTensor,
                 options.async_op, [&] {
                   return MakeMovement(CollectiveKind::kAllGatherIntoTensor,
                                       options.timeout, input, output);
                 });
}

PreparedCollective ProcessGroup::PrepareAllGatherIntoTensor(
    const Tensor& output, const Tensor& input,
    const AllGatherOptions& options) {
  return state_->Prepare(MakeMovement(CollectiveKind::kAllGatherIntoTensor,
                                      options.timeout, input, output));
}

Work ProcessGroup::Gather(const Tensor& tensor,
                          const std::vector<Tensor>& gather_list,
                          std::optional<int> dst,
                          const GatherOptions& options) {
  return RunMade(*state_, CollectiveKind::kGather, options.async_op, [&] {
    return MakeGather(*state_, tensor, gather_list, dst, options);
  });
}

PreparedCollective ProcessGroup::PrepareGather(
    const Tensor& tensor, const std::vector<Tensor>& gather_list,
    std::optional<int> dst, const GatherOptions& options) {
  return state_->Prepare(
      MakeGather(*state_, tensor, gather_list, dst, options));
}

Work ProcessGroup::Scatter(const Tensor& tensor,
                           const std::vector<Tensor>& scatter_list,
                           std::optional<int> src,
                           const ScatterOptions& options) {
  return RunMade(*state_, CollectiveKind::kScatter, options.async_op, [&] {
    return MakeScatter(*state_, tensor, scatter_list, src, options);
  });
}

PreparedCollective ProcessGroup::PrepareScatter(
    const Tensor& tensor, const std::vector<Tensor>& scatter_list,
    std::optional<int> src, const ScatterOptions& options) {
  return state_->Prepare(
      MakeScatter(*state_, tensor, scatter_list, src, options));
}

Work ProcessGroup::ReduceScatter(const Tensor& output,
                                 const std::vector<Tensor>& input_list,
                                 const ReduceScatterOptions& options) {
  return RunMade(*state_, CollectiveKind::kReduceScatter, options.async_op,
                 [&] {
                   return MakeReduceScatter(CollectiveKind::kReduceScatter,
                                            output, input_list, options);
                 });
}

PreparedCollective ProcessGroup::PrepareReduceScatter(
    const Tensor& output, const std::vector<Tensor>& input_list,
    const ReduceScatterOptions& options) {
  return state_->Prepare(MakeReduceScatter(CollectiveKind::kReduceScatter,
                                           output, input_list, options));
}

Work ProcessGroup::ReduceScatterTensor(const Tensor& output,
                                       const Tensor& input,
                                       const ReduceScatterOptions& options) {
  return RunMade(
      *state_, CollectiveKind::kReduceScatterTensor, options.async_op, [&] {
        return MakeReduceScatter(CollectiveKind::kReduceScatterTensor, output,
                                 input, options);
      });
}

PreparedCollective ProcessGroup::PrepareReduceScatterTensor(
    const Tensor& output, const Tensor& input,
    const ReduceScatterOptions& options) {
  return state_->Prepare(MakeReduceScatter(CollectiveKind::kReduceScatterTensor,
                                           output, input, options));
}

Work ProcessGroup::AllToAll(const std::vector<Tensor>& output_tensor_list,
                            const std::vector<Tensor>& input_tensor_list,
                            const AllToAllOptions& options) {
  return RunMade(*state_, CollectiveKind::kAllToAll, options.async_op, [&] {
    return MakeMovement(CollectiveKind::kAllToAll, options.timeout,
                        input_tensor_list, output_tensor_list);
  });
}

PreparedCollective ProcessGroup::PrepareAllToAll(
    const std::vector<Tensor>& output_tensor_list,
    const std::vector<Tensor>& input_tensor_list,
    const AllToAllOptions& options) {
  return state_->Prepare(MakeMovement(CollectiveKind::kAllToAll,
                                      options.timeout, input_tensor_list,
                                      output_tensor_list));
}

Work ProcessGroup::AllToAllSingle(const Tensor& output, const Tensor& input,
                                  const AllToAllSingleOptions& options) {
  return RunMade(*state_, CollectiveKind::kAllToAllSingle, options.async_op,
                 [&] { return MakeAllToAllSingle(output, input, options); });
}

PreparedCollective ProcessGroup::PrepareAllToAllSingle(
    const Tensor& output, const Tensor& input,
    const AllToAllSingleOptions& options) {
  return state_->Prepare(MakeAllToAllSingle(output, input, options));
}

void ProcessGroup::Send(const Tensor& tensor, std::optional<int> dst,
                        const SendOptions& options) {
  state_->CheckIsOther(state_->ToGroupRank({dst, options.group_dst}, "dst"),
                       "send");
  Isend(tensor, dst, options).Wait();
}

int ProcessGroup::Recv(const Tensor& tensor, std::optional<int> src,
                       const RecvOptions& options) {
  Work work = Irecv(tensor, src, options);
  work.Wait();
  // On a device the receive is not complete yet.
  if (rank() >= 0 && src.has_value()) return *src;
  if (rank() >= 0 && options.group_src.has_value()) {
    return state_->ToGlobalRank(*options.group_src);
  }
  return work.SourceRank();
}

Work ProcessGroup::Isend(const Tensor& tensor, std::optional<int> dst,
                         const SendOptions& options) {
  Collective collective = MakeMovement(CollectiveKind::kSend, options.timeout);
  Add(tensor, collective.inputs);
  collective.peer = state_->ToGroupRank({dst, options.group_dst}, "dst");
  collective.tag = options.tag;
  return state_->Run(std::move(collective), /*async_op=*/true);
}

Work ProcessGroup::Irecv(const Tensor& tensor, std::optional<int> src,
                         const RecvOptions& options) {
  Collective collective = MakeMovement(CollectiveKind::kRecv, options.timeout);
  Add(tensor, collective.outputs);
  collective.peer = dataplane::kAnyPeer;
  if (src.has_value() || options.group_src.has_value()) {
    collective.peer = state_->ToGroupRank({src, options.group_src}, "src");
    // The data plane would take a negative peer for any rank.
    if (collective.peer < 0 && rank() >= 0) {
      internal::Throw(internal::ErrorSource::kControl,
                      InvalidArgumentError(absl::StrCat(
                          "recv on group ", base::Quote(name()),
                          ": Invalid source rank: ", collective.peer)));
    }
  }
  collective.tag = options.tag;
  return state_->Run(std::move(collective), /*async_op=*/true);
}

Work ProcessGroup::Barrier(const BarrierOptions& options) {
  return RunMade(*state_, CollectiveKind::kBarrier, options.async_op,
                 [&] { return MakeBarrier(*state_, options); });
}

PreparedCollective ProcessGroup::PrepareBarrier(const BarrierOptions& options) {
  return state_->Prepare(MakeBarrier(*state_, options));
}

void ProcessGroup::MonitoredBarrier(const MonitoredBarrierOptions& options) {
  state_->MonitoredBarrier(CheckNotNegative(options.timeout),
                           options.wait_all_ranks);
}

void ProcessGroup::Abort(const std::string& reason) { state_->Abort(reason); }

Status ProcessGroup::status() const { return state_->status(); }

PreparedCollective::PreparedCollective(
    std::shared_ptr<internal::GroupState> group,
    std::shared_ptr<dataplane::PreparedCollective> prepared)
    : group_(std::move(group)), prepared_(std::move(prepared)) {}

void PreparedCollective::CheckPrepared() const {
  if (group_ != nullptr) return;
  internal::Throw(internal::ErrorSource::kControl,
                  InvalidArgumentError("this PreparedCollective holds nothing: "
                                       "it was not prepared, or was moved"));
}

void PreparedCollective::Run() {
  CheckPrepared();
  group_->Run(*prepared_);
}

Work PreparedCollective::Start() {
  CheckPrepared();
  return group_->Start(prepared_);
}

}  // namespace muster
