// Device meshes: an array of ranks, with a group for each line of each
// dimension.

#ifndef MUSTER_DEVICE_MESH_H_
#define MUSTER_DEVICE_MESH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/export.h"
#include "muster/process_group.h"

namespace MUSTER_EXPORT muster {

struct DeviceMeshOptions {
  // One name for each dimension, all different, or none at all.
  std::vector<std::string> dim_names = {};
  // The backend of a dimension's groups, by the name or the index ("0") of the
  // dimension. Dimensions without an entry use the default group's backend.
  std::map<std::string, std::string> backend_override = {};
};

// The groups of one dimension of a mesh.
struct MeshGroups {
  // The global ranks of each group, in the order of the mesh. Each rank of the
  // mesh is in exactly one group.
  std::vector<std::vector<int>> ranks;
  // A text for people: "mesh_dp".
  std::string description;
  // Empty: the default group's backend.
  std::string backend;
};

// The default group, and a function that makes other groups.
struct MeshWorld {
  int rank = 0;
  int size = 0;
  std::shared_ptr<ProcessGroup> group;
  // Makes groups. Every rank of the default group calls it in the same order,
  // whether the rank is in the mesh or not. Returns the group that this process
  // is in, or the non-member group if it is in none (not null, which would mean
  // the default group).
  std::function<std::shared_ptr<ProcessGroup>(const MeshGroups&)> make_groups;
  // Returns the global ranks of an existing group. If null, the mesh does not
  // check the ranks that a caller gives for a group.
  std::function<std::vector<int>(const std::shared_ptr<ProcessGroup>&)>
      ranks_of = nullptr;
};

// An existing group.
struct MeshGroup {
  std::shared_ptr<ProcessGroup> group;
  // Global ranks. Empty: the ranks of the group, which this process must be in.
  std::vector<int> ranks = {};
};

// DeviceMesh is an array of ranks with named dimensions. Along each dimension,
// the ranks that differ in that coordinate alone form a group. In a mesh of
// shape {2, 4} with the names "dp" and "tp", rank 5 is at (1, 1); its "dp"
// group has ranks 1 and 5, and its "tp" group has ranks 4 to 7.
//
// A slice is the part of a mesh along some of its dimensions that contains this
// process; it shares the mesh's groups. A mesh that is made from another mesh
// keeps a reference to the first mesh, the root. A DeviceMesh is a handle:
// copies refer to the same mesh.
//
// Functions that make, flatten or unflatten a mesh make groups: every rank of
// the default group must call them in the same order. The other functions stay
// within the process. Not thread-safe.
//
// Bad arguments throw DistError (kInvalidArgument).
class DeviceMesh {
 public:
  // Makes a mesh of the ranks 0 to n-1, row-major.
  static DeviceMesh Init(MeshWorld world, const std::string& device_type,
                         const std::vector<int64_t>& shape,
                         const DeviceMeshOptions& options = {});

  // Makes a mesh of `ranks`, row-major.
  static DeviceMesh FromArray(MeshWorld world, const std::string& device_type,
                              const std::vector<int64_t>& shape,
                              const std::vector<int>& ranks,
                              const DeviceMeshOptions& options = {});

  // Makes a mesh of one dimension from a group's ranks. `ranks`, if given, must
  // be the same.
  static DeviceMesh FromGroup(
      MeshWorld world, const MeshGroup& group, const std::string& device_type,
      const std::optional<std::vector<int>>& ranks = std::nullopt,
      const std::vector<std::string>& dim_names = {});

  // Makes a mesh of `ranks`, row-major. `groups` has this process's group along
  // each dimension.
  static DeviceMesh FromGroups(MeshWorld world,
                               const std::vector<MeshGroup>& groups,
                               const std::string& device_type,
                               const std::vector<int64_t>& shape,
                               const std::vector<int>& ranks,
                               const std::vector<std::string>& dim_names);

  // Joins the dimensions of `meshes` in order. All must have the same root.
  static DeviceMesh Concatenate(const std::vector<DeviceMesh>& meshes);

  const std::string& device_type() const;
  int ndim() const;
  std::vector<int64_t> shape() const;
  // The number of ranks in all dimensions, or in one.
  int64_t size() const;
  int64_t size(int dim) const;
  // Empty if the dimensions have no names.
  std::vector<std::string> dim_names() const;
  // The ranks, row-major. Throws DistError (kFailedPrecondition) for a slice
  // that does not contain this process.
  std::vector<int> ranks() const;

  // Returns the slice along these dimensions, which must be in the mesh's
  // order. All of them give the mesh itself. The root also accepts the names of
  // flattened dimensions.
  DeviceMesh operator[](std::string_view name) const;
  DeviceMesh Slice(const std::vector<std::string>& names) const;

  // Returns a mesh with all dimensions as one. If `name` is empty, it is the
  // dimensions' names, joined with "_". A second call returns the same mesh.
  DeviceMesh Flatten(const std::string& name = "",
                     const std::string& backend = "") const;

  // Returns a mesh with dimension `dim` split into dimensions of `sizes`.
  DeviceMesh Unflatten(int dim, const std::vector<int64_t>& sizes,
                       const DeviceMeshOptions& options) const;
  DeviceMesh Unflatten(std::string_view dim, const std::vector<int64_t>& sizes,
                       const DeviceMeshOptions& options) const;

  // Returns this process's group along a dimension; without an argument, along
  // the only dimension. A name may also be the name of a flattened dimension.
  // If this process is not in the mesh, the result is the non-member group
  // (NewGroup), on which collectives do nothing.
  std::shared_ptr<ProcessGroup> GetGroup() const;
  std::shared_ptr<ProcessGroup> GetGroup(int dim) const;
  std::shared_ptr<ProcessGroup> GetGroup(std::string_view dim) const;
  std::vector<std::shared_ptr<ProcessGroup>> GetAllGroups() const;

  // This process's global rank, and its rank in the group along a dimension; -1
  // if it is not in the mesh.
  int GetRank() const;
  int GetLocalRank() const;
  int GetLocalRank(int dim) const;
  int GetLocalRank(std::string_view dim) const;

  // The coordinates of this process; none if it is not in the mesh.
  std::optional<std::vector<int64_t>> GetCoordinate() const;

  // For instance "DeviceMesh((dp=2, tp=4), cpu)".
  std::string ToString() const;

  // True if both have the same dimensions of the same root.
  bool operator==(const DeviceMesh& other) const;

 private:
  struct MUSTER_HIDDEN Dim;
  struct MUSTER_HIDDEN Root;

  DeviceMesh(std::shared_ptr<Root> root, std::vector<Dim> dims);

  static std::shared_ptr<Root> MakeRoot(
      MeshWorld world, const std::string& device_type,
      const std::vector<int64_t>& shape, const std::vector<int>& ranks,
      const std::vector<std::string>& dim_names);

  int FindIndex(std::string_view name) const;
  const Dim& GetDim(int index) const;
  const Dim& GetDim(std::string_view name) const;
  const Dim& OnlyDim() const;
  int LocalRankIn(const Dim& dim) const;

  std::shared_ptr<Root> root_;
  std::shared_ptr<const std::vector<Dim>> dims_;
};

}  // namespace muster

#endif  // MUSTER_DEVICE_MESH_H_
