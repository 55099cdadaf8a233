// Checks the arguments of device meshes, with c10d's error texts.

#ifndef MUSTER_CLIENT_GROUPS_MESH_ARGUMENTS_H_
#define MUSTER_CLIENT_GROUPS_MESH_ARGUMENTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "muster/base/status.h"

namespace muster::internal {

// All errors are kInvalidArgument.

// There are no names, or one for each dimension, all different.
Status CheckDimNames(const std::vector<std::string>& names, size_t ndim);

// The type is "cpu" or "cuda".
Status CheckDeviceType(const std::string& type);

// Returns the number of ranks in the mesh, at most world_size.
StatusOr<int64_t> CountRanks(const std::vector<int64_t>& shape, int world_size);

// `ranks` are `count` different ranks of the world.
Status CheckRanks(const std::vector<int>& ranks, int64_t count, int world_size);

// Returns the backend of each dimension. Empty if `overrides`, by name or
// index, has no entry.
StatusOr<std::vector<std::string>> ResolveBackends(
    const std::map<std::string, std::string>& overrides,
    const std::vector<std::string>& names, size_t ndim);

// Returns `["dp", "tp"]`, `[0, 1]`. Numbers shows at most eight.
std::string Names(const std::vector<std::string>& names);
std::string Numbers(const std::vector<int>& numbers);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_MESH_ARGUMENTS_H_
