#include "client/groups/mesh_arguments.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"

namespace muster::internal {
namespace {

constexpr size_t kNumbersInTextMax = 8;

template <typename... Parts>
Status Invalid(const Parts&... parts) {
  return InvalidArgumentError(absl::StrCat(parts...));
}

}  // namespace

Status CheckDimNames(const std::vector<std::string>& names, size_t ndim) {
  if (names.empty()) return OkStatus();
  const std::set<std::string> distinct(names.begin(), names.end());
  if (distinct.size() < names.size()) {
    return Invalid(
        "Each mesh_dim_name must be unique. Found repeated mesh_dim_name in "
        "mesh_dim_names ",
        Names(names));
  }
  if (names.size() != ndim) {
    return Invalid(
        "mesh_shape and mesh_dim_names should have same length! Found "
        "len(mesh_dim_names): ",
        names.size(), " and len(mesh_shape): ", ndim);
  }
  if (distinct.contains("")) {
    return Invalid("mesh_dim_names ", Names(names), " has an empty name");
  }
  return OkStatus();
}

Status CheckDeviceType(const std::string& type) {
  if (type == "cpu" || type == "cuda") return OkStatus();
  if (!type.empty() &&
      std::all_of(type.begin(), type.end(), absl::ascii_isalpha)) {
    return Invalid("unknown device type ", base::Quote(type),
                   ", there are cpu, cuda");
  }
  return Invalid("Device type with index is not supported but got ",
                 base::Quote(type),
                 ": give its letters alone, such as cpu or cuda");
}

StatusOr<int64_t> CountRanks(const std::vector<int64_t>& shape,
                             int world_size) {
  const std::string text =
      absl::StrCat("mesh_shape (", absl::StrJoin(shape, ", "), ")");
  if (shape.empty()) return Invalid(text, " must have a dimension");
  int64_t count = 1;
  for (const int64_t size : shape) {
    if (size < 1) return Invalid(text, " must have positive sizes");
    if (__builtin_mul_overflow(count, size, &count)) {
      return Invalid(text, " is too large");
    }
  }
  if (count > world_size) {
    return Invalid("Mesh should not be bigger than default world size ",
                   world_size, ", but found ", count, " ranks!");
  }
  return count;
}

Status CheckRanks(const std::vector<int>& ranks, int64_t count,
                  int world_size) {
  if (static_cast<int64_t>(ranks.size()) != count) {
    return Invalid("mesh has ", ranks.size(), " ranks, but its mesh_shape has ",
                   count);
  }
  std::set<int> seen;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= world_size) {
      return Invalid("mesh has rank ", rank, ", which is not in [0, ",
                     world_size, ")");
    }
    if (!seen.insert(rank).second) {
      return Invalid("mesh has rank ", rank, " twice");
    }
  }
  return OkStatus();
}

StatusOr<std::vector<std::string>> ResolveBackends(
    const std::map<std::string, std::string>& overrides,
    const std::vector<std::string>& names, size_t ndim) {
  std::vector<std::string> backends(ndim);
  for (const auto& [key, backend] : overrides) {
    const auto named = std::find(names.begin(), names.end(), key);
    auto index = static_cast<size_t>(named - names.begin());
    if (named == names.end() &&
        (!absl::SimpleAtoi(key, &index) || index >= ndim)) {
      return Invalid("Found invalid keys in backend_override: got ",
                     base::Quote(key), ", expected an index in [0, ", ndim,
                     ") or one of ", Names(names));
    }
    if (!backends[index].empty()) {
      return Invalid("Found redundant dim index ", index, " and name ",
                     base::Quote(names[index]), " in backend_override");
    }
    backends[index] = backend;
  }
  return backends;
}

std::string Names(const std::vector<std::string>& names) {
  const auto quoted = [](std::string* out, const std::string& name) {
    absl::StrAppend(out, base::Quote(name));
  };
  return absl::StrCat("[", absl::StrJoin(names, ", ", quoted), "]");
}

std::string Numbers(const std::vector<int>& numbers) {
  if (numbers.size() <= kNumbersInTextMax) {
    return absl::StrCat("[", absl::StrJoin(numbers, ", "), "]");
  }
  return absl::StrCat(
      "[",
      absl::StrJoin(numbers.begin(), numbers.begin() + kNumbersInTextMax, ", "),
      " and ", numbers.size() - kNumbersInTextMax, " more]");
}

}  // namespace muster::internal
