#include "dataplane/cpu/shm/available_memory.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/process_limits.h"

namespace muster::dataplane::shm {
namespace {

// The first number in `file`, or the one after the word `name`; nullopt if
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

// The files of a version of control groups.
struct Hierarchy {
  const char* limit;
  const char* used;
  const char* unneeded;
};

constexpr Hierarchy kFirst = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                              "total_inactive_file"};
constexpr Hierarchy kSecond = {"memory.max", "memory.current", "inactive_file"};

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
  for (const ControlGroup& group : FindControlGroups("memory", root)) {
    const Hierarchy& hierarchy = group.is_second ? kSecond : kFirst;
    const uint64_t bytes = LeftIn(group.folder, hierarchy);
    if (bytes >= left.bytes) continue;
    left = {bytes, absl::StrCat("to control group ", group.path, " (",
                                hierarchy.limit, ")")};
  }
  return left;
}

}  // namespace muster::dataplane::shm
