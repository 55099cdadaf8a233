#include "muster/device_mesh.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "client/c/convert.h"
#include "client/c/error.h"
#include "client/c/handles.h"
#include "muster/distributed.h"
#include "muster/muster.h"

struct muster_device_mesh {
  muster::DeviceMesh mesh;
};

namespace muster::c {
namespace {

DeviceMeshOptions ToMeshOptions(const muster_device_mesh_options* options,
                                size_t ndim) {
  const muster_device_mesh_options from = ReadOptions(options);
  DeviceMeshOptions to;
  for (size_t i = 0; i < ndim; ++i) {
    if (from.dim_names != nullptr) {
      to.dim_names.push_back(ToString(from.dim_names[i]));
    }
    if (from.backends != nullptr && from.backends[i] != nullptr) {
      to.backend_override[std::to_string(i)] = from.backends[i];
    }
  }
  return to;
}

// Throws ArgumentError unless a mesh of `shape` has `count` ranks.
std::vector<int> ToRanks(const int32_t* ranks, size_t count,
                         const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(product, size, &product)) {
      ThrowArgument("shape", "a size is " + std::to_string(size));
    }
  }
  if (count != static_cast<size_t>(product)) {
    ThrowArgument("rank_count", std::to_string(count) +
                                    ", but the product of the shape is " +
                                    std::to_string(product));
  }
  return ToVector(ranks, count, "ranks");
}

muster_device_mesh* MakeMesh(DeviceMesh mesh) {
  return new muster_device_mesh{std::move(mesh)};
}

}  // namespace
}  // namespace muster::c

using muster::DeviceMesh;
using muster::c::Guard;
using muster::c::GuardHandle;
using muster::c::MakeGroup;
using muster::c::MakeMesh;
using muster::c::MakeStrings;
using muster::c::Need;
using muster::c::ToMeshOptions;
using muster::c::ToString;
using muster::c::ToVector;
using muster::c::WriteArray;

void muster_device_mesh_release(muster_device_mesh* mesh) { delete mesh; }

muster_status muster_init_device_mesh(const char* device_type,
                                      const int64_t* shape, size_t ndim,
                                      const muster_device_mesh_options* options,
                                      muster_device_mesh** mesh) {
  return GuardHandle(__func__, mesh, "mesh", [&] {
    return MakeMesh(muster::InitDeviceMesh(ToString(device_type),
                                           ToVector(shape, ndim, "shape"),
                                           ToMeshOptions(options, ndim)));
  });
}

muster_status muster_device_mesh_from_array(
    const char* device_type, const int64_t* shape, size_t ndim,
    const int32_t* ranks, size_t rank_count,
    const muster_device_mesh_options* options, muster_device_mesh** mesh) {
  return GuardHandle(__func__, mesh, "mesh", [&] {
    const std::vector<int64_t> sizes = ToVector(shape, ndim, "shape");
    return MakeMesh(DeviceMesh::FromArray(
        muster::DefaultMeshWorld(), ToString(device_type), sizes,
        muster::c::ToRanks(ranks, rank_count, sizes),
        ToMeshOptions(options, ndim)));
  });
}

muster_status muster_device_mesh_from_group(muster_group* group,
                                            const char* device_type,
                                            const char* dim_name,
                                            muster_device_mesh** mesh) {
  return GuardHandle(__func__, mesh, "mesh", [&] {
    std::vector<std::string> names;
    if (dim_name != nullptr) names.emplace_back(dim_name);
    return MakeMesh(
        DeviceMesh::FromGroup(muster::DefaultMeshWorld(),
                              {.group = muster::c::GroupRef(group).shared()},
                              ToString(device_type), std::nullopt, names));
  });
}

muster_status muster_device_mesh_from_groups(
    muster_group* const* groups, const char* device_type, const int64_t* shape,
    size_t ndim, const int32_t* ranks, size_t rank_count,
    const muster_device_mesh_options* options, muster_device_mesh** mesh) {
  return GuardHandle(__func__, mesh, "mesh", [&] {
    const std::vector<int64_t> sizes = ToVector(shape, ndim, "shape");
    std::vector<muster::MeshGroup> given;
    for (muster_group* const group :
         muster::c::ToSpan(groups, ndim, "groups")) {
      given.push_back({.group = muster::c::GroupRef(group).shared()});
    }
    return MakeMesh(DeviceMesh::FromGroups(
        muster::DefaultMeshWorld(), given, ToString(device_type), sizes,
        muster::c::ToRanks(ranks, rank_count, sizes),
        ToMeshOptions(options, ndim).dim_names));
  });
}

muster_status muster_device_mesh_concatenate(muster_device_mesh* const* meshes,
                                             size_t count,
                                             muster_device_mesh** mesh) {
  return GuardHandle(__func__, mesh, "mesh", [&] {
    std::vector<DeviceMesh> parts;
    for (muster_device_mesh* const part :
         muster::c::ToSpan(meshes, count, "meshes")) {
      parts.push_back(Need(part, "meshes").mesh);
    }
    return MakeMesh(DeviceMesh::Concatenate(parts));
  });
}

muster_status muster_device_mesh_slice(muster_device_mesh* mesh,
                                       const char* const* dim_names,
                                       size_t count,
                                       muster_device_mesh** slice) {
  return GuardHandle(__func__, slice, "slice", [&] {
    std::vector<std::string> names;
    for (const char* const name :
         muster::c::ToSpan(dim_names, count, "dim_names")) {
      names.push_back(ToString(name));
    }
    return MakeMesh(Need(mesh, "mesh").mesh.Slice(names));
  });
}

muster_status muster_device_mesh_flatten(muster_device_mesh* mesh,
                                         const char* name, const char* backend,
                                         muster_device_mesh** flat) {
  return GuardHandle(__func__, flat, "flat", [&] {
    return MakeMesh(
        Need(mesh, "mesh").mesh.Flatten(ToString(name), ToString(backend)));
  });
}

muster_status muster_device_mesh_unflatten(
    muster_device_mesh* mesh, int32_t dim, const int64_t* sizes, size_t count,
    const muster_device_mesh_options* options, muster_device_mesh** result) {
  return GuardHandle(__func__, result, "result", [&] {
    return MakeMesh(Need(mesh, "mesh")
                        .mesh.Unflatten(dim, ToVector(sizes, count, "sizes"),
                                        ToMeshOptions(options, count)));
  });
}

muster_status muster_device_mesh_ndim(muster_device_mesh* mesh, int32_t* ndim) {
  return Guard(__func__,
               [&] { Need(ndim, "ndim") = Need(mesh, "mesh").mesh.ndim(); });
}

muster_status muster_device_mesh_shape(muster_device_mesh* mesh, int64_t* shape,
                                       size_t capacity, size_t* count) {
  return Guard(__func__, [&] {
    WriteArray(Need(mesh, "mesh").mesh.shape(), shape, "shape", capacity,
               count);
  });
}

muster_status muster_device_mesh_dim_names(muster_device_mesh* mesh,
                                           muster_strings** names) {
  return GuardHandle(__func__, names, "names", [&] {
    return MakeStrings(Need(mesh, "mesh").mesh.dim_names());
  });
}

muster_status muster_device_mesh_device_type(muster_device_mesh* mesh,
                                             muster_strings** type) {
  return GuardHandle(__func__, type, "type", [&] {
    return MakeStrings(Need(mesh, "mesh").mesh.device_type());
  });
}

muster_status muster_device_mesh_ranks(muster_device_mesh* mesh, int32_t* ranks,
                                       size_t capacity, size_t* count) {
  return Guard(__func__, [&] {
    WriteArray(Need(mesh, "mesh").mesh.ranks(), ranks, "ranks", capacity,
               count);
  });
}

muster_status muster_device_mesh_get_group(muster_device_mesh* mesh,
                                           int32_t dim, muster_group** group) {
  return GuardHandle(__func__, group, "group", [&] {
    return MakeGroup(Need(mesh, "mesh").mesh.GetGroup(dim));
  });
}

muster_status muster_device_mesh_get_group_by_name(muster_device_mesh* mesh,
                                                   const char* dim_name,
                                                   muster_group** group) {
  return GuardHandle(__func__, group, "group", [&] {
    return MakeGroup(Need(mesh, "mesh").mesh.GetGroup(ToString(dim_name)));
  });
}

muster_status muster_device_mesh_get_local_rank(muster_device_mesh* mesh,
                                                int32_t dim, int32_t* rank) {
  return Guard(__func__, [&] {
    Need(rank, "rank") = Need(mesh, "mesh").mesh.GetLocalRank(dim);
  });
}

muster_status muster_device_mesh_get_local_rank_by_name(
    muster_device_mesh* mesh, const char* dim_name, int32_t* rank) {
  return Guard(__func__, [&] {
    Need(rank, "rank") =
        Need(mesh, "mesh").mesh.GetLocalRank(ToString(dim_name));
  });
}

muster_status muster_device_mesh_get_coordinate(muster_device_mesh* mesh,
                                                int64_t* coordinate,
                                                size_t capacity,
                                                size_t* count) {
  return Guard(__func__, [&] {
    WriteArray(Need(mesh, "mesh")
                   .mesh.GetCoordinate()
                   .value_or(std::vector<int64_t>()),
               coordinate, "coordinate", capacity, count);
  });
}

muster_status muster_device_mesh_to_string(muster_device_mesh* mesh,
                                           muster_strings** text) {
  return GuardHandle(__func__, text, "text", [&] {
    return MakeStrings(Need(mesh, "mesh").mesh.ToString());
  });
}

muster_status muster_device_mesh_equal(muster_device_mesh* mesh,
                                       muster_device_mesh* other,
                                       int32_t* equal) {
  return Guard(__func__, [&] {
    const bool same = Need(mesh, "mesh").mesh == Need(other, "other").mesh;
    Need(equal, "equal") = same ? 1 : 0;
  });
}
