#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "client/c/convert.h"
#include "client/c/error.h"
#include "client/c/handles.h"
#include "client/c/reduction.h"
#include "client/c/refusal.h"
#include "client/groups/group_state.h"
#include "muster/dataplane/collective_kind.h"
#include "muster/muster.h"
#include "muster/prepared.h"
#include "muster/process_group.h"

struct muster_prepared {
  muster::PreparedCollective prepared;
  // For a start that is refused here.
  std::shared_ptr<muster::internal::GroupState> group;
  muster::dataplane::CollectiveKind kind;
};

namespace muster::c {
namespace {

using dataplane::CollectiveKind;

// Each verb is a struct with its arguments, and with `Call`, which runs or
// starts it, and `Prepare`.

CollectiveOptions ToOptions(const muster_collective_options* options) {
  const muster_collective_options from = ReadOptions(options);
  return {.timeout = ToMilliseconds(from.timeout_ms)};
}

struct AllReduceVerb {
  static constexpr auto kKind = CollectiveKind::kAllReduce;
  AllReduceVerb(const muster_tensor* tensor, muster_reduce_op op,
                const muster_reduction_options* given)
      : tensor(ToTensor(tensor, "tensor")),
        options(ToReduction<AllReduceOptions>(op, ReadOptions(given))) {}
  Work Call(ProcessGroup& group) { return group.AllReduce(tensor, options); }
  PreparedCollective Prepare(ProcessGroup& group) {
    return group.PrepareAllReduce(tensor, options);
  }
  Tensor tensor;
  AllReduceOptions options;
};

struct BroadcastVerb {
  static constexpr auto kKind = CollectiveKind::kBroadcast;
  BroadcastVerb(const muster_tensor* tensor, int32_t src,
                const muster_root_options* given)
      : BroadcastVerb(tensor, src, ReadOptions(given)) {}
  BroadcastVerb(const muster_tensor* tensor, int32_t src,
                const muster_root_options& given)
      : tensor(ToTensor(tensor, "tensor")),
        root(src, given.is_group_rank),
        options{.timeout = ToMilliseconds(given.timeout_ms),
                .group_src = root.in_group} {}
  Work Call(ProcessGroup& group) {
    return group.Broadcast(tensor, root.global, options);
  }
  PreparedCollective Prepare(ProcessGroup& group) {
    return group.PrepareBroadcast(tensor, root.global, options);
  }
  Tensor tensor;
  RankChoice root;
  BroadcastOptions options;
};

struct ReduceVerb {
  static constexpr auto kKind = CollectiveKind::kReduce;
  ReduceVerb(const muster_tensor* tensor, int32_t dst, muster_reduce_op op,
             const muster_reduction_options* given)
      : ReduceVerb(tensor, dst, op, ReadOptions(given)) {}
  ReduceVerb(const muster_tensor* tensor, int32_t dst, muster_reduce_op op,
             const muster_reduction_options& given)
      : tensor(ToTensor(tensor, "tensor")),
        root(dst, given.is_group_rank),
        options(ToReduction<ReduceOptions>(op, given)) {
    options.group_dst = root.in_group;
  }
  Work Call(ProcessGroup& group) {
    return group.Reduce(tensor, root.global, options);
  }
  PreparedCollective Prepare(ProcessGroup& group) {
    return group.PrepareReduce(tensor, root.global, options);
  }
  Tensor tensor;
  RankChoice root;
  ReduceOptions options;
};

struct AllGatherVerb {
  static constexpr auto kKind = CollectiveKind::kAllGather;
  AllGatherVerb(const muster_tensor* tensor_list, size_t tensor_count,
                const muster_tensor* tensor,
                const muster_collective_options* given)
      : tensor_list(ToTensors(tensor_list, tensor_count, "tensor_list")),
        tensor(ToTensor(tensor, "tensor")),
        options(ToOptions(given)) {}
  Work Call(ProcessGroup& group) {
    return group.AllGather(tensor_list, tensor, options);
  }
  PreparedCollective Prepare(ProcessGroup& group) {
    return group.PrepareAllGather(tensor_list, tensor, options);
  }
  std::vector<Tensor> tensor_list;
  Tensor tensor;
  AllGatherOptions options;
};

struct AllGatherIntoTensorVerb {
  static constexpr auto kKind = CollectiveKind::kAllGatherIntoTensor;
  AllGatherIntoTensorVerb(const muster_tensor* output,
                          const muster_tensor* input,
                          const muster_collective_options* given)
      : output(ToTensor(output, "output")),
        input(ToTensor(input, "input")),
        options(ToOptions(given)) {}
  Work Call(ProcessGroup& group) {
    return group.AllGatherIntoTensor(output, input, options);
  }
  PreparedCollective Prepare(ProcessGroup& group) {
    return group.PrepareAllGatherIntoTensor(output, input, options);
  }
  Tensor output;
  Tensor input;
  AllGatherOptions options;
};

struct AllGatherVVerb {
  static constexpr auto kKind = CollectiveKind::kAllGather;
  AllGatherVVerb(const muster_tensor* output, const int64_t* counts,
                 const int64_t* displacements, size_t rank_count,
                 const muster_tensor* input,
                 const muster_collective_options* given)
      : output(ToTensor(output, "output")),
        input(ToTensor(input, "input")),
        counts(ToVector(counts, rank_count, "counts")) {
    options.timeout = ToOptions(given).timeout;
    if (displacements != nullptr) {
      options.displacements.assign(displacements, displacements + rank_count);
    }
  }
  Work Call(ProcessGroup& group) {
    return group.AllGatherV(output, input, counts, options);
  }
  PreparedCollective Prepare(ProcessGroup& group) {
    return group.PrepareAllGatherV(output, input, counts, options);
  }
  Tensor output;
  Tensor input;
  std::vector<int64_t> counts;
  AllGatherVOptions options;
};

struct GatherVerb {
  static constexpr auto kKind = CollectiveKind::kGather;
  GatherVerb(const muster_tensor* tensor, const muster_tensor* gather_list,
             size_t tensor_count, int32_t dst, const muster_root_options* given)
      : GatherVerb(tensor, gather_list, tensor_count, dst, ReadOptions(given)) {
  }
  GatherVerb(const muster_tensor* tensor, const muster_tensor* gather_list,
             size_t tensor_count, int32_t dst, const muster_root_options& given)
      : tensor(ToTensor(tensor, "tensor")),
        gather_list(ToTensors(gather_list, tensor_count, "gather_list")),
        root(dst, given.is_group_rank),
        options{.timeout = ToMilliseconds(given.timeout_ms),
                .group_dst = root.in_group} {}
  Work Call(ProcessGroup& group) {
    return group.Gather(tensor, gather_list, root.global, options);
  }
  PreparedCollective Prepare(ProcessGroup& group) {
    return group.PrepareGather(tensor, gather_list, root.global, options);
  }
  Tensor tensor;
  std::vector<Tensor> gather_list;
  RankChoice root;
  GatherOptions options;
};

struct ScatterVerb {
  static constexpr auto kKind = CollectiveKind::kScatter;
  ScatterVerb(const muster_tensor* tensor, const muster_tensor* scatter_list,
              size_t tensor_count, int32_t src,
              const muster_root_options* given)
      : ScatterVerb(tensor, scatter_list, tensor_count, src,
                    ReadOptions(given)) {}
  ScatterVerb(const muster_tensor* tensor, const muster_tensor* scatter_list,
              size_t tensor_count, int32_t src,
              const muster_root_options& given)
      : tensor(ToTensor(tensor, "tensor")),
        scatter_list(ToTensors(scatter_list, tensor_count, "scatter_list")),
        root(src, given.is_group_rank),
        options{.timeout = ToMilliseconds(given.timeout_ms),
                .group_src = root.in_group} {}
  Work Call(ProcessGroup& group) {
    return group.Scatter(tensor, scatter_list, root.global, options);
  }
  PreparedCollective Prepare(ProcessGroup& group) {
    return group.PrepareScatter(tensor, scatter_list, root.global, options);
  }
  Tensor tensor;
  std::vector<Tensor> scatter_list;
  RankChoice root;
  ScatterOptions options;
};

struct ReduceScatterVerb {
  static constexpr auto kKind = CollectiveKind::kReduceScatter;
  ReduceScatterVerb(const muster_tensor* output,
                    const muster_tensor* input_list, size_t tensor_count,
                    muster_reduce_op op, const muster_reduction_options* given)
      : output(ToTensor(output, "output")),
        input_list(ToTensors(input_list, tensor_count, "input_list")),
        options(ToReduction<ReduceScatterOptions>(op, ReadOptions(given))) {}
  Work Call(ProcessGroup& group) {
    return group.ReduceScatter(output, input_list, options);
  }
  PreparedCollective Prepare(ProcessGroup& group) {
    return group.PrepareReduceScatter(output, input_list, options);
  }
  Tensor output;
  std::vector<Tensor> input_list;
  ReduceScatterOptions options;
};

struct ReduceScatterTensorVerb {
  static constexpr auto kKind = CollectiveKind::kReduceScatterTensor;
  ReduceScatterTensorVerb(const muster_tensor* output,
                          const muster_tensor* input, muster_reduce_op op,
                          const muster_reduction_options* given)
      : output(ToTensor(output, "output")),
        input(ToTensor(input, "input")),
        options(ToReduction<ReduceScatterOptions>(op, ReadOptions(given))) {}
  Work Call(ProcessGroup& group) {
    return group.ReduceScatterTensor(output, input, options);
  }
  PreparedCollective Prepare(ProcessGroup& group) {
    return group.PrepareReduceScatterTensor(output, input, options);
  }
  Tensor output;
  Tensor input;
  ReduceScatterOptions options;
};

struct ReduceScatterVVerb {
  static constexpr auto kKind = CollectiveKind::kReduceScatter;
  ReduceScatterVVerb(const muster_tensor* output, const muster_tensor* input,
                     const int64_t* counts, const int64_t* displacements,
                     size_t rank_count, muster_reduce_op op,
                     const muster_reduction_options* given)
      : output(ToTensor(output, "output")),
        input(ToTensor(input, "input")),
        counts(ToVector(counts, rank_count, "counts")),
        options(ToReduction<ReduceScatterVOptions>(op, ReadOptions(given))) {
    if (displacements != nullptr) {
      options.displacements.assign(displacements, displacements + rank_count);
    }
  }
  Work Call(ProcessGroup& group) {
    return group.ReduceScatterV(output, input, counts, options);
  }
  PreparedCollective Prepare(ProcessGroup& group) {
    return group.PrepareReduceScatterV(output, input, counts, options);
  }
  Tensor output;
  Tensor input;
  std::vector<int64_t> counts;
  ReduceScatterVOptions options;
};

struct AllToAllVerb {
  static constexpr auto kKind = CollectiveKind::kAllToAll;
  AllToAllVerb(const muster_tensor* output_list, size_t output_count,
               const muster_tensor* input_list, size_t input_count,
               const muster_collective_options* given)
      : output_list(ToTensors(output_list, output_count, "output_list")),
        input_list(ToTensors(input_list, input_count, "input_list")),
        options(ToOptions(given)) {}
  Work Call(ProcessGroup& group) {
    return group.AllToAll(output_list, input_list, options);
  }
  PreparedCollective Prepare(ProcessGroup& group) {
    return group.PrepareAllToAll(output_list, input_list, options);
  }
  std::vector<Tensor> output_list;
  std::vector<Tensor> input_list;
  AllToAllOptions options;
};

// Null: equal parts, which C++ takes as an empty list.
std::vector<int64_t> ToSplits(const int64_t* splits, size_t rank_count,
                              const char* name) {
  if (splits == nullptr) return {};
  if (rank_count == 0) ThrowArgument(name, "rank_count is 0");
  return {splits, splits + rank_count};
}

struct AllToAllSingleVerb {
  static constexpr auto kKind = CollectiveKind::kAllToAllSingle;
  AllToAllSingleVerb(const muster_tensor* output, const muster_tensor* input,
                     const int64_t* output_splits, const int64_t* input_splits,
                     size_t rank_count, const muster_collective_options* given)
      : output(ToTensor(output, "output")), input(ToTensor(input, "input")) {
    options.timeout = ToOptions(given).timeout;
    options.output_split_sizes =
        ToSplits(output_splits, rank_count, "output_splits");
    options.input_split_sizes =
        ToSplits(input_splits, rank_count, "input_splits");
  }
  Work Call(ProcessGroup& group) {
    return group.AllToAllSingle(output, input, options);
  }
  PreparedCollective Prepare(ProcessGroup& group) {
    return group.PrepareAllToAllSingle(output, input, options);
  }
  Tensor output;
  Tensor input;
  AllToAllSingleOptions options;
};

struct BarrierVerb {
  static constexpr auto kKind = CollectiveKind::kBarrier;
  explicit BarrierVerb(const muster_barrier_options* given) {
    const muster_barrier_options from = ReadOptions(given);
    options.timeout = ToMilliseconds(from.timeout_ms);
    if (from.has_device_id != 0) options.device_ids = {from.device_id};
  }
  Work Call(ProcessGroup& group) { return group.Barrier(options); }
  PreparedCollective Prepare(ProcessGroup& group) {
    return group.PrepareBarrier(options);
  }
  BarrierOptions options;
};

// The three functions of a verb.

template <typename Verb, typename... Args>
muster_status Run(const char* function, muster_group* group, Args... args) {
  return Guard(function, [&] {
    MakeArguments(group, Verb::kKind, [&] {
      return Verb(args...);
    }).Call(*GroupRef(group));
  });
}

template <typename Verb, typename... Args>
muster_status Start(const char* function, muster_group* group,
                    muster_work** work, Args... args) {
  return Guard(function, [&] {
    Verb verb = MakeArguments(group, Verb::kKind, [&] {
      Need(work, "work") = nullptr;
      return Verb(args...);
    });
    verb.options.async_op = true;
    *work = MakeWork([&] { return verb.Call(*GroupRef(group)); });
  });
}

// Making a collective is no call of it, and uses up no number.
template <typename Verb, typename... Args>
muster_status Prepare(const char* function, muster_group* group,
                      muster_prepared** prepared, Args... args) {
  return GuardHandle(function, prepared, "prepared", [&] {
    Verb verb(args...);
    const GroupRef ref(group);
    return new muster_prepared{verb.Prepare(*ref), ref->state(), Verb::kKind};
  });
}

}  // namespace
}  // namespace muster::c

using muster::c::Guard;
using muster::c::GuardHandle;
using muster::c::Need;

muster_status muster_all_reduce(const muster_tensor* tensor,
                                muster_reduce_op op, muster_group* group,
                                const muster_reduction_options* options) {
  return muster::c::Run<muster::c::AllReduceVerb>(__func__, group, tensor, op,
                                                  options);
}

muster_status muster_all_reduce_async(const muster_tensor* tensor,
                                      muster_reduce_op op, muster_group* group,
                                      const muster_reduction_options* options,
                                      muster_work** work) {
  return muster::c::Start<muster::c::AllReduceVerb>(__func__, group, work,
                                                    tensor, op, options);
}

muster_status muster_prepare_all_reduce(const muster_tensor* tensor,
                                        muster_reduce_op op,
                                        muster_group* group,
                                        const muster_reduction_options* options,
                                        muster_prepared** prepared) {
  return muster::c::Prepare<muster::c::AllReduceVerb>(__func__, group, prepared,
                                                      tensor, op, options);
}

muster_status muster_broadcast(const muster_tensor* tensor, int32_t src,
                               muster_group* group,
                               const muster_root_options* options) {
  return muster::c::Run<muster::c::BroadcastVerb>(__func__, group, tensor, src,
                                                  options);
}

muster_status muster_broadcast_async(const muster_tensor* tensor, int32_t src,
                                     muster_group* group,
                                     const muster_root_options* options,
                                     muster_work** work) {
  return muster::c::Start<muster::c::BroadcastVerb>(__func__, group, work,
                                                    tensor, src, options);
}

muster_status muster_prepare_broadcast(const muster_tensor* tensor, int32_t src,
                                       muster_group* group,
                                       const muster_root_options* options,
                                       muster_prepared** prepared) {
  return muster::c::Prepare<muster::c::BroadcastVerb>(__func__, group, prepared,
                                                      tensor, src, options);
}

muster_status muster_reduce(const muster_tensor* tensor, int32_t dst,
                            muster_reduce_op op, muster_group* group,
                            const muster_reduction_options* options) {
  return muster::c::Run<muster::c::ReduceVerb>(__func__, group, tensor, dst, op,
                                               options);
}

muster_status muster_reduce_async(const muster_tensor* tensor, int32_t dst,
                                  muster_reduce_op op, muster_group* group,
                                  const muster_reduction_options* options,
                                  muster_work** work) {
  return muster::c::Start<muster::c::ReduceVerb>(__func__, group, work, tensor,
                                                 dst, op, options);
}

muster_status muster_prepare_reduce(const muster_tensor* tensor, int32_t dst,
                                    muster_reduce_op op, muster_group* group,
                                    const muster_reduction_options* options,
                                    muster_prepared** prepared) {
  return muster::c::Prepare<muster::c::ReduceVerb>(__func__, group, prepared,
                                                   tensor, dst, op, options);
}

muster_status muster_all_gather(const muster_tensor* tensor_list,
                                size_t tensor_count,
                                const muster_tensor* tensor,
                                muster_group* group,
                                const muster_collective_options* options) {
  return muster::c::Run<muster::c::AllGatherVerb>(
      __func__, group, tensor_list, tensor_count, tensor, options);
}

muster_status muster_all_gather_async(const muster_tensor* tensor_list,
                                      size_t tensor_count,
                                      const muster_tensor* tensor,
                                      muster_group* group,
                                      const muster_collective_options* options,
                                      muster_work** work) {
  return muster::c::Start<muster::c::AllGatherVerb>(
      __func__, group, work, tensor_list, tensor_count, tensor, options);
}

muster_status muster_prepare_all_gather(
    const muster_tensor* tensor_list, size_t tensor_count,
    const muster_tensor* tensor, muster_group* group,
    const muster_collective_options* options, muster_prepared** prepared) {
  return muster::c::Prepare<muster::c::AllGatherVerb>(
      __func__, group, prepared, tensor_list, tensor_count, tensor, options);
}

muster_status muster_all_gather_into_tensor(
    const muster_tensor* output, const muster_tensor* input,
    muster_group* group, const muster_collective_options* options) {
  return muster::c::Run<muster::c::AllGatherIntoTensorVerb>(
      __func__, group, output, input, options);
}

muster_status muster_all_gather_into_tensor_async(
    const muster_tensor* output, const muster_tensor* input,
    muster_group* group, const muster_collective_options* options,
    muster_work** work) {
  return muster::c::Start<muster::c::AllGatherIntoTensorVerb>(
      __func__, group, work, output, input, options);
}

muster_status muster_prepare_all_gather_into_tensor(
    const muster_tensor* output, const muster_tensor* input,
    muster_group* group, const muster_collective_options* options,
    muster_prepared** prepared) {
  return muster::c::Prepare<muster::c::AllGatherIntoTensorVerb>(
      __func__, group, prepared, output, input, options);
}

muster_status muster_gather(const muster_tensor* tensor,
                            const muster_tensor* gather_list,
                            size_t tensor_count, int32_t dst,
                            muster_group* group,
                            const muster_root_options* options) {
  return muster::c::Run<muster::c::GatherVerb>(
      __func__, group, tensor, gather_list, tensor_count, dst, options);
}

muster_status muster_gather_async(const muster_tensor* tensor,
                                  const muster_tensor* gather_list,
                                  size_t tensor_count, int32_t dst,
                                  muster_group* group,
                                  const muster_root_options* options,
                                  muster_work** work) {
  return muster::c::Start<muster::c::GatherVerb>(
      __func__, group, work, tensor, gather_list, tensor_count, dst, options);
}

muster_status muster_prepare_gather(const muster_tensor* tensor,
                                    const muster_tensor* gather_list,
                                    size_t tensor_count, int32_t dst,
                                    muster_group* group,
                                    const muster_root_options* options,
                                    muster_prepared** prepared) {
  return muster::c::Prepare<muster::c::GatherVerb>(__func__, group, prepared,
                                                   tensor, gather_list,
                                                   tensor_count, dst, options);
}

muster_status muster_scatter(const muster_tensor* tensor,
                             const muster_tensor* scatter_list,
                             size_t tensor_count, int32_t src,
                             muster_group* group,
                             const muster_root_options* options) {
  return muster::c::Run<muster::c::ScatterVerb>(
      __func__, group, tensor, scatter_list, tensor_count, src, options);
}

muster_status muster_scatter_async(const muster_tensor* tensor,
                                   const muster_tensor* scatter_list,
                                   size_t tensor_count, int32_t src,
                                   muster_group* group,
                                   const muster_root_options* options,
                                   muster_work** work) {
  return muster::c::Start<muster::c::ScatterVerb>(
      __func__, group, work, tensor, scatter_list, tensor_count, src, options);
}

muster_status muster_prepare_scatter(const muster_tensor* tensor,
                                     const muster_tensor* scatter_list,
                                     size_t tensor_count, int32_t src,
                                     muster_group* group,
                                     const muster_root_options* options,
                                     muster_prepared** prepared) {
  return muster::c::Prepare<muster::c::ScatterVerb>(__func__, group, prepared,
                                                    tensor, scatter_list,
                                                    tensor_count, src, options);
}

muster_status muster_reduce_scatter(const muster_tensor* output,
                                    const muster_tensor* input_list,
                                    size_t tensor_count, muster_reduce_op op,
                                    muster_group* group,
                                    const muster_reduction_options* options) {
  return muster::c::Run<muster::c::ReduceScatterVerb>(
      __func__, group, output, input_list, tensor_count, op, options);
}

muster_status muster_reduce_scatter_async(
    const muster_tensor* output, const muster_tensor* input_list,
    size_t tensor_count, muster_reduce_op op, muster_group* group,
    const muster_reduction_options* options, muster_work** work) {
  return muster::c::Start<muster::c::ReduceScatterVerb>(
      __func__, group, work, output, input_list, tensor_count, op, options);
}

muster_status muster_prepare_reduce_scatter(
    const muster_tensor* output, const muster_tensor* input_list,
    size_t tensor_count, muster_reduce_op op, muster_group* group,
    const muster_reduction_options* options, muster_prepared** prepared) {
  return muster::c::Prepare<muster::c::ReduceScatterVerb>(
      __func__, group, prepared, output, input_list, tensor_count, op, options);
}

muster_status muster_reduce_scatter_tensor(
    const muster_tensor* output, const muster_tensor* input,
    muster_reduce_op op, muster_group* group,
    const muster_reduction_options* options) {
  return muster::c::Run<muster::c::ReduceScatterTensorVerb>(
      __func__, group, output, input, op, options);
}

muster_status muster_reduce_scatter_tensor_async(
    const muster_tensor* output, const muster_tensor* input,
    muster_reduce_op op, muster_group* group,
    const muster_reduction_options* options, muster_work** work) {
  return muster::c::Start<muster::c::ReduceScatterTensorVerb>(
      __func__, group, work, output, input, op, options);
}

muster_status muster_prepare_reduce_scatter_tensor(
    const muster_tensor* output, const muster_tensor* input,
    muster_reduce_op op, muster_group* group,
    const muster_reduction_options* options, muster_prepared** prepared) {
  return muster::c::Prepare<muster::c::ReduceScatterTensorVerb>(
      __func__, group, prepared, output, input, op, options);
}

muster_status muster_all_to_all(const muster_tensor* output_list,
                                size_t output_count,
                                const muster_tensor* input_list,
                                size_t input_count, muster_group* group,
                                const muster_collective_options* options) {
  return muster::c::Run<muster::c::AllToAllVerb>(__func__, group, output_list,
                                                 output_count, input_list,
                                                 input_count, options);
}

muster_status muster_all_to_all_async(const muster_tensor* output_list,
                                      size_t output_count,
                                      const muster_tensor* input_list,
                                      size_t input_count, muster_group* group,
                                      const muster_collective_options* options,
                                      muster_work** work) {
  return muster::c::Start<muster::c::AllToAllVerb>(
      __func__, group, work, output_list, output_count, input_list, input_count,
      options);
}

muster_status muster_prepare_all_to_all(
    const muster_tensor* output_list, size_t output_count,
    const muster_tensor* input_list, size_t input_count, muster_group* group,
    const muster_collective_options* options, muster_prepared** prepared) {
  return muster::c::Prepare<muster::c::AllToAllVerb>(
      __func__, group, prepared, output_list, output_count, input_list,
      input_count, options);
}

muster_status muster_all_to_all_single(
    const muster_tensor* output, const muster_tensor* input,
    const int64_t* output_splits, const int64_t* input_splits,
    size_t rank_count, muster_group* group,
    const muster_collective_options* options) {
  return muster::c::Run<muster::c::AllToAllSingleVerb>(
      __func__, group, output, input, output_splits, input_splits, rank_count,
      options);
}

muster_status muster_all_to_all_single_async(
    const muster_tensor* output, const muster_tensor* input,
    const int64_t* output_splits, const int64_t* input_splits,
    size_t rank_count, muster_group* group,
    const muster_collective_options* options, muster_work** work) {
  return muster::c::Start<muster::c::AllToAllSingleVerb>(
      __func__, group, work, output, input, output_splits, input_splits,
      rank_count, options);
}

muster_status muster_prepare_all_to_all_single(
    const muster_tensor* output, const muster_tensor* input,
    const int64_t* output_splits, const int64_t* input_splits,
    size_t rank_count, muster_group* group,
    const muster_collective_options* options, muster_prepared** prepared) {
  return muster::c::Prepare<muster::c::AllToAllSingleVerb>(
      __func__, group, prepared, output, input, output_splits, input_splits,
      rank_count, options);
}

muster_status muster_barrier(muster_group* group,
                             const muster_barrier_options* options) {
  return muster::c::Run<muster::c::BarrierVerb>(__func__, group, options);
}

muster_status muster_barrier_async(muster_group* group,
                                   const muster_barrier_options* options,
                                   muster_work** work) {
  return muster::c::Start<muster::c::BarrierVerb>(__func__, group, work,
                                                  options);
}

muster_status muster_prepare_barrier(muster_group* group,
                                     const muster_barrier_options* options,
                                     muster_prepared** prepared) {
  return muster::c::Prepare<muster::c::BarrierVerb>(__func__, group, prepared,
                                                    options);
}

muster_status muster_all_gather_v(const muster_tensor* output,
                                  const int64_t* counts,
                                  const int64_t* displacements,
                                  size_t rank_count, const muster_tensor* input,
                                  muster_group* group,
                                  const muster_collective_options* options) {
  return muster::c::Run<muster::c::AllGatherVVerb>(__func__, group, output,
                                                   counts, displacements,
                                                   rank_count, input, options);
}

muster_status muster_all_gather_v_async(
    const muster_tensor* output, const int64_t* counts,
    const int64_t* displacements, size_t rank_count, const muster_tensor* input,
    muster_group* group, const muster_collective_options* options,
    muster_work** work) {
  return muster::c::Start<muster::c::AllGatherVVerb>(
      __func__, group, work, output, counts, displacements, rank_count, input,
      options);
}

muster_status muster_prepare_all_gather_v(
    const muster_tensor* output, const int64_t* counts,
    const int64_t* displacements, size_t rank_count, const muster_tensor* input,
    muster_group* group, const muster_collective_options* options,
    muster_prepared** prepared) {
  return muster::c::Prepare<muster::c::AllGatherVVerb>(
      __func__, group, prepared, output, counts, displacements, rank_count,
      input, options);
}

muster_status muster_reduce_scatter_v(const muster_tensor* output,
                                      const muster_tensor* input,
                                      const int64_t* counts,
                                      const int64_t* displacements,
                                      size_t rank_count, muster_reduce_op op,
                                      muster_group* group,
                                      const muster_reduction_options* options) {
  return muster::c::Run<muster::c::ReduceScatterVVerb>(
      __func__, group, output, input, counts, displacements, rank_count, op,
      options);
}

muster_status muster_reduce_scatter_v_async(
    const muster_tensor* output, const muster_tensor* input,
    const int64_t* counts, const int64_t* displacements, size_t rank_count,
    muster_reduce_op op, muster_group* group,
    const muster_reduction_options* options, muster_work** work) {
  return muster::c::Start<muster::c::ReduceScatterVVerb>(
      __func__, group, work, output, input, counts, displacements, rank_count,
      op, options);
}

muster_status muster_prepare_reduce_scatter_v(
    const muster_tensor* output, const muster_tensor* input,
    const int64_t* counts, const int64_t* displacements, size_t rank_count,
    muster_reduce_op op, muster_group* group,
    const muster_reduction_options* options, muster_prepared** prepared) {
  return muster::c::Prepare<muster::c::ReduceScatterVVerb>(
      __func__, group, prepared, output, input, counts, displacements,
      rank_count, op, options);
}

muster_status muster_monitored_barrier(
    muster_group* group, const muster_monitored_barrier_options* options) {
  return Guard(__func__, [&] {
    const muster_monitored_barrier_options from =
        muster::c::ReadOptions(options);
    muster::c::GroupRef(group)->MonitoredBarrier(
        {.timeout = muster::c::ToMilliseconds(from.timeout_ms),
         .wait_all_ranks = from.wait_all_ranks != 0});
  });
}

void muster_prepared_release(muster_prepared* prepared) { delete prepared; }

muster_status muster_prepared_run(muster_prepared* prepared) {
  return Guard(__func__, [&] { Need(prepared, "prepared").prepared.Run(); });
}

muster_status muster_prepared_start(muster_prepared* prepared,
                                    muster_work** work) {
  return Guard(__func__, [&] {
    if (work != nullptr) *work = nullptr;
    muster_prepared& from = Need(prepared, "prepared");
    muster::c::MakeArguments(*from.group, from.kind,
                             [&] { Need(work, "work"); });
    *work = muster::c::MakeWork([&] { return from.prepared.Start(); });
  });
}
