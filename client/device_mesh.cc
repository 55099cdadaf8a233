#include "muster/device_mesh.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "client/control/throw.h"
#include "client/groups/mesh_arguments.h"
#include "client/groups/mesh_layout.h"
#include "muster/base/status.h"

namespace muster {

using internal::ErrorSource;
using internal::MeshDim;
using internal::Names;
using internal::Numbers;
using internal::ThrowIfFailed;
using internal::ValueOrThrow;

struct DeviceMesh::Dim {
  MeshDim layout = {};
  std::string name = {};  // Empty: none.
  std::shared_ptr<ProcessGroup> group = nullptr;

  bool operator==(const Dim& other) const {
    return layout == other.layout && name == other.name;
  }
};

struct DeviceMesh::Root {
  MeshWorld world;
  std::string device_type;
  // By position.
  std::vector<int> ranks;
  // This process's position; -1: not in the mesh.
  int64_t place = -1;
  std::vector<std::string> dim_names;
  // The flattened dimensions, by name.
  std::map<std::string, Dim, std::less<>> flattened;

  int64_t places() const { return static_cast<int64_t>(ranks.size()); }
  std::vector<int> RanksAt(const std::vector<int64_t>& walk) const;
  std::vector<int64_t> ComputeWalk(const MeshDim& layout) const;
  void MakeGroup(Dim& dim, const std::string& backend) const;
};

namespace {

using internal::Invalid;

std::vector<int> Sorted(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

void CheckGroupRanks(const std::vector<int>& mesh, const MeshGroup& group) {
  if (Sorted(mesh) == Sorted(group.ranks)) return;
  Invalid(absl::StrCat("Invalid mesh ", Numbers(mesh),
                       " for ProcessGroup with ranks ", Numbers(group.ranks)));
}

// Returns the group with its ranks. Checks the ranks that were given with it.
MeshGroup Stated(const MeshWorld& world, MeshGroup group) {
  if (group.group == nullptr) {
    Invalid(absl::StrCat("null was given for the ProcessGroup with ranks ",
                         Numbers(group.ranks)));
  }
  const std::vector<int> own = world.ranks_of == nullptr
                                   ? std::vector<int>()
                                   : world.ranks_of(group.group);
  if (group.ranks.empty()) group.ranks = own;
  if (group.ranks.empty()) {
    Invalid(
        "MeshGroup::ranks are needed of a ProcessGroup that this process is "
        "not in");
  }
  // Without this process in the group, its ranks are not known.
  if (own.empty() || Sorted(own) == Sorted(group.ranks)) return group;
  Invalid(absl::StrCat("MeshGroup::ranks are ", Numbers(group.ranks),
                       ", but the ProcessGroup has ranks ", Numbers(own)));
}

template <typename Dims>
std::vector<MeshDim> Layouts(const Dims& dims) {
  std::vector<MeshDim> layouts;
  layouts.reserve(dims.size());
  for (const auto& dim : dims) layouts.push_back(dim.layout);
  return layouts;
}

}  // namespace

std::vector<int> DeviceMesh::Root::RanksAt(
    const std::vector<int64_t>& walk) const {
  std::vector<int> result;
  result.reserve(walk.size());
  for (const int64_t at : walk) {
    result.push_back(ranks[static_cast<size_t>(at)]);
  }
  return result;
}

std::vector<int64_t> DeviceMesh::Root::ComputeWalk(
    const MeshDim& layout) const {
  std::vector<int64_t> walk = internal::ComputeOffsets(layout);
  const int64_t start =
      place - walk[static_cast<size_t>(layout.ComputeCoordinate(place))];
  for (int64_t& at : walk) at += start;
  return walk;
}

void DeviceMesh::Root::MakeGroup(Dim& dim, const std::string& backend) const {
  MeshGroups groups;
  for (const auto& walk : internal::ComputeWalks(dim.layout, places())) {
    groups.ranks.push_back(RanksAt(walk));
  }
  // The group of all ranks exists already. Their order in the mesh does not
  // matter: every group numbers its ranks in ascending order.
  if (backend.empty() && groups.ranks.size() == 1 &&
      static_cast<int>(groups.ranks.front().size()) == world.size) {
    dim.group = world.group;
    return;
  }
  groups.description = absl::StrCat("mesh_", dim.name);
  groups.backend = backend;
  dim.group = world.make_groups(groups);
}

DeviceMesh::DeviceMesh(std::shared_ptr<Root> root, std::vector<Dim> dims)
    : root_(std::move(root)),
      dims_(std::make_shared<const std::vector<Dim>>(std::move(dims))) {}

std::shared_ptr<DeviceMesh::Root> DeviceMesh::MakeRoot(
    MeshWorld world, const std::string& device_type,
    const std::vector<int64_t>& shape, const std::vector<int>& ranks,
    const std::vector<std::string>& dim_names) {
  if (world.make_groups == nullptr) {
    internal::Throw(
        ErrorSource::kControl,
        InvalidArgumentError("DeviceMesh: MeshWorld::make_groups is missing"));
  }
  ThrowIfFailed(ErrorSource::kControl,
                internal::CheckDimNames(dim_names, shape.size()));
  ThrowIfFailed(ErrorSource::kControl, internal::CheckDeviceType(device_type));
  const int64_t count = ValueOrThrow(ErrorSource::kControl,
                                     internal::CountRanks(shape, world.size));
  ThrowIfFailed(ErrorSource::kControl,
                internal::CheckRanks(ranks, count, world.size));
  auto root = std::make_shared<Root>();
  root->device_type = device_type;
  root->ranks = ranks;
  const auto mine = std::find(ranks.begin(), ranks.end(), world.rank);
  root->place = mine == ranks.end() ? -1 : mine - ranks.begin();
  root->dim_names = dim_names;
  root->world = std::move(world);
  return root;
}

DeviceMesh DeviceMesh::Init(MeshWorld world, const std::string& device_type,
                            const std::vector<int64_t>& shape,
                            const DeviceMeshOptions& options) {
  ThrowIfFailed(ErrorSource::kControl,
                internal::CheckDimNames(options.dim_names, shape.size()));
  const int64_t count = ValueOrThrow(ErrorSource::kControl,
                                     internal::CountRanks(shape, world.size));
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return FromArray(std::move(world), device_type, shape, ranks, options);
}

DeviceMesh DeviceMesh::FromArray(MeshWorld world,
                                 const std::string& device_type,
                                 const std::vector<int64_t>& shape,
                                 const std::vector<int>& ranks,
                                 const DeviceMeshOptions& options) {
  auto root =
      MakeRoot(std::move(world), device_type, shape, ranks, options.dim_names);
  const std::vector<std::string> backends =
      ValueOrThrow(ErrorSource::kControl,
                   internal::ResolveBackends(options.backend_override,
                                             options.dim_names, shape.size()));
  const std::vector<MeshDim> layouts = internal::RowMajor(shape);
  std::vector<Dim> dims;
  dims.reserve(layouts.size());
  for (size_t i = 0; i < layouts.size(); ++i) {
    Dim& dim = dims.emplace_back(Dim{.layout = layouts[i]});
    if (!options.dim_names.empty()) dim.name = options.dim_names[i];
    root->MakeGroup(dim, backends[i]);
  }
  return {std::move(root), std::move(dims)};
}

DeviceMesh DeviceMesh::FromGroup(MeshWorld world, const MeshGroup& given,
                                 const std::string& device_type,
                                 const std::optional<std::vector<int>>& ranks,
                                 const std::vector<std::string>& dim_names) {
  const MeshGroup group = Stated(world, given);
  if (ranks.has_value() && *ranks != group.ranks) {
    Invalid(absl::StrCat("Invalid mesh ", Numbers(*ranks),
                         " for ProcessGroup with ranks ",
                         Numbers(group.ranks)));
  }
  const std::vector<int64_t> shape = {static_cast<int64_t>(group.ranks.size())};
  auto root =
      MakeRoot(std::move(world), device_type, shape, group.ranks, dim_names);
  return {std::move(root),
          {Dim{.layout = internal::RowMajor(shape).front(),
               .name = dim_names.empty() ? "" : dim_names.front(),
               .group = group.group}}};
}

DeviceMesh DeviceMesh::FromGroups(MeshWorld world,
                                  const std::vector<MeshGroup>& given,
                                  const std::string& device_type,
                                  const std::vector<int64_t>& shape,
                                  const std::vector<int>& ranks,
                                  const std::vector<std::string>& dim_names) {
  if (given.empty()) {
    Invalid("Expect at least one ProcessGroup to be specified");
  }
  if (ranks.empty()) {
    Invalid("Must pass mesh if passing multiple ProcessGroups");
  }
  if (dim_names.empty()) {
    Invalid("Must pass mesh_dim_names if passing multiple ProcessGroups");
  }
  if (shape.size() != given.size()) {
    Invalid(absl::StrCat(
        "Expect mesh with ndim equal to number of ProcessGroups but got mesh ",
        Numbers(ranks), " of ", shape.size(), " dimensions and ", given.size(),
        " ProcessGroups"));
  }
  std::vector<MeshGroup> groups;
  for (const MeshGroup& group : given) groups.push_back(Stated(world, group));
  auto root = MakeRoot(std::move(world), device_type, shape, ranks, dim_names);
  const std::vector<MeshDim> layouts = internal::RowMajor(shape);
  std::vector<Dim> dims;
  dims.reserve(layouts.size());
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (root->place >= 0) {
      CheckGroupRanks(root->RanksAt(root->ComputeWalk(layouts[i])), groups[i]);
    }
    dims.push_back(
        {.layout = layouts[i], .name = dim_names[i], .group = groups[i].group});
  }
  return {std::move(root), std::move(dims)};
}

DeviceMesh DeviceMesh::Concatenate(const std::vector<DeviceMesh>& meshes) {
  if (meshes.empty()) Invalid("Cannot concatenate no meshes");
  std::vector<Dim> dims;
  std::vector<std::string> names;
  for (const DeviceMesh& mesh : meshes) {
    if (mesh.root_ != meshes.front().root_) {
      Invalid(absl::StrCat(
          "Cannot concatenate DeviceMeshes derived from different device "
          "meshes: ",
          meshes.front().ToString(), " and ", mesh.ToString()));
    }
    names.push_back(mesh.ToString());
    dims.insert(dims.end(), mesh.dims_->begin(), mesh.dims_->end());
  }
  if (internal::Overlap(Layouts(dims))) {
    Invalid(absl::StrCat("Cannot concatenate overlapping meshes: [",
                         absl::StrJoin(names, ", "), "]"));
  }
  DeviceMesh result(meshes.front().root_, std::move(dims));
  ThrowIfFailed(
      ErrorSource::kControl,
      internal::CheckDimNames(result.dim_names(), result.dims_->size()));
  return result;
}

int DeviceMesh::ndim() const { return static_cast<int>(dims_->size()); }

const std::string& DeviceMesh::device_type() const {
  return root_->device_type;
}

std::vector<int64_t> DeviceMesh::shape() const {
  std::vector<int64_t> shape;
  shape.reserve(dims_->size());
  for (const Dim& dim : *dims_) shape.push_back(dim.layout.size());
  return shape;
}

int64_t DeviceMesh::size() const {
  return internal::Flatten(Layouts(*dims_)).size();
}

int64_t DeviceMesh::size(int dim) const { return GetDim(dim).layout.size(); }

std::vector<std::string> DeviceMesh::dim_names() const {
  std::vector<std::string> names;
  for (const Dim& dim : *dims_) {
    if (!dim.name.empty()) names.push_back(dim.name);
  }
  return names;
}

std::vector<int> DeviceMesh::ranks() const {
  const MeshDim all = internal::Flatten(Layouts(*dims_));
  if (all.size() == root_->places()) {
    return root_->RanksAt(internal::ComputeOffsets(all));
  }
  if (root_->place < 0) {
    internal::Throw(
        ErrorSource::kControl,
        FailedPreconditionError(absl::StrCat(
            ToString(), " is a part of a mesh that rank ", root_->world.rank,
            " is not in: only its own ranks know the ranks of a part")));
  }
  return root_->RanksAt(root_->ComputeWalk(all));
}

DeviceMesh DeviceMesh::operator[](std::string_view name) const {
  return Slice({std::string(name)});
}

DeviceMesh DeviceMesh::Slice(const std::vector<std::string>& names) const {
  const std::vector<std::string> own = dim_names();
  if (own.empty()) Invalid("Cannot slice a DeviceMesh without mesh_dim_names!");
  if (names == own) return *this;
  std::vector<std::string> valid = own;
  const bool is_root = own == root_->dim_names;
  if (is_root) {
    for (const auto& [name, dim] : root_->flattened) valid.push_back(name);
  }
  std::vector<Dim> dims;
  const auto not_ascending = [&] {
    Invalid(absl::StrCat("Invalid mesh_dim_names ", Names(names),
                         " specified. Mesh dim indices should be in ascending "
                         "order."));
  };
  int last_index = -1;
  int64_t last_stride = 0;
  for (const std::string& name : names) {
    if (std::find(valid.begin(), valid.end(), name) == valid.end()) {
      Invalid(absl::StrCat("Invalid mesh_dim_names ", Names(names),
                           " specified. Valid mesh_dim_names are ",
                           Names(valid)));
    }
    const Dim& dim = GetDim(name);
    // A dimension of one rank has no stride, but an index among the others.
    if (!root_->flattened.contains(name)) {
      const int index = FindIndex(name);
      if (index < last_index) not_ascending();
      last_index = index;
    }
    if (!dim.layout.loops().empty()) {
      const int64_t stride = dim.layout.loops().front().stride;
      if (last_stride != 0 && stride > last_stride) not_ascending();
      last_stride = stride;
    }
    dims.push_back(dim);
  }
  const std::set<std::string> distinct(names.begin(), names.end());
  if (names.empty() || distinct.size() < names.size() ||
      internal::Overlap(Layouts(dims))) {
    Invalid(absl::StrCat("Slicing overlapping dim_names ", Names(names),
                         " is not allowed."));
  }
  return {root_, std::move(dims)};
}

DeviceMesh DeviceMesh::Flatten(const std::string& name,
                               const std::string& backend) const {
  const std::vector<std::string> own = dim_names();
  if (own.empty()) {
    Invalid("Cannot flatten a DeviceMesh without mesh_dim_names!");
  }
  Dim dim = {.layout = internal::Flatten(Layouts(*dims_)),
             .name = name.empty() ? absl::StrJoin(own, "_") : name};
  if (ndim() == 1 && dim.name == own.front()) return *this;
  const std::vector<std::string>& taken = root_->dim_names;
  if (std::find(taken.begin(), taken.end(), dim.name) != taken.end()) {
    Invalid(absl::StrCat(
        dim.name, " already exists for submesh of the ", ToString(),
        ". The mesh_dim_names of submesh and flattened mesh are ", Names(taken),
        ". Please specify another valid mesh_dim_name"));
  }
  const auto present = root_->flattened.find(dim.name);
  if (present == root_->flattened.end()) {
    root_->MakeGroup(dim, backend);
    root_->flattened.emplace(dim.name, dim);
    return {root_, {std::move(dim)}};
  }
  if (present->second.layout == dim.layout) return {root_, {present->second}};
  Invalid(absl::StrCat("Flatten mesh with mesh_dim_name ", dim.name,
                       " has been created before, Please specify another "
                       "valid mesh_dim_name."));
}

DeviceMesh DeviceMesh::Unflatten(int dim, const std::vector<int64_t>& sizes,
                                 const DeviceMeshOptions& options) const {
  if (dim_names().empty()) {
    Invalid("Cannot unflatten a DeviceMesh without mesh_dim_names!");
  }
  if (dim < 0 || dim >= ndim()) {
    Invalid(absl::StrCat(
        "dim ", dim, " specified in `_unflatten` is out of range ", ndim()));
  }
  if (sizes.empty() || options.dim_names.size() != sizes.size()) {
    Invalid(absl::StrCat(
        "mesh_dim_names must have same length as mesh_sizes in _unflatten! "
        "Found ",
        options.dim_names.size(), " and ", sizes.size()));
  }
  const auto layouts = ValueOrThrow(
      ErrorSource::kControl, internal::Unflatten(GetDim(dim).layout, sizes));
  const std::vector<std::string> backends =
      ValueOrThrow(ErrorSource::kControl,
                   internal::ResolveBackends(options.backend_override,
                                             options.dim_names, sizes.size()));
  std::vector<Dim> dims = *dims_;
  dims.erase(dims.begin() + dim);
  for (size_t i = 0; i < sizes.size(); ++i) {
    dims.insert(dims.begin() + dim + static_cast<int>(i),
                {.layout = layouts[i], .name = options.dim_names[i]});
  }
  std::vector<std::string> names;
  names.reserve(dims.size());
  for (const Dim& each : dims) names.push_back(each.name);
  ThrowIfFailed(ErrorSource::kControl,
                internal::CheckDimNames(names, dims.size()));
  for (size_t i = 0; i < sizes.size(); ++i) {
    root_->MakeGroup(dims[static_cast<size_t>(dim) + i], backends[i]);
  }
  return {root_, std::move(dims)};
}

DeviceMesh DeviceMesh::Unflatten(std::string_view dim,
                                 const std::vector<int64_t>& sizes,
                                 const DeviceMeshOptions& options) const {
  for (int i = 0; i < ndim(); ++i) {
    if ((*dims_)[static_cast<size_t>(i)].name == dim) {
      return Unflatten(i, sizes, options);
    }
  }
  Invalid(absl::StrCat("dim ", base::ToAbsl(dim),
                       " specified in `_unflatten` is not in ",
                       Names(dim_names())));
}

int DeviceMesh::FindIndex(std::string_view name) const {
  for (int i = 0; i < ndim(); ++i) {
    if ((*dims_)[static_cast<size_t>(i)].name == name && !name.empty())
      return i;
  }
  if (dim_names().empty()) Invalid("No `mesh_dim_names` found.");
  Invalid(absl::StrCat("Mesh dimension '", base::ToAbsl(name),
                       "' does not exist. Available mesh dimensions are: "
                       "mesh_dim_names=",
                       Names(dim_names())));
}

const DeviceMesh::Dim& DeviceMesh::GetDim(int index) const {
  if (index < 0 || index >= ndim()) {
    Invalid(absl::StrCat("mesh_dim ", index, " must be in [0, ", ndim(), ")"));
  }
  return (*dims_)[static_cast<size_t>(index)];
}

const DeviceMesh::Dim& DeviceMesh::GetDim(std::string_view name) const {
  const auto flattened = root_->flattened.find(name);
  if (flattened != root_->flattened.end()) return flattened->second;
  return (*dims_)[static_cast<size_t>(FindIndex(name))];
}

const DeviceMesh::Dim& DeviceMesh::OnlyDim() const {
  if (ndim() == 1) return dims_->front();
  Invalid(absl::StrCat("Found the DeviceMesh have ", ndim(),
                       " dimensions. Optional kwarg `mesh_dim` needs to be "
                       "specified when device_mesh.ndim > 1."));
}

int DeviceMesh::LocalRankIn(const Dim& dim) const {
  if (root_->place < 0) return -1;
  // A group numbers its ranks in ascending order.
  const std::vector<int> ranks =
      Sorted(root_->RanksAt(root_->ComputeWalk(dim.layout)));
  return static_cast<int>(
      std::lower_bound(ranks.begin(), ranks.end(), root_->world.rank) -
      ranks.begin());
}

std::shared_ptr<ProcessGroup> DeviceMesh::GetGroup() const {
  return OnlyDim().group;
}

std::shared_ptr<ProcessGroup> DeviceMesh::GetGroup(int dim) const {
  return GetDim(dim).group;
}

std::shared_ptr<ProcessGroup> DeviceMesh::GetGroup(std::string_view dim) const {
  return GetDim(dim).group;
}

std::vector<std::shared_ptr<ProcessGroup>> DeviceMesh::GetAllGroups() const {
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  groups.reserve(dims_->size());
  for (const Dim& dim : *dims_) groups.push_back(dim.group);
  return groups;
}

int DeviceMesh::GetRank() const { return root_->world.rank; }

int DeviceMesh::GetLocalRank() const { return LocalRankIn(OnlyDim()); }

int DeviceMesh::GetLocalRank(int dim) const { return LocalRankIn(GetDim(dim)); }

int DeviceMesh::GetLocalRank(std::string_view dim) const {
  return LocalRankIn(GetDim(dim));
}

std::optional<std::vector<int64_t>> DeviceMesh::GetCoordinate() const {
  if (root_->place < 0) return std::nullopt;
  std::vector<int64_t> coordinate;
  coordinate.reserve(dims_->size());
  for (const Dim& dim : *dims_) {
    coordinate.push_back(dim.layout.ComputeCoordinate(root_->place));
  }
  return coordinate;
}

std::string DeviceMesh::ToString() const {
  const auto text = [](std::string* out, const Dim& dim) {
    absl::StrAppend(out, dim.name, dim.name.empty() ? "" : "=",
                    dim.layout.size());
  };
  return absl::StrCat("DeviceMesh((", absl::StrJoin(*dims_, ", ", text), "), ",
                      root_->device_type, ")");
}

bool DeviceMesh::operator==(const DeviceMesh& other) const {
  return root_ == other.root_ && *dims_ == *other.dims_;
}

}  // namespace muster
