// Several collectives as one.
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

#ifndef MUSTER_CLIENT_COALESCING_H_
#define MUSTER_CLIENT_COALESCING_H_

#include <functional>
#include <memory>
#include <vector>

#include "client/process_group.h"
#include "dataplane/collective.h"

namespace muster {

using CoalesceOptions = CollectiveOptions;

// CoalescingManager collects what Coalesce starts: collectives of one verb,
// and of one reduction. Its methods throw DistError (kInvalidArgument) when
// something else was there before; then nothing is started.
class CoalescingManager {
 public:
  CoalescingManager(const CoalescingManager&) = delete;
  CoalescingManager& operator=(const CoalescingManager&) = delete;

  // As the methods of ProcessGroup. `factor` is that of kPremulSum.
  void AllReduce(const Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                 double factor = 1);
  void AllGather(const std::vector<Tensor>& tensor_list, const Tensor& tensor);
  void AllGatherIntoTensor(const Tensor& output, const Tensor& input);
  void ReduceScatterTensor(const Tensor& output, const Tensor& input,
                           ReduceOp op = ReduceOp::kSum, double factor = 1);

 private:
  friend Work Coalesce(const CoalesceOptions& options,
                       const std::function<void(CoalescingManager&)>& add);

  CoalescingManager() = default;
  void Add(dataplane::Collective collective);

  std::vector<dataplane::Collective> collectives_;
};

// Calls `add`, which adds collectives, and then starts them together: one Work
// that is complete when all are, and whose Result() are all tensors written, in
// their order. If `add` throws, so does this, and nothing is started. Without
// any it is complete at once.
//
// The results are bit for bit those of the collectives apart, but small tensors
// of one type travel as one, at the price of copying them. Types may differ.
// All ranks must add the same, in the same order. Nothing is started if one of
// them has bad arguments. Throws what Work::Wait throws.
Work Coalesce(const CoalesceOptions& options,
              const std::function<void(CoalescingManager&)>& add);

// The same of lists, which must not be empty; of outputs and inputs equally
// long ones.
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

#endif  // MUSTER_CLIENT_COALESCING_H_
