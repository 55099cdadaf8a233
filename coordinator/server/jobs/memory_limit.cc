#include "coordinator/server/jobs/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace muster::coordinator {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// "max" and anything unreadable count as no limit.
int64_t NumberIn(const std::string& path) {
  std::ifstream file(path);
  int64_t bytes = 0;
  return file >> bytes && bytes > 0 ? bytes : kUnlimited;
}

// The smallest limit of the group at `path` of the hierarchy and of its
// ancestors. A container may not see the ancestors: its own group is then the
// root, whatever its path.
int64_t LeastLimit(const std::string& hierarchy, std::string path,
                   const std::string& file) {
  int64_t least = NumberIn(absl::StrCat(hierarchy, "/", file));
  while (path.size() > 1) {
    least = std::min(least, NumberIn(absl::StrCat(hierarchy, path, "/", file)));
    path.resize(path.rfind('/'));
  }
  return least;
}

// A line of /proc/self/cgroup is `0::/path` for version 2, and
// `4:memory,cpu:/path` for version 1.
int64_t GroupLimit(const std::string& root) {
  int64_t least = kUnlimited;
  std::ifstream file(absl::StrCat(root, "/proc/self/cgroup"));
  const std::string top = absl::StrCat(root, "/sys/fs/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> fields =
        absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3 || !absl::StartsWith(fields[2], "/")) continue;
    if (fields[0] == "0" && fields[1].empty()) {
      least = std::min(least, LeastLimit(top, fields[2], "memory.max"));
      continue;
    }
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    if (std::find(controllers.begin(), controllers.end(), "memory") ==
        controllers.end()) {
      continue;
    }
    least = std::min(least, LeastLimit(absl::StrCat(top, "/memory"), fields[2],
                                       "memory.limit_in_bytes"));
  }
  return least;
}

int64_t MachineMemory(const std::string& root) {
  std::ifstream file(absl::StrCat(root, "/proc/meminfo"));
  std::string word;
  int64_t kilobytes = 0;
  while (file >> word) {
    if (word == "MemTotal:" && file >> kilobytes) return kilobytes << 10;
  }
  return kUnlimited;
}

}  // namespace

int64_t MemoryLimit(const std::string& root) {
  return std::min(GroupLimit(root), MachineMemory(root));
}

}  // namespace muster::coordinator
