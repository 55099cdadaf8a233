#ifndef MUSTER_CLIENT_PARALLEL_DTENSOR_DISTRIBUTE_H_
#define MUSTER_CLIENT_PARALLEL_DTENSOR_DISTRIBUTE_H_

#include "client/parallel/dtensor/mesh_position.h"
#include "client/parallel/dtensor/tensor_memory.h"
#include "muster/placement.h"

namespace muster::internal {

// Gives each rank its part of `full` of the mesh's first rank, which alone is
// read. `layout` has the placements, and gets that tensor's shape and type.
// `mesh` has this process. All ranks of the mesh call it. The result owns its
// memory. Throws as DTensor::Distribute.
OwnedTensor RunDistribute(const MeshPosition& mesh, const Tensor& full,
                          TensorLayout& layout);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_DTENSOR_DISTRIBUTE_H_
