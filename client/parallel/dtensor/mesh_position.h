// This process in a device mesh, and what the ranks of a mesh agree on.

#ifndef MUSTER_CLIENT_PARALLEL_DTENSOR_MESH_POSITION_H_
#define MUSTER_CLIENT_PARALLEL_DTENSOR_MESH_POSITION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/status.h"
#include "muster/device_mesh.h"
#include "muster/process_group.h"

namespace muster::internal {

// The facts that do not change in a mesh, computed once.
class MeshPosition {
 public:
  explicit MeshPosition(const DeviceMesh& mesh);
  // A mesh of the one dimension of a group, which has this process.
  explicit MeshPosition(const std::shared_ptr<ProcessGroup>& group);

  // False if this process is not in the mesh. Then nothing below but the shape
  // means anything.
  bool is_member() const { return is_member_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  const std::vector<int64_t>& coordinate() const { return coordinate_; }
  // The coordinate of the rank at `index` along `dim` from here.
  std::vector<int64_t> CoordinateAlong(size_t dim, int64_t index) const;
  const std::shared_ptr<ProcessGroup>& group(size_t dim) const {
    return groups_[dim];
  }
  // The rank in group(dim) of the rank at `index` along `dim`. A group numbers
  // its ranks in ascending order of the global ranks, a mesh does not need to.
  int GroupRank(size_t dim, int64_t index) const {
    return group_ranks_[dim][static_cast<size_t>(index)];
  }
  // Global ranks, row-major.
  const std::vector<int>& ranks() const { return ranks_; }
  bool is_cuda() const { return is_cuda_; }

 private:
  std::vector<int64_t> shape_;
  std::vector<int64_t> coordinate_;
  std::vector<int> ranks_;
  std::vector<std::shared_ptr<ProcessGroup>> groups_;
  std::vector<std::vector<int>> group_ranks_;
  bool is_member_ = false;
  bool is_cuda_;
};

// Every rank of the mesh gets all ranks' byte strings, row-major.
std::vector<std::string> GatherOverMesh(const MeshPosition& mesh,
                                        const std::string& own);

// The name of an argument, and its value as text.
using AgreedArgument = std::pair<std::string, std::string>;

// Checks, over all ranks of the mesh, that no rank's `own` status is a failure
// and that all ranks have the same `arguments`. Otherwise every rank throws the
// same DistError: `function` on rank 3: the status's text; or `function`:
// argument NAME is A on rank 0 and B on rank
// 3. If all agree it is one all_reduce of 16 bytes along each dimension.
void CheckAgreement(const MeshPosition& mesh, const char* function,
                    const Status& own,
                    const std::vector<AgreedArgument>& arguments);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_DTENSOR_MESH_POSITION_H_
