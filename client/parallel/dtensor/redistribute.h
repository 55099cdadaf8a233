// Runs the steps of a redistribution plan.

#ifndef MUSTER_CLIENT_PARALLEL_DTENSOR_REDISTRIBUTE_H_
#define MUSTER_CLIENT_PARALLEL_DTENSOR_REDISTRIBUTE_H_

#include <cstdint>
#include <vector>

#include "client/parallel/dtensor/mesh_position.h"
#include "client/parallel/dtensor/tensor_memory.h"
#include "muster/placement.h"

namespace muster::internal {

// Runs one step on this rank's part of a tensor of `shape` whose placements
// were `before`, and writes the result to `out`. `out` and `in` may be one
// tensor for all_reduce. All ranks of the line call it. Tensors on CUDA devices
// work where parts are contiguous and nothing is copied here; otherwise it
// throws DistError (kUnimplemented). Also throws what collectives throw.
void RunStep(const MeshPosition& mesh, const RedistributeStep& step,
             const std::vector<int64_t>& shape,
             const std::vector<Placement>& before, const Tensor& in,
             const Tensor& out);

// Redistributes this rank's part of a tensor. `mesh` has this process. The
// result may share the memory of `local`, which does not change. All ranks of
// the mesh call it with the same plan. Throws what collectives throw, and
// DistError (kUnimplemented) for tensors on CUDA devices.
OwnedTensor RunPlan(const MeshPosition& mesh, const RedistributePlan& plan,
                    OwnedTensor local);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_DTENSOR_REDISTRIBUTE_H_
