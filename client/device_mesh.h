// Ranks as the places of an array, and a group for each of its lines.

#ifndef MUSTER_CLIENT_DEVICE_MESH_H_
#define MUSTER_CLIENT_DEVICE_MESH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/process_group.h"

namespace muster {

struct DeviceMeshOptions {
  // One for each dimension, no two alike, or none at all.
  std::vector<std::string> dim_names = {};
  // The backend of a dimension's groups, by its name or its index ("0"); those
  // that are not here have the default group's.
  std::map<std::string, std::string> backend_override = {};
};

// The groups of one dimension of a mesh.
struct MeshGroups {
  // By global ranks, in the order of the mesh. Each rank of the mesh is in
  // exactly one.
  std::vector<std::vector<int>> ranks;
  // For people: "mesh_dp".
  std::string description;
  // Empty: the default group's.
  std::string backend;
};

// What a mesh knows of the default group, and how it makes others.
struct MeshWorld {
  int rank = 0;
  int size = 0;
  std::shared_ptr<ProcessGroup> group;
  // Called on every rank of the default group in the same order, whether it is
  // in the mesh or not. Returns the group that this process is in, or one that
  // stands for none (null would be the default group to whoever it is given
  // to).
  std::function<std::shared_ptr<ProcessGroup>(const MeshGroups&)> make_groups;
  // The global ranks of a group, for those that there are already. Null: nobody
  // compares them with what is said of the group.
  std::function<std::vector<int>(const std::shared_ptr<ProcessGroup>&)>
      ranks_of = nullptr;
};

// A group that there is already.
struct MeshGroup {
  std::shared_ptr<ProcessGroup> group;
  // Global ranks. Empty, where this process is in the group: the group's.
  std::vector<int> ranks = {};
};

// DeviceMesh is an array of ranks with named dimensions. Along each dimension,
// the ranks that differ in that coordinate alone have a group: in a mesh
// {"dp", "tp"} of shape {2, 4}, rank 5 is at (1, 1), its "dp" group is of ranks
// 1 and 5, and its "tp" group of ranks 4 to 7.
//
// A slice is the part of a mesh over some of its dimensions that this process
// is in; it shares the mesh's groups. What is made from a mesh refers to the
// whole that it began with, its root. A DeviceMesh is a handle: copies are the
// same mesh.
//
// Making, flattening and unflattening make groups: every rank of the default
// group must do the same, in the same order. The rest stays within the process.
// Not thread-safe.
//
// Bad arguments throw DistError (kInvalidArgument).
class DeviceMesh {
 public:
  // Of the ranks 0 to n-1, row-major.
  static DeviceMesh Init(MeshWorld world, const std::string& device_type,
                         const std::vector<int64_t>& shape,
                         const DeviceMeshOptions& options = {});

  // Of these ranks, row-major.
  static DeviceMesh FromArray(MeshWorld world, const std::string& device_type,
                              const std::vector<int64_t>& shape,
                              const std::vector<int>& ranks,
                              const DeviceMeshOptions& options = {});

  // One dimension, of the group's ranks; `ranks`, when given, must be those.
  static DeviceMesh FromGroup(
      MeshWorld world, const MeshGroup& group, const std::string& device_type,
      const std::optional<std::vector<int>>& ranks = std::nullopt,
      const std::vector<std::string>& dim_names = {});

  // Of these ranks, row-major; `groups` are this process's along each
  // dimension.
  static DeviceMesh FromGroups(MeshWorld world,
                               const std::vector<MeshGroup>& groups,
                               const std::string& device_type,
                               const std::vector<int64_t>& shape,
                               const std::vector<int>& ranks,
                               const std::vector<std::string>& dim_names);

  // The dimensions of all of `meshes`, which have one root, one after the
  // other.
  static DeviceMesh Concatenate(const std::vector<DeviceMesh>& meshes);

  const std::string& device_type() const;
  int ndim() const;
  std::vector<int64_t> shape() const;
  // Of all dimensions, and of one.
  int64_t size() const;
  int64_t size(int dim) const;
  // Empty when the mesh has none.
  std::vector<std::string> dim_names() const;
  // Row-major. Throws DistError (kFailedPrecondition): a slice that this
  // process is not in.
  std::vector<int> ranks() const;

  // The slice of these dimensions, which must be in the mesh's order. All of
  // them are the mesh itself. The root also knows the names of dimensions that
  // were flattened.
  DeviceMesh operator[](std::string_view name) const;
  DeviceMesh Slice(const std::vector<std::string>& names) const;

  // All dimensions as one. Empty `name`: the dimensions' names, joined with
  // "_". Asked for again, it is the same mesh.
  DeviceMesh Flatten(const std::string& name = "",
                     const std::string& backend = "") const;

  // With the dimension `dim` as several.
  DeviceMesh Unflatten(int dim, const std::vector<int64_t>& sizes,
                       const DeviceMeshOptions& options) const;
  DeviceMesh Unflatten(std::string_view dim, const std::vector<int64_t>& sizes,
                       const DeviceMeshOptions& options) const;

  // This process's group along a dimension, which need not be named if there is
  // one alone. When this process is not in the mesh, it is what NewGroup gives
  // to those that are not members: collectives on it do nothing. A name may
  // also be one that was flattened.
  std::shared_ptr<ProcessGroup> GetGroup() const;
  std::shared_ptr<ProcessGroup> GetGroup(int dim) const;
  std::shared_ptr<ProcessGroup> GetGroup(std::string_view dim) const;
  std::vector<std::shared_ptr<ProcessGroup>> GetAllGroups() const;

  // This process's global rank, and its rank in GetGroup; -1 when it is not in
  // the mesh.
  int GetRank() const;
  int GetLocalRank() const;
  int GetLocalRank(int dim) const;
  int GetLocalRank(std::string_view dim) const;

  // Where this process is; none when it is not in the mesh.
  std::optional<std::vector<int64_t>> GetCoordinate() const;

  // "DeviceMesh((dp=2, tp=4), cpu)".
  std::string ToString() const;

  // Whether both are the same dimensions of the same root.
  bool operator==(const DeviceMesh& other) const;

 private:
  struct Dim;
  struct Root;

  DeviceMesh(std::shared_ptr<Root> root, std::vector<Dim> dims);

  static std::shared_ptr<Root> MakeRoot(
      MeshWorld world, const std::string& device_type,
      const std::vector<int64_t>& shape, const std::vector<int>& ranks,
      const std::vector<std::string>& dim_names);

  int IndexOf(std::string_view name) const;
  const Dim& DimOf(int index) const;
  const Dim& DimOf(std::string_view name) const;
  const Dim& OnlyDim() const;
  int LocalRankIn(const Dim& dim) const;

  std::shared_ptr<Root> root_;
  std::shared_ptr<const std::vector<Dim>> dims_;
};

}  // namespace muster

#endif  // MUSTER_CLIENT_DEVICE_MESH_H_
