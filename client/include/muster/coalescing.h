// Runs several collectives as one.
//
//   std::vector<muster::Tensor> biases = ...;     // many small ones
//   muster::AllReduceCoalesced(biases, {.op = muster::ReduceOp::kAvg});
//
//   muster::Work work = muster::Coalesce(
//       {.async_op = true}, [&](muster::CoalescingManager& manager) {
//         for (Layer& layer : layers) {
//           manager.AllGatherIntoTensor(layer.weights, layer.shard);
//         }
//       });

#ifndef MUSTER_COALESCING_H_
#define MUSTER_COALESCING_H_

#include <functional>
#include <memory>
#include <vector>

#include "muster/base/export.h"
#include "muster/dataplane/collective.h"
#include "muster/process_group.h"

namespace MUSTER_EXPORT muster {

using CoalesceOptions = CollectiveOptions;

// CoalescingManager collects the collectives that Coalesce starts. All must
// have the same verb and the same reduction. A method throws DistError
// (kInvalidArgument) if its collective does not go with the first one; then
// nothing is started.
class CoalescingManager {
 public:
  CoalescingManager(const CoalescingManager&) = delete;
  CoalescingManager& operator=(const CoalescingManager&) = delete;

  // The arguments are those of ProcessGroup's methods. `factor` is the factor
  // of kPremulSum.
  void AllReduce(const Tensor& tensor, const ReduceOperator& op = {},
                 double factor = 1);
  void AllGather(const std::vector<Tensor>& tensor_list, const Tensor& tensor);
  void AllGatherIntoTensor(const Tensor& output, const Tensor& input);
  void ReduceScatterTensor(const Tensor& output, const Tensor& input,
                           const ReduceOperator& op = {}, double factor = 1);

 private:
  friend Work Coalesce(const CoalesceOptions& options,
                       const std::function<void(CoalescingManager&)>& add);

  CoalescingManager() = default;
  void Add(dataplane::Collective collective);

  std::vector<dataplane::Collective> collectives_;
};

// Calls `add`, which adds collectives, and then starts them together. The
// result is one Work, which is complete when all collectives are; its Result()
// has all tensors that were written, in order. If `add` adds nothing, the Work
// is complete at once. If `add` throws, Coalesce throws the same, and nothing
// is started.
//
// The results are bitwise equal to those of separate collectives. Small tensors
// of one type are copied into one buffer and sent together. Types may differ.
// All ranks must add the same collectives in the same order. If one collective
// has bad arguments, nothing is started. Throws what Work::Wait throws.
Work Coalesce(const CoalesceOptions& options,
              const std::function<void(CoalescingManager&)>& add);

// These functions coalesce one verb over the tensors of a list, which must not
// be empty. Lists of outputs and inputs must have the same length.
Work AllReduceCoalesced(const std::vector<Tensor>& tensors,
                        const AllReduceOptions& options = {});
// `output_tensor_lists[rank][i]` becomes that rank's `input_tensor_list[i]`.
Work AllGatherCoalesced(
    const std::vector<std::vector<Tensor>>& output_tensor_lists,
    const std::vector<Tensor>& input_tensor_list,
    const AllGatherOptions& options = {});
Work AllGatherIntoTensorCoalesced(const std::vector<Tensor>& outputs,
                                  const std::vector<Tensor>& inputs,
                                  const AllGatherOptions& options = {});
Work ReduceScatterTensorCoalesced(const std::vector<Tensor>& outputs,
                                  const std::vector<Tensor>& inputs,
                                  const ReduceScatterOptions& options = {});

}  // namespace muster

#endif  // MUSTER_COALESCING_H_
