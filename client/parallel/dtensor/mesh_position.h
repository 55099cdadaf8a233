// This process in a device mesh.

#ifndef MUSTER_CLIENT_PARALLEL_DTENSOR_MESH_POSITION_H_
#define MUSTER_CLIENT_PARALLEL_DTENSOR_MESH_POSITION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
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
  const std::vector<std::shared_ptr<ProcessGroup>>& groups() const {
    return groups_;
  }
  // The rank in group(dim) of the rank at `index` along `dim`. A group numbers
  // its ranks in ascending order of the global ranks, a mesh does not need to.
  int GroupRank(size_t dim, int64_t index) const {
    return group_ranks_[dim][static_cast<size_t>(index)];
  }
  // Global ranks, row-major.
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  std::vector<int64_t> shape_;
  std::vector<int64_t> coordinate_;
  std::vector<int> ranks_;
  std::vector<std::shared_ptr<ProcessGroup>> groups_;
  std::vector<std::vector<int>> group_ranks_;
  bool is_member_ = false;
};

// Every rank of the mesh gets all ranks' byte strings, row-major.
std::vector<std::string> GatherOverMesh(const MeshPosition& mesh,
                                        const std::string& own);

// The status of the DistError that `check` throws; OK if it throws none.
Status CatchError(const std::function<void()>& check);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_DTENSOR_MESH_POSITION_H_
