#include "muster/coalescing.h"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
#include "client/groups/group_state.h"
#include "dataplane/coalescing.h"
#include "muster/base/status.h"
#include "muster/distributed.h"

namespace muster {
namespace {

using dataplane::Collective;
using dataplane::CollectiveKind;

using internal::Invalid;

void CheckLists(absl::string_view verb, size_t outputs, size_t inputs) {
  if (inputs == 0) {
    Invalid(absl::StrCat(verb, " requires non-empty tensor list"));
  }
  if (outputs == inputs) return;
  Invalid(absl::StrCat(verb, " requires as many outputs as inputs, got ",
                       outputs, " and ", inputs));
}

}  // namespace

void CoalescingManager::Add(Collective collective) {
  if (!collectives_.empty()) {
    internal::ThrowIfFailed(
        internal::ErrorSource::kControl,
        dataplane::CanCoalesceWith(collectives_[0], collective));
  }
  collectives_.push_back(std::move(collective));
}

void CoalescingManager::AllReduce(const Tensor& tensor,
                                  const ReduceOperator& op, double factor) {
  Collective collective;
  collective.kind = CollectiveKind::kAllReduce;
  collective.tensors.push_back(tensor);
  internal::SetReduction(op, factor, collective);
  Add(std::move(collective));
}

void CoalescingManager::AllGather(const std::vector<Tensor>& tensor_list,
                                  const Tensor& tensor) {
  Collective collective;
  collective.kind = CollectiveKind::kAllGather;
  collective.outputs.assign(tensor_list.begin(), tensor_list.end());
  collective.inputs.push_back(tensor);
  Add(std::move(collective));
}

void CoalescingManager::AllGatherIntoTensor(const Tensor& output,
                                            const Tensor& input) {
  Collective collective;
  collective.kind = CollectiveKind::kAllGatherIntoTensor;
  collective.outputs.push_back(output);
  collective.inputs.push_back(input);
  Add(std::move(collective));
}

void CoalescingManager::ReduceScatterTensor(const Tensor& output,
                                            const Tensor& input,
                                            const ReduceOperator& op,
                                            double factor) {
  Collective collective;
  collective.kind = CollectiveKind::kReduceScatterTensor;
  collective.outputs.push_back(output);
  collective.inputs.push_back(input);
  internal::SetReduction(op, factor, collective);
  Add(std::move(collective));
}

Work Coalesce(const CoalesceOptions& options,
              const std::function<void(CoalescingManager&)>& add) {
  const auto group = options.group == nullptr ? WorldGroup() : options.group;
  internal::CheckNotNegative(options.timeout);
  if (add == nullptr) {
    internal::Throw(
        internal::ErrorSource::kControl,
        InvalidArgumentError("Coalesce: argument add: there is no function"));
  }
  CoalescingManager manager;
  add(manager);
  for (Collective& collective : manager.collectives_) {
    collective.timeout = options.timeout;
  }
  return group->state()->RunCoalesced(std::move(manager.collectives_),
                                      options.async_op);
}

Work AllReduceCoalesced(const std::vector<Tensor>& tensors,
                        const AllReduceOptions& options) {
  CheckLists("all_reduce_coalesced", tensors.size(), tensors.size());
  return Coalesce({.group = options.group,
                   .timeout = options.timeout,
                   .async_op = options.async_op},
                  [&](CoalescingManager& manager) {
                    for (const Tensor& tensor : tensors) {
                      manager.AllReduce(tensor, options.op, options.factor);
                    }
                  });
}

Work AllGatherCoalesced(
    const std::vector<std::vector<Tensor>>& output_tensor_lists,
    const std::vector<Tensor>& input_tensor_list,
    const AllGatherOptions& options) {
  const size_t count = input_tensor_list.size();
  CheckLists("all_gather_coalesced", count, count);
  for (size_t rank = 0; rank < output_tensor_lists.size(); ++rank) {
    if (output_tensor_lists[rank].size() == count) continue;
    Invalid(
        absl::StrCat("all_gather_coalesced requires as many outputs of "
                     "each rank as inputs, got ",
                     output_tensor_lists[rank].size(), " and ", count,
                     " (output_tensor_lists[", rank, "])"));
  }
  return Coalesce(options, [&](CoalescingManager& manager) {
    for (size_t i = 0; i < count; ++i) {
      std::vector<Tensor> tensor_list;
      for (const std::vector<Tensor>& of_rank : output_tensor_lists) {
        tensor_list.push_back(of_rank[i]);
      }
      manager.AllGather(tensor_list, input_tensor_list[i]);
    }
  });
}

Work AllGatherIntoTensorCoalesced(const std::vector<Tensor>& outputs,
                                  const std::vector<Tensor>& inputs,
                                  const AllGatherOptions& options) {
  CheckLists("all_gather_into_tensor_coalesced", outputs.size(), inputs.size());
  return Coalesce(options, [&](CoalescingManager& manager) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      manager.AllGatherIntoTensor(outputs[i], inputs[i]);
    }
  });
}

Work ReduceScatterTensorCoalesced(const std::vector<Tensor>& outputs,
                                  const std::vector<Tensor>& inputs,
                                  const ReduceScatterOptions& options) {
  CheckLists("reduce_scatter_tensor_coalesced", outputs.size(), inputs.size());
  return Coalesce({.group = options.group,
                   .timeout = options.timeout,
                   .async_op = options.async_op},
                  [&](CoalescingManager& manager) {
                    for (size_t i = 0; i < inputs.size(); ++i) {
                      manager.ReduceScatterTensor(outputs[i], inputs[i],
                                                  options.op, options.factor);
                    }
                  });
}

}  // namespace muster
