// Checks the arguments of device meshes, with c10d's error texts.

#ifndef MUSTER_CLIENT_GROUPS_MESH_ARGUMENTS_H_
#define MUSTER_CLIENT_GROUPS_MESH_ARGUMENTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace muster::internal {

// All errors are kInvalidArgument.

// No names at all, or one for each dimension, no two alike.
Status CheckDimNames(const std::vector<std::string>& names, size_t ndim);

// "cpu" or "cuda".
Status CheckDeviceType(const std::string& type);

// How many ranks a mesh of this shape has: at most all.
StatusOr<int64_t> CountRanks(const std::vector<int64_t>& shape, int world_size);

// `count` of the world, no two alike.
Status CheckRanks(const std::vector<int>& ranks, int64_t count, int world_size);

// The backend of each dimension; empty where `overrides`, by name or index,
// has none.
StatusOr<std::vector<std::string>> BackendsOf(
    const std::map<std::string, std::string>& overrides,
    const std::vector<std::string>& names, size_t ndim);

// `["dp", "tp"]`, `[0, 1]`; of long lists of numbers the first eight.
std::string Names(const std::vector<std::string>& names);
std::string Numbers(const std::vector<int>& numbers);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_MESH_ARGUMENTS_H_
