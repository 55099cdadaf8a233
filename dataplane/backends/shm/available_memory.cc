#include "dataplane/backends/shm/available_memory.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace muster::dataplane::shm_internal {
namespace {

// The number in `file` that comes first, or after the word `name`; nothing if
// there is none.
std::optional<uint64_t> NumberIn(const std::string& file,
                                 const std::string& name) {
  std::ifstream in(file);
  std::string word;
  while (!name.empty() && in >> word && word != name) {
  }
  uint64_t number = 0;
  return in >> number ? std::optional<uint64_t>(number) : std::nullopt;
}

// Of a version of control groups: where they are, and their files.
struct Hierarchy {
  const char* folder;
  const char* limit;
  const char* used;
  const char* unneeded;
};

constexpr Hierarchy kFirst = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                              "memory.usage_in_bytes", "total_inactive_file"};
constexpr Hierarchy kSecond = {"/sys/fs/cgroup", "memory.max", "memory.current",
                               "inactive_file"};

uint64_t LeftIn(const std::string& group, const Hierarchy& hierarchy) {
  const auto limit = NumberIn(absl::StrCat(group, "/", hierarchy.limit), "");
  const auto used = NumberIn(absl::StrCat(group, "/", hierarchy.used), "");
  if (!limit.has_value() || !used.has_value()) {
    return std::numeric_limits<uint64_t>::max();
  }
  const uint64_t unneeded =
      NumberIn(absl::StrCat(group, "/memory.stat"), hierarchy.unneeded)
          .value_or(0);
  const uint64_t needed = *used - std::min(*used, unneeded);
  return *limit - std::min(*limit, needed);
}

}  // namespace

std::string MemoryLeft::Describe() const {
  return absl::StrCat("there are ", bytes, " left ", where);
}

MemoryLeft FindMemoryLeft(const std::string& root) {
  MemoryLeft left;
  if (const auto kib = NumberIn(root + "/proc/meminfo", "MemAvailable:")) {
    left.bytes = *kib << 10;
  }
  std::ifstream in(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(in, line)) {
    // A number, the controllers (none in version 2), and the path.
    const std::vector<std::string> fields =
        absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    const bool is_second = fields[1].empty();
    if (!is_second && std::ranges::count(controllers, "memory") == 0) continue;
    const Hierarchy& hierarchy = is_second ? kSecond : kFirst;
    const auto look = [&](const std::string& group) {
      const uint64_t bytes =
          LeftIn(absl::StrCat(root, hierarchy.folder, group), hierarchy);
      if (bytes >= left.bytes) return;
      left = {bytes,
              absl::StrCat("to control group ", group.empty() ? "/" : group,
                           " (", hierarchy.limit, ")")};
    };
    // Up to the top, which is all that a container may see.
    std::string path = fields[2];
    while (!path.empty() && path != "/") {
      look(path);
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
    look("");
  }
  return left;
}

}  // namespace muster::dataplane::shm_internal
