#include "dataplane/process_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster::dataplane {
namespace {

std::optional<uint64_t> LimitOf(int resource) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::nullopt;
  }
  return limit.rlim_cur;
}

// "; pids.max of control group /job/1 is 100", of the lowest one that has one.
std::string ControlGroupText(const std::string& root) {
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    // Version 2 is "0::/path"; of version 1, "7:pids:/path".
    const bool is_second = absl::StartsWith(line, "0::");
    if (!is_second && !absl::StrContains(line, ":pids:")) continue;
    std::string path = line.substr(line.find(':', line.find(':') + 1) + 1);
    while (true) {
      std::ifstream file(absl::StrCat(
          root, is_second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/pids", path,
          "/pids.max"));
      uint64_t most = 0;
      if (file >> most) {
        return absl::StrCat("; pids.max of control group ",
                            path.empty() ? "/" : path, " is ", most);
      }
      if (path.empty() || path == "/") break;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return "";
}

}  // namespace

uint64_t AddressSpaceLeft() {
  const auto limit = LimitOf(RLIMIT_AS);
  if (!limit.has_value()) return std::numeric_limits<uint64_t>::max();
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const uint64_t used = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return *limit - std::min(*limit, used);
}

std::string AddressSpaceLimitText() {
  const auto limit = LimitOf(RLIMIT_AS);
  return limit.has_value()
             ? absl::StrCat("; RLIMIT_AS (ulimit -v) is ", *limit, " bytes")
             : "";
}

std::string ThreadLimitsText(const std::string& root) {
  std::string text = AddressSpaceLimitText();
  if (const auto threads = LimitOf(RLIMIT_NPROC)) {
    absl::StrAppend(&text, "; RLIMIT_NPROC (ulimit -u) is ", *threads);
  }
  return text + ControlGroupText(root);
}

std::string DescribeSystemError(const std::system_error& error) {
  if (error.code() != std::errc::resource_unavailable_try_again) {
    return error.what();
  }
  return absl::StrCat("a thread did not start: ", error.what(),
                      ThreadLimitsText());
}

}  // namespace muster::dataplane
