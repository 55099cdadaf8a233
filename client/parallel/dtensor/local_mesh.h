// A device mesh whose ranks are threads of one process, for tests.

#ifndef MUSTER_CLIENT_PARALLEL_DTENSOR_LOCAL_MESH_H_
#define MUSTER_CLIENT_PARALLEL_DTENSOR_LOCAL_MESH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/testing/local_groups.h"
#include "muster/device_mesh.h"

namespace muster::testing {

class LocalMesh {
 public:
  // `ranks`, row-major, are the numbers from 0 on, in any order. The dimensions
  // are called d0, d1 and so on.
  LocalMesh(const std::vector<int64_t>& shape, const std::vector<int>& ranks);
  // In ascending order.
  explicit LocalMesh(const std::vector<int64_t>& shape);

  // The number of ranks.
  int size() const { return static_cast<int>(meshes_.size()) - 1; }

  // Calls `body` for each rank on a thread of its own. Returns the DistError's
  // text for each rank, or "".
  std::vector<std::string> OnEachRank(
      const std::function<void(const DeviceMesh&, int)>& body);

  // As a rank that is not in the mesh sees it.
  const DeviceMesh& outside() const { return meshes_.back(); }

  // Ends the membership of a rank in its groups.
  void Leave(int rank);

 private:
  std::shared_ptr<ProcessGroup> GetGroup(const std::vector<int>& ranks,
                                         int rank);

  // By their ranks.
  std::map<std::vector<int>, std::unique_ptr<LocalGroups>> groups_;
  // By rank; the last is the outside.
  std::vector<DeviceMesh> meshes_;
};

}  // namespace muster::testing

#endif  // MUSTER_CLIENT_PARALLEL_DTENSOR_LOCAL_MESH_H_
