#include "muster/fully_shard.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <deque>
#include <exception>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/control/throw.h"
#include "client/groups/group_state.h"
#include "client/parallel/agreement/agreement.h"
#include "client/parallel/elements/float_conversion.h"
#include "client/parallel/shard/call_order.h"
#include "client/parallel/shard/counted_memory.h"
#include "client/parallel/shard/sharded_group.h"
#include "muster/distributed.h"
#include "muster/errors.h"

namespace muster {
namespace {

using internal::Agreement;
using internal::CallHeader;
using internal::CallKind;
using internal::CallOrder;
using internal::CountedBufferPool;
using internal::CountedMemory;
using internal::Invalid;
using internal::MemoryCounter;
using internal::ShardedGroup;
using internal::ShardTypes;

// The order of use is learned up to this length.
constexpr size_t kOrderMax = 65536;

ShardTypes FindTypes(const ShardGroup& group,
                     const FullyShardOptions& options) {
  ShardTypes types;
  types.shard = group.parameters[0].value.data_type();
  types.compute = options.compute_type.value_or(types.shard);
  types.reduce = options.reduce_type.value_or(types.shard);
  return types;
}

std::string GetLabel(const FullParameter& parameter, const std::string& group) {
  return absl::StrCat("parameter ", base::Quote(parameter.name), " of group ",
                      base::Quote(group));
}

// Why a parameter cannot be sharded; empty: it can.
std::string FindFault(const FullParameter& parameter, DataType type) {
  const Tensor& value = parameter.value;
  if (value.device().type != DeviceType::kCpu) return "it is not on the CPU";
  if (!internal::IsFloat(value.data_type())) {
    return "it must be float32, float64, float16 or bfloat16";
  }
  if (value.data_type() != type) {
    return absl::StrCat("the group's first one is ",
                        dataplane::DataTypeName(type));
  }
  if (value.shape().empty())
    return "it has no dimension: give it the shape {1}";
  for (const int64_t extent : value.shape()) {
    if (extent <= 0) return "it has no elements";
  }
  if (value.data() != nullptr && !value.is_valid()) {
    return value.Validate().message();
  }
  return "";
}

// Why the arguments are bad; empty: they are not. Then `agreement` has them.
std::string CheckGroups(const std::vector<ShardGroup>& groups,
                        const FullyShardOptions& options,
                        Agreement& agreement) {
  std::set<std::string> names;
  for (const ShardGroup& group : groups) {
    if (group.parameters.empty()) {
      return absl::StrCat("group ", base::Quote(group.name),
                          " has no parameters");
    }
    const ShardTypes types = FindTypes(group, options);
    for (const FullParameter& parameter : group.parameters) {
      const std::string label = GetLabel(parameter, group.name);
      const std::string text = parameter.value.Describe();
      const std::string fault = FindFault(parameter, types.shard);
      if (!fault.empty()) return absl::StrCat(label, ": ", text, ": ", fault);
      if (!names.insert(parameter.name).second) {
        return absl::StrCat(label, ": ", text, ": another one has this name");
      }
      agreement.Add(label, text);
    }
    const bool narrows = types.shard == DataType::kFloat32 &&
                         internal::IsFloat16Bits(types.compute);
    if (types.compute != types.shard && !narrows) {
      return absl::StrCat(
          "argument compute_type: ", dataplane::DataTypeName(types.compute),
          " for ", dataplane::DataTypeName(types.shard),
          " parameters of group ", base::Quote(group.name));
    }
    if (types.reduce != types.shard && types.reduce != types.compute) {
      return absl::StrCat(
          "argument reduce_type: ", dataplane::DataTypeName(types.reduce),
          " for ", dataplane::DataTypeName(types.shard),
          " parameters of group ", base::Quote(group.name));
    }
    agreement.Add(
        absl::StrCat("the types of group ", base::Quote(group.name)),
        absl::StrCat(dataplane::DataTypeName(types.compute), " to compute, ",
                     dataplane::DataTypeName(types.reduce), " to reduce"));
  }
  return "";
}

// The ranks of a program: the lines of a mesh of one or two dimensions.
struct ShardRanks {
  std::shared_ptr<ProcessGroup> group;
  // Null: there are no replicas.
  std::shared_ptr<ProcessGroup> replicate_group = nullptr;

  std::vector<std::shared_ptr<ProcessGroup>> GetGroups() const {
    if (replicate_group == nullptr) return {group};
    return {replicate_group, group};
  }
};

// Throws on all ranks, also those that wait for one of these, unless each of
// them takes part in its replicate_group or none has one.
void MeetReplicas(const ShardRanks& ranks) {
  const auto& [group, replicas] = ranks;
  const std::string what = "FullyShard";
  const bool is_outside = replicas != nullptr && replicas->rank() < 0;
  Work met;
  try {
    Agreement agreement(what);
    if (is_outside) {
      agreement.AddFault(InvalidArgumentError(
          "argument replicate_group: this process is in group, but not in "
          "replicate_group"));
    }
    agreement.Add("argument replicate_group",
                  replicas == nullptr ? "none" : "a group");
    agreement.Check({group});
    if (replicas == nullptr) return;
    // If one of the replicas does not come here, only other ranks of `group`
    // may hear of that. So all of them look together.
    met = replicas->Barrier({.async_op = true});
    std::string failure;
    // Whether a rank waits, and whether one has failed.
    int64_t state[2] = {1, 0};
    do {
      try {
        state[0] = met.WaitFor(std::chrono::milliseconds(10)) ? 0 : 1;
      } catch (const DistError& error) {
        failure = error.what();
      }
      state[1] = failure.empty() ? 0 : 1;
      group->AllReduce(Tensor(state, {2}), {.op = ReduceOp::kMax});
    } while (state[0] == 1 && state[1] == 0);
    if (state[1] == 0) {
      // The highest shard of the replicas, and the lowest.
      int64_t shards[2] = {group->rank(), -group->rank()};
      replicas->AllReduce(Tensor(shards, {2}), {.op = ReduceOp::kMax});
      if (shards[0] != -shards[1]) {
        failure = absl::StrCat("argument replicate_group: its ranks are ranks ",
                               -shards[1], " to ", shards[0],
                               " of their groups; they must hold one shard");
      }
    }
    Agreement end(what);
    if (!failure.empty()) end.AddFault(InvalidArgumentError(failure));
    end.Check({group});
  } catch (const DistError& error) {
    if (replicas != nullptr) replicas->Abort(error.what());
    throw;
  }
}

}  // namespace

class FullyShard::Impl {
 public:
  Impl(const std::vector<ShardGroup>& groups, const FullyShardOptions& options,
       ShardRanks ranks);

  // Runs `body`, unless a call before has failed: then throws its error. If the
  // body fails, no rank may wait for this one: ends the groups.
  template <typename Body>
  auto Guarded(const Body& body) {
    ThrowIfFailed();
    try {
      return body();
    } catch (const std::exception& error) {
      error_ = std::current_exception();
      Abort(error.what());
      throw;
    }
  }

  // Throws the error of a call before that has failed.
  void ThrowIfFailed() const {
    if (error_ != nullptr) std::rethrow_exception(error_);
  }
  ShardedGroup& GroupAt(int group) { return *FindState(group).data; }
  void CheckParameter(int group, int parameter);

  void Unshard(int group);
  void WaitUnshard(int group);
  void SetPrefetchOrder(std::vector<int> order);
  void Reshard(int group);
  void GradientsReady(int group);
  void set_sync(bool sync) { sync_ = sync; }
  void FinishStep();
  double GradientNorm(double norm_type);
  void ScaleGradients(double factor);
  void GatherFullState(
      const std::function<void(const std::string&, const Tensor&)>& receive);
  // Throws if a call before has failed, or if gradients are being reduced.
  void CheckFinished(const char* call) const;

  const auto& groups() const { return groups_; }
  const MemoryStats& memory() const { return counter_.stats(); }
  const TrafficStats& traffic() const { return traffic_; }

 private:
  // A group of parameters and its all-gather.
  struct GroupState {
    std::unique_ptr<ShardedGroup> data;
    // The gather's buffer; empty: nothing was gathered, or it was copied out.
    CountedMemory buffer;
    Work work;
    // The sum of the gradients of steps without sync.
    CountedMemory accumulated;
  };

  // Gradients that are being reduced, first over the group and then over the
  // replicas.
  struct Reduction {
    int group = 0;
    CountedMemory buffer;
    // Whether the buffer goes back to the pool.
    bool pooled = false;
    bool over_replicas = false;
    Work work;
  };

  GroupState& FindState(int group);
  int64_t ranks() const { return group_->size(); }
  bool has_replicas() const { return ranks_.replicate_group != nullptr; }
  void Abort(const std::string& reason);
  void StartGather(int group);
  // Waits for the gathers that were started before the group's, and for that,
  // and checks that all ranks gathered the same.
  void FinishGather(int group);
  void DropGather(GroupState& state, int group);
  int FindNext(int group);
  std::byte* OwnBlock(const Reduction& reduction);
  void StartReduceScatter(Reduction& reduction);
  // Goes on with the reductions that were started. Not `all`: as far as needed
  // for the next one, which is up to the replicas.
  void FinishReductions(bool all);
  void CheckCallOrder();

  const ShardRanks ranks_;
  const std::shared_ptr<ProcessGroup> group_;
  const int rank_;
  std::exception_ptr error_;
  MemoryCounter counter_;
  TrafficStats traffic_;
  std::vector<std::string> names_;
  std::vector<GroupState> groups_;
  std::unique_ptr<CountedBufferPool> gather_buffers_;
  std::unique_ptr<CountedBufferPool> reduce_buffers_;
  std::deque<int> gathering_;
  std::deque<Reduction> reductions_;
  bool sync_ = true;
  CallOrder calls_;
  // The order of use, and the place after the last group that was used.
  std::vector<int> order_;
  size_t next_ = 0;
  // Whether the program has set the order.
  bool is_order_set_ = false;
  // The order of this step.
  std::vector<int> used_;
};

FullyShard::Impl::Impl(const std::vector<ShardGroup>& groups,
                       const FullyShardOptions& options, ShardRanks ranks)
    : ranks_(std::move(ranks)), group_(ranks_.group), rank_(group_->rank()) {
  MeetReplicas(ranks_);
  Agreement agreement("FullyShard");
  agreement.Add("the number of ranks of group", absl::StrCat(group_->size()));
  agreement.Add(
      "the number of replicas",
      absl::StrCat(has_replicas() ? ranks_.replicate_group->size() : 1));
  const std::string fault = CheckGroups(groups, options, agreement);
  if (!fault.empty()) agreement.AddFault(InvalidArgumentError(fault));
  agreement.Check(ranks_.GetGroups());
  internal::AllocateTogether("FullyShard", ranks_.GetGroups(), [&] {
    for (const ShardGroup& group : groups) {
      names_.push_back(group.name);
      groups_.emplace_back().data = std::make_unique<ShardedGroup>(
          group, FindTypes(group, options), rank_, group_->size(), counter_,
          options.allocate_shards);
    }
  });
  int64_t gather_bytes = 0;
  int64_t reduce_bytes = 0;
  for (const GroupState& state : groups_) {
    gather_bytes = std::max(gather_bytes, state.data->gather_block_bytes());
    reduce_bytes = std::max(reduce_bytes, state.data->reduce_block_bytes());
    if (!has_replicas()) continue;
    ranks_.replicate_group->Broadcast(state.data->ShardBlock(), {},
                                      {.group_src = 0});
  }
  gather_buffers_ = std::make_unique<CountedBufferPool>(
      group_, counter_, &MemoryStats::gather_buffers,
      gather_bytes * this->ranks());
  reduce_buffers_ = std::make_unique<CountedBufferPool>(
      group_, counter_, &MemoryStats::reduce_buffers,
      reduce_bytes * this->ranks());
}

FullyShard::Impl::GroupState& FullyShard::Impl::FindState(int group) {
  if (group < 0 || static_cast<size_t>(group) >= groups_.size()) {
    Invalid(absl::StrCat("FullyShard: argument group: ", group, " of ",
                         groups_.size(), " groups"));
  }
  return groups_[static_cast<size_t>(group)];
}

void FullyShard::Impl::CheckParameter(int group, int parameter) {
  const ShardedGroup& data = GroupAt(group);
  const size_t count = data.parameter_names().size();
  if (parameter >= 0 && static_cast<size_t>(parameter) < count) return;
  Invalid(absl::StrCat("FullyShard: argument parameter: ", parameter, " of ",
                       count, " parameters of group ",
                       base::Quote(data.name())));
}

void FullyShard::Impl::Abort(const std::string& reason) {
  // No effect on a group that has failed.
  group_->Abort(reason);
  if (has_replicas()) ranks_.replicate_group->Abort(reason);
}

void FullyShard::Impl::StartGather(int group) {
  GroupState& state = FindState(group);
  const int64_t block = state.data->gather_block_bytes();
  state.buffer = gather_buffers_->Take();
  std::byte* const buffer = state.buffer.data();
  state.data->WriteBlock(calls_.Add(CallKind::kGather, group), buffer);
  gathering_.push_back(group);
  state.work = group_->AllGatherIntoTensor(
      Tensor(buffer, DataType::kUint8, {block * ranks()}),
      Tensor(buffer + rank_ * block, DataType::kUint8, {block}),
      {.async_op = true});
  traffic_.all_gather += (ranks() - 1) * block;
}

void FullyShard::Impl::FinishGather(int group) {
  while (std::find(gathering_.begin(), gathering_.end(), group) !=
         gathering_.end()) {
    GroupState& state = FindState(gathering_.front());
    state.work.Wait();
    gathering_.pop_front();
    const std::string difference = internal::DescribeDifference(
        state.data->ReadHeaders(state.buffer.data()), group_->ranks(), names_);
    if (!difference.empty()) {
      Invalid(absl::StrCat(
          "FullyShard: ranks gather groups in different orders: ", difference));
    }
  }
}

void FullyShard::Impl::DropGather(GroupState& state, int group) {
  FinishGather(group);
  if (!state.buffer.empty()) gather_buffers_->Give(std::move(state.buffer));
}

void FullyShard::Impl::Unshard(int group) {
  const GroupState& state = FindState(group);
  if (!state.data->is_whole() && state.buffer.empty()) StartGather(group);
}

void FullyShard::Impl::WaitUnshard(int group) {
  Unshard(group);
  GroupState& state = FindState(group);
  if (!state.data->is_whole()) {
    FinishGather(group);
    state.data->CopyValues(state.buffer.data());
    gather_buffers_->Give(std::move(state.buffer));
  }
  if (!state.data->ValuesAreCurrent()) {
    internal::Throw(
        internal::ErrorSource::kControl,
        FailedPreconditionError(absl::StrCat(
            "FullyShard: the shards of group ", base::Quote(state.data->name()),
            " have changed since it was gathered: call Unshard and WaitUnshard "
            "after Optimizer::Step")));
  }
  const int next = FindNext(group);
  if (next >= 0) Unshard(next);
}

int FullyShard::Impl::FindNext(int group) {
  if (used_.size() < kOrderMax) used_.push_back(group);
  // From the place on, else from the beginning.
  auto found = std::find(order_.begin() + static_cast<ptrdiff_t>(next_),
                         order_.end(), group);
  if (found == order_.end()) {
    found = std::find(order_.begin(), order_.end(), group);
  }
  if (found == order_.end()) return -1;
  next_ = static_cast<size_t>(found - order_.begin()) + 1;
  return next_ < order_.size() ? order_[next_] : -1;
}

void FullyShard::Impl::SetPrefetchOrder(std::vector<int> order) {
  for (const int group : order) FindState(group);
  is_order_set_ = !order.empty();
  order_ = std::move(order);
  next_ = 0;
  used_.clear();
}

void FullyShard::Impl::Reshard(int group) {
  GroupState& state = FindState(group);
  DropGather(state, group);
  state.data->FreeValues();
}

void FullyShard::Impl::GradientsReady(int group) {
  Reshard(group);
  GroupState& state = FindState(group);
  const int64_t bytes = state.data->reduce_block_bytes() * ranks();
  if (!sync_) {
    const bool first = state.accumulated.empty();
    if (first) {
      state.accumulated = {counter_, &MemoryStats::reduce_buffers, bytes};
    }
    state.data->MoveGradients(state.accumulated.data(), /*add=*/!first);
    return;
  }
  FinishReductions(/*all=*/false);
  Reduction& reduction = reductions_.emplace_back();
  reduction.group = group;
  reduction.pooled = state.accumulated.empty();
  reduction.buffer =
      reduction.pooled ? reduce_buffers_->Take() : std::move(state.accumulated);
  state.data->MoveGradients(reduction.buffer.data(), !reduction.pooled);
  StartReduceScatter(reduction);
}

std::byte* FullyShard::Impl::OwnBlock(const Reduction& reduction) {
  return reduction.buffer.data() +
         rank_ * GroupAt(reduction.group).reduce_block_bytes();
}

void FullyShard::Impl::StartReduceScatter(Reduction& reduction) {
  const ShardedGroup& data = GroupAt(reduction.group);
  const int64_t elements = data.layout().block_elements;
  const DataType type = data.types().reduce;
  calls_.Add(CallKind::kReduce, reduction.group);
  reduction.work = group_->ReduceScatterTensor(
      Tensor(OwnBlock(reduction), type, {elements}),
      Tensor(reduction.buffer.data(), type, {elements * ranks()}),
      {.op = ReduceOp::kAvg, .async_op = true});
  traffic_.reduce_scatter += (ranks() - 1) * data.reduce_block_bytes();
}

void FullyShard::Impl::FinishReductions(bool all) {
  while (!reductions_.empty()) {
    Reduction& reduction = reductions_.front();
    ShardedGroup& data = GroupAt(reduction.group);
    reduction.work.Wait();
    if (has_replicas() && !reduction.over_replicas) {
      const int64_t replicas = ranks_.replicate_group->size();
      reduction.over_replicas = true;
      reduction.work = ranks_.replicate_group->AllReduce(
          Tensor(OwnBlock(reduction), data.types().reduce,
                 {data.layout().block_elements}),
          {.op = ReduceOp::kAvg, .async_op = true});
      traffic_.all_reduce +=
          2 * (replicas - 1) * data.reduce_block_bytes() / replicas;
      if (!all) return;
      continue;
    }
    data.AddReduced(OwnBlock(reduction));
    if (reduction.pooled) reduce_buffers_->Give(std::move(reduction.buffer));
    reductions_.pop_front();
  }
}

void FullyShard::Impl::CheckCallOrder() {
  // The largest digest and, negated, the smallest; without the sign.
  const auto digest = static_cast<int64_t>(calls_.digest() >> 1);
  int64_t extremes[] = {digest, -digest};
  const Tensor tensor(extremes, {2});
  group_->AllReduce(tensor, {.op = ReduceOp::kMax});
  if (has_replicas()) {
    ranks_.replicate_group->AllReduce(tensor, {.op = ReduceOp::kMax});
  }
  if (extremes[0] == -extremes[1]) return;
  // Says which, unless the calls before this step or very many differ.
  const std::string what = "FullyShard: ranks differ in the calls of a step";
  Agreement agreement(what);
  const std::vector<std::string> calls = calls_.ToText(names_);
  for (size_t i = 0; i < calls.size(); ++i) {
    agreement.Add(absl::StrCat("call ", i + 1), calls[i]);
  }
  agreement.Check(ranks_.GetGroups());
  Invalid(what);
}

void FullyShard::Impl::FinishStep() {
  FinishReductions(/*all=*/true);
  CheckCallOrder();
  for (size_t group = 0; group < groups_.size(); ++group) {
    Reshard(static_cast<int>(group));
  }
  // An evaluation between steps of training is the beginning of one.
  const bool fits = used_.size() <= order_.size() &&
                    std::equal(used_.begin(), used_.end(), order_.begin());
  if (!is_order_set_ && !fits) order_ = std::move(used_);
  used_.clear();
  next_ = 0;
  calls_.BeginStep();
}

void FullyShard::Impl::CheckFinished(const char* call) const {
  ThrowIfFailed();
  if (reductions_.empty()) return;
  internal::Throw(internal::ErrorSource::kControl,
                  FailedPreconditionError(
                      absl::StrCat("FullyShard: ", call,
                                   " before FinishStep: gradients are being "
                                   "reduced")));
}

double FullyShard::Impl::GradientNorm(double norm_type) {
  const bool largest = std::isinf(norm_type);
  double result = 0;
  for (const GroupState& state : groups_) {
    const Tensor block = state.data->GradientBlock();
    internal::ForElements<1>(
        block.data_type(), {block.data()}, block.element_count(),
        [&](const auto& arrays, int64_t count) {
          for (int64_t i = 0; i < count; ++i) {
            const double size = std::abs(static_cast<double>(arrays[0][i]));
            if (!largest) {
              result +=
                  norm_type == 2 ? size * size : std::pow(size, norm_type);
            } else if (!(size <= result)) {
              // NaN stays.
              result = std::isnan(result) ? result : size;
            }
          }
        });
  }
  group_->AllReduce(Tensor(&result, {1}),
                    {.op = largest ? ReduceOp::kMax : ReduceOp::kSum});
  if (has_replicas()) {
    // Their groups may add in another order.
    ranks_.replicate_group->Broadcast(Tensor(&result, {1}), {},
                                      {.group_src = 0});
  }
  return largest ? result : std::pow(result, 1 / norm_type);
}

void FullyShard::Impl::ScaleGradients(double factor) {
  for (const GroupState& state : groups_) {
    const Tensor block = state.data->GradientBlock();
    internal::ForElements<1>(
        block.data_type(), {block.data()}, block.element_count(),
        [&](const auto& arrays, int64_t count) {
          using T = std::remove_reference_t<decltype(arrays[0][0])>;
          for (int64_t i = 0; i < count; ++i) {
            arrays[0][i] *= static_cast<T>(factor);
          }
        });
  }
}

void FullyShard::Impl::GatherFullState(
    const std::function<void(const std::string&, const Tensor&)>& receive) {
  if (has_replicas() && ranks_.replicate_group->rank() != 0) return;
  for (const GroupState& state : groups_) {
    const ShardedGroup& data = *state.data;
    const Tensor block = data.ShardBlock();
    const DataType type = block.data_type();
    const size_t element = block.element_bytes();
    for (size_t i = 0; i < data.layout().parameters.size(); ++i) {
      const internal::ParameterLayout& parameter = data.layout().parameters[i];
      const int64_t count = parameter.rows_per_rank * parameter.row_elements;
      const size_t bytes = static_cast<size_t>(count) * element;
      std::shared_ptr<void> memory;
      std::vector<Tensor> parts;
      if (rank_ == 0) {
        memory =
            internal::AllocateAligned(bytes * static_cast<size_t>(ranks()));
        for (int64_t rank = 0; rank < ranks(); ++rank) {
          parts.emplace_back(static_cast<std::byte*>(memory.get()) +
                                 static_cast<size_t>(rank) * bytes,
                             type, std::initializer_list<int64_t>{count});
        }
      }
      group_->Gather(
          Tensor(static_cast<std::byte*>(block.data()) +
                     static_cast<size_t>(parameter.block_offset) * element,
                 type, {count}),
          parts, {}, {.group_dst = 0});
      if (rank_ != 0 || receive == nullptr) continue;
      receive(data.parameter_names()[i],
              Tensor(memory.get(), type, parameter.shape));
    }
  }
}

FullyShard::FullyShard(const std::vector<ShardGroup>& groups,
                       const FullyShardOptions& options) {
  ShardRanks ranks = {options.group == nullptr ? WorldGroup() : options.group,
                      options.replicate_group};
  if (ranks.group->state()->IsForOthers("fully_shard")) return;
  impl_ = std::make_unique<Impl>(groups, options, std::move(ranks));
}

FullyShard::~FullyShard() = default;

void FullyShard::Unshard(int group) {
  if (impl_ == nullptr) return;
  impl_->ThrowIfFailed();
  impl_->GroupAt(group);
  impl_->Guarded([&] { impl_->Unshard(group); });
}

void FullyShard::WaitUnshard(int group) {
  if (impl_ == nullptr) return;
  impl_->ThrowIfFailed();
  impl_->GroupAt(group);
  impl_->Guarded([&] { impl_->WaitUnshard(group); });
}

void FullyShard::SetPrefetchOrder(std::vector<int> order) {
  if (impl_ == nullptr) return;
  impl_->ThrowIfFailed();
  impl_->SetPrefetchOrder(std::move(order));
}

Tensor FullyShard::Value(int group, int parameter) const {
  if (impl_ == nullptr) return {};
  impl_->ThrowIfFailed();
  impl_->CheckParameter(group, parameter);
  const ShardedGroup& data = impl_->GroupAt(group);
  if (!data.is_whole()) {
    internal::Throw(internal::ErrorSource::kControl,
                    FailedPreconditionError(absl::StrCat(
                        "FullyShard: Value of group ", base::Quote(data.name()),
                        ", which is sharded: call WaitUnshard before")));
  }
  return data.Value(static_cast<size_t>(parameter));
}

Tensor FullyShard::Gradient(int group, int parameter) {
  if (impl_ == nullptr) return {};
  impl_->ThrowIfFailed();
  impl_->CheckParameter(group, parameter);
  return impl_->GroupAt(group).Gradient(static_cast<size_t>(parameter));
}

void FullyShard::Reshard(int group) {
  if (impl_ == nullptr) return;
  impl_->ThrowIfFailed();
  impl_->GroupAt(group);
  impl_->Guarded([&] { impl_->Reshard(group); });
}

void FullyShard::GradientsReady(int group) {
  if (impl_ == nullptr) return;
  impl_->ThrowIfFailed();
  impl_->GroupAt(group);
  impl_->Guarded([&] { impl_->GradientsReady(group); });
}

void FullyShard::SetGradientSync(bool sync) {
  if (impl_ == nullptr) return;
  impl_->ThrowIfFailed();
  impl_->set_sync(sync);
}

void FullyShard::FinishStep() {
  if (impl_ != nullptr) impl_->Guarded([&] { impl_->FinishStep(); });
}

void FullyShard::ZeroGradients() {
  if (impl_ == nullptr) return;
  impl_->CheckFinished("ZeroGradients");
  for (const auto& state : impl_->groups()) {
    const Tensor block = state.data->GradientBlock();
    std::fill_n(static_cast<std::byte*>(block.data()), block.bytes(),
                std::byte{0});
  }
}

double FullyShard::GradientNorm(double norm_type) {
  if (!(norm_type > 0)) {
    Invalid(absl::StrCat("FullyShard: argument norm_type: ", norm_type,
                         " is not positive"));
  }
  if (impl_ == nullptr) return 0;
  impl_->CheckFinished("GradientNorm");
  return impl_->Guarded([&] { return impl_->GradientNorm(norm_type); });
}

double FullyShard::ClipGradientNorm(double max_norm, double norm_type) {
  const double norm = GradientNorm(norm_type);
  const double factor = max_norm / (norm + 1e-6);
  // Not less than 1 is no reason to scale; NaN is one.
  if (impl_ != nullptr && !(factor >= 1)) impl_->ScaleGradients(factor);
  return norm;
}

std::vector<ParameterShard> FullyShard::Shards() const {
  std::vector<ParameterShard> shards;
  if (impl_ == nullptr) return shards;
  for (const auto& state : impl_->groups()) {
    for (size_t i = 0; i < state.data->parameter_names().size(); ++i) {
      shards.push_back(state.data->Shard(i));
    }
  }
  return shards;
}

std::vector<OptimizedTensor> FullyShard::Tensors() const {
  std::vector<OptimizedTensor> tensors;
  for (ParameterShard& shard : Shards()) {
    tensors.push_back({std::move(shard.name), shard.value, shard.gradient});
  }
  return tensors;
}

void FullyShard::GatherFullState(
    const std::function<void(const std::string&, const Tensor&)>& receive) {
  if (impl_ == nullptr) return;
  impl_->Guarded([&] { impl_->GatherFullState(receive); });
}

MemoryStats FullyShard::memory() const {
  return impl_ == nullptr ? MemoryStats() : impl_->memory();
}

TrafficStats FullyShard::traffic() const {
  return impl_ == nullptr ? TrafficStats() : impl_->traffic();
}

}  // namespace muster
