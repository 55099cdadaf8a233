#include "muster/coalescing.h"

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "client/c/convert.h"
#include "client/c/error.h"
#include "client/c/handles.h"
#include "client/c/reduction.h"
#include "muster/muster.h"
#include "muster/process_group.h"

struct muster_coalescing {
  // Adds what the calls of muster_coalescing_... were given.
  using Add = std::function<void(muster::CoalescingManager&)>;

  std::shared_ptr<muster::ProcessGroup> group;
  std::chrono::milliseconds timeout{0};
  std::vector<Add> added = {};

  // Nothing is left in the list, whether or not it runs.
  muster::Work Run(bool async_op) {
    const std::vector<Add> adds = std::exchange(added, {});
    return muster::Coalesce(
        {.group = group, .timeout = timeout, .async_op = async_op},
        [&adds](muster::CoalescingManager& manager) {
          for (const Add& add : adds) add(manager);
        });
  }
};

namespace muster::c {
namespace {

// The options of a reduction that has the timeout of all others.
AllReduceOptions ToPart(muster_reduce_op op,
                        const muster_reduction_options* options) {
  const muster_reduction_options from = ReadOptions(options);
  if (from.timeout_ms != 0) {
    ThrowArgument("options", "the timeout is that of muster_coalescing_create");
  }
  return ToReduction<AllReduceOptions>(op, from);
}

// The functions over lists.

struct AllReduceList {
  Work Call(const muster_reduction_options* given, bool async_op) const {
    auto options = ToReduction<AllReduceOptions>(op, ReadOptions(given));
    options.group = ToGroup(group);
    options.async_op = async_op;
    return AllReduceCoalesced(ToTensors(tensors, count, "tensors"), options);
  }
  const muster_tensor* tensors;
  size_t count;
  muster_reduce_op op;
  muster_group* group;
};

CollectiveOptions ToOptions(muster_group* group,
                            const muster_collective_options* options,
                            bool async_op) {
  return {.group = ToGroup(group),
          .timeout = ToMilliseconds(ReadOptions(options).timeout_ms),
          .async_op = async_op};
}

struct AllGatherList {
  Work Call(const muster_collective_options* options, bool async_op) const {
    const std::vector<Tensor> flat =
        ToTensors(output_lists, output_count, "output_lists");
    if (input_count == 0 || output_count % input_count != 0) {
      ThrowArgument("output_count", std::to_string(output_count) +
                                        " is not a multiple of input_count (" +
                                        std::to_string(input_count) + ")");
    }
    std::vector<std::vector<Tensor>> lists;
    for (auto list = flat.begin(); list != flat.end();
         list += static_cast<std::ptrdiff_t>(input_count)) {
      lists.emplace_back(list, list + static_cast<std::ptrdiff_t>(input_count));
    }
    return AllGatherCoalesced(lists, ToTensors(inputs, input_count, "inputs"),
                              ToOptions(group, options, async_op));
  }
  const muster_tensor* output_lists;
  size_t output_count;
  const muster_tensor* inputs;
  size_t input_count;
  muster_group* group;
};

struct AllGatherIntoTensorList {
  Work Call(const muster_collective_options* options, bool async_op) const {
    return AllGatherIntoTensorCoalesced(ToTensors(outputs, count, "outputs"),
                                        ToTensors(inputs, count, "inputs"),
                                        ToOptions(group, options, async_op));
  }
  const muster_tensor* outputs;
  const muster_tensor* inputs;
  size_t count;
  muster_group* group;
};

struct ReduceScatterTensorList {
  Work Call(const muster_reduction_options* given, bool async_op) const {
    auto options = ToReduction<ReduceScatterOptions>(op, ReadOptions(given));
    options.group = ToGroup(group);
    options.async_op = async_op;
    return ReduceScatterTensorCoalesced(ToTensors(outputs, count, "outputs"),
                                        ToTensors(inputs, count, "inputs"),
                                        options);
  }
  const muster_tensor* outputs;
  const muster_tensor* inputs;
  size_t count;
  muster_reduce_op op;
  muster_group* group;
};

template <typename List, typename Options>
muster_status Run(const char* function, const List& list,
                  const Options* options) {
  return Guard(function, [&] { list.Call(options, /*async_op=*/false); });
}

template <typename List, typename Options>
muster_status Start(const char* function, const List& list,
                    const Options* options, muster_work** work) {
  return GuardHandle(function, work, "work", [&] {
    return MakeWork([&] { return list.Call(options, /*async_op=*/true); });
  });
}

}  // namespace
}  // namespace muster::c

using muster::CoalescingManager;
using muster::c::AllGatherIntoTensorList;
using muster::c::AllGatherList;
using muster::c::AllReduceList;
using muster::c::Guard;
using muster::c::GuardHandle;
using muster::c::Need;
using muster::c::ReduceScatterTensorList;
using muster::c::ToTensor;

muster_status muster_coalescing_create(muster_group* group,
                                       const muster_collective_options* options,
                                       muster_coalescing** coalescing) {
  return GuardHandle(__func__, coalescing, "coalescing", [&] {
    return new muster_coalescing{
        muster::c::GroupRef(group).shared(),
        muster::c::ToMilliseconds(muster::c::ReadOptions(options).timeout_ms)};
  });
}

void muster_coalescing_release(muster_coalescing* coalescing) {
  delete coalescing;
}

muster_status muster_coalescing_all_reduce(
    muster_coalescing* coalescing, const muster_tensor* tensor,
    muster_reduce_op op, const muster_reduction_options* options) {
  return Guard(__func__, [&] {
    Need(coalescing, "coalescing")
        .added.push_back([tensor = ToTensor(tensor, "tensor"),
                          part = muster::c::ToPart(op, options)](
                             CoalescingManager& manager) {
          manager.AllReduce(tensor, part.op, part.factor);
        });
  });
}

muster_status muster_coalescing_all_gather(muster_coalescing* coalescing,
                                           const muster_tensor* tensor_list,
                                           size_t tensor_count,
                                           const muster_tensor* tensor) {
  return Guard(__func__, [&] {
    Need(coalescing, "coalescing")
        .added.push_back(
            [list =
                 muster::c::ToTensors(tensor_list, tensor_count, "tensor_list"),
             tensor = ToTensor(tensor, "tensor")](CoalescingManager& manager) {
              manager.AllGather(list, tensor);
            });
  });
}

muster_status muster_coalescing_all_gather_into_tensor(
    muster_coalescing* coalescing, const muster_tensor* output,
    const muster_tensor* input) {
  return Guard(__func__, [&] {
    Need(coalescing, "coalescing")
        .added.push_back(
            [output = ToTensor(output, "output"),
             input = ToTensor(input, "input")](CoalescingManager& manager) {
              manager.AllGatherIntoTensor(output, input);
            });
  });
}

muster_status muster_coalescing_reduce_scatter_tensor(
    muster_coalescing* coalescing, const muster_tensor* output,
    const muster_tensor* input, muster_reduce_op op,
    const muster_reduction_options* options) {
  return Guard(__func__, [&] {
    Need(coalescing, "coalescing")
        .added.push_back([output = ToTensor(output, "output"),
                          input = ToTensor(input, "input"),
                          part = muster::c::ToPart(op, options)](
                             CoalescingManager& manager) {
          manager.ReduceScatterTensor(output, input, part.op, part.factor);
        });
  });
}

muster_status muster_coalescing_run(muster_coalescing* coalescing) {
  return Guard(__func__,
               [&] { Need(coalescing, "coalescing").Run(/*async_op=*/false); });
}

muster_status muster_coalescing_run_async(muster_coalescing* coalescing,
                                          muster_work** work) {
  return GuardHandle(__func__, work, "work", [&] {
    muster_coalescing& list = Need(coalescing, "coalescing");
    return muster::c::MakeWork([&] { return list.Run(/*async_op=*/true); });
  });
}

muster_status muster_all_reduce_coalesced(
    const muster_tensor* tensors, size_t tensor_count, muster_reduce_op op,
    muster_group* group, const muster_reduction_options* options) {
  return muster::c::Run(
      __func__, AllReduceList{tensors, tensor_count, op, group}, options);
}

muster_status muster_all_reduce_coalesced_async(
    const muster_tensor* tensors, size_t tensor_count, muster_reduce_op op,
    muster_group* group, const muster_reduction_options* options,
    muster_work** work) {
  return muster::c::Start(
      __func__, AllReduceList{tensors, tensor_count, op, group}, options, work);
}

muster_status muster_all_gather_coalesced(
    const muster_tensor* output_lists, size_t output_count,
    const muster_tensor* inputs, size_t input_count, muster_group* group,
    const muster_collective_options* options) {
  return muster::c::Run(
      __func__,
      AllGatherList{output_lists, output_count, inputs, input_count, group},
      options);
}

muster_status muster_all_gather_coalesced_async(
    const muster_tensor* output_lists, size_t output_count,
    const muster_tensor* inputs, size_t input_count, muster_group* group,
    const muster_collective_options* options, muster_work** work) {
  return muster::c::Start(
      __func__,
      AllGatherList{output_lists, output_count, inputs, input_count, group},
      options, work);
}

muster_status muster_all_gather_into_tensor_coalesced(
    const muster_tensor* outputs, const muster_tensor* inputs,
    size_t tensor_count, muster_group* group,
    const muster_collective_options* options) {
  return muster::c::Run(
      __func__, AllGatherIntoTensorList{outputs, inputs, tensor_count, group},
      options);
}

muster_status muster_all_gather_into_tensor_coalesced_async(
    const muster_tensor* outputs, const muster_tensor* inputs,
    size_t tensor_count, muster_group* group,
    const muster_collective_options* options, muster_work** work) {
  return muster::c::Start(
      __func__, AllGatherIntoTensorList{outputs, inputs, tensor_count, group},
      options, work);
}

muster_status muster_reduce_scatter_tensor_coalesced(
    const muster_tensor* outputs, const muster_tensor* inputs,
    size_t tensor_count, muster_reduce_op op, muster_group* group,
    const muster_reduction_options* options) {
  return muster::c::Run(
      __func__,
      ReduceScatterTensorList{outputs, inputs, tensor_count, op, group},
      options);
}

muster_status muster_reduce_scatter_tensor_coalesced_async(
    const muster_tensor* outputs, const muster_tensor* inputs,
    size_t tensor_count, muster_reduce_op op, muster_group* group,
    const muster_reduction_options* options, muster_work** work) {
  return muster::c::Start(
      __func__,
      ReduceScatterTensorList{outputs, inputs, tensor_count, op, group},
      options, work);
}
