// Runs the steps of a redistribution plan. What a step needs is allocated and
// checked before any step runs, so that ranks can agree to go on.

#ifndef MUSTER_CLIENT_PARALLEL_DTENSOR_REDISTRIBUTE_H_
#define MUSTER_CLIENT_PARALLEL_DTENSOR_REDISTRIBUTE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "client/parallel/dtensor/mesh_position.h"
#include "client/parallel/dtensor/tensor_memory.h"
#include "muster/placement.h"

namespace muster::internal {

// One step on this rank's part of a tensor. `mesh` outlives it.
class PreparedStep {
 public:
  // The whole tensor has `shape`, and its placements were `before`. `in` is
  // this rank's part, of which a step without `out` reads the type and the
  // device alone. The result is written to `out`, if given; `out` and `in` may
  // be one tensor for all_reduce. Tensors on CUDA devices work where parts are
  // contiguous and nothing is copied here. Throws DistError (kUnimplemented,
  // kResourceExhausted).
  PreparedStep(const MeshPosition& mesh, const RedistributeStep& step,
               const std::vector<int64_t>& shape,
               const std::vector<Placement>& before, const Tensor& in,
               const std::optional<Tensor>& out = std::nullopt);

  // Runs it once. The result may share the memory of `in`, which does not
  // change unless it is `out`. All ranks of the line make the call. Throws what
  // collectives throw.
  OwnedTensor Run(const OwnedTensor& in);
  void Run(const Tensor& in) { Run(OwnedTensor{.tensor = in}); }

 private:
  // Which elements this rank exchanges with each rank of a group, by rank in
  // the group, and where they lie in its tensor.
  struct Parts {
    std::vector<ShardBox> boxes = {};
    std::vector<int64_t> counts = {};
    // The first element of each, if all lie one after the other in the tensor;
    // otherwise empty.
    std::vector<int64_t> displacements = {};
  };

  ProcessGroup& group() const { return *mesh_.group(dim_); }
  ShardBox BoxAt(const std::vector<Placement>& placements, int64_t index) const;
  Parts FindParts(const ShardBox& whole,
                  const std::vector<Placement>& placements) const;
  OwnedTensor AllocateFor(const Parts& parts) const;
  bool KeepsAll() const;
  void RequireHost() const;

  void Pack(const Tensor& in) const;
  void Unpack() const;
  // Copies `part` from `in` to the result.
  void CopyToOut(const Tensor& in, const ShardBox& part) const;
  void AllGather(const Tensor& in) const;
  void ReduceScatter(const Tensor& in) const;
  void AllToAll(const Tensor& in) const;

  const MeshPosition& mesh_;
  const RedistributeStep step_;
  const size_t dim_;
  const std::vector<int64_t> shape_;
  const DataType type_;
  const Device device_;
  const size_t element_bytes_;
  ShardBox in_box_;
  ShardBox out_box_;
  // This rank gives and takes these. `packed` and `received` have their
  // elements one after the other, if that is needed.
  Parts given_;
  Parts taken_;
  OwnedTensor packed_;
  OwnedTensor received_;
  // Not given: the result is the input.
  std::optional<OwnedTensor> out_;
};

// All steps of a plan, for tensors on the CPU. `mesh` has this process and
// outlives it.
class PreparedPlan {
 public:
  // Throws DistError (kResourceExhausted), and kUnimplemented if `device` is no
  // CPU and there is something to do.
  PreparedPlan(const MeshPosition& mesh, const RedistributePlan& plan,
               Device device);

  // Runs it once on this rank's part of the tensor. The result may share the
  // memory of `local`, which does not change. All ranks of the mesh make the
  // call with the same plan. Throws what collectives throw.
  OwnedTensor Run(OwnedTensor local);

 private:
  std::deque<PreparedStep> steps_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_DTENSOR_REDISTRIBUTE_H_
