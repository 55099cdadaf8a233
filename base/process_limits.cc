#include "base/process_limits.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <future>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace muster::base {
namespace {

std::optional<uint64_t> GetLimit(int resource) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::nullopt;
  }
  return limit.rlim_cur;
}

// The number of processors in this process's affinity mask; 1 if unknown.
int AllowedProcessors() {
  // More than 1024 need a larger set than cpu_set_t.
  for (size_t count = 1024; count <= 65536; count *= 4) {
    cpu_set_t* const set = CPU_ALLOC(count);
    const size_t bytes = CPU_ALLOC_SIZE(count);
    const bool fits = sched_getaffinity(0, bytes, set) == 0;
    const int allowed = fits ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (fits) return std::max(1, allowed);
  }
  return 1;
}

// The quota in processors; 0: none.
double GetQuota(const ControlGroup& group) {
  double quota_us = 0;
  double period_us = 0;
  if (group.is_second) {
    // Reading "max" fails.
    std::ifstream in(group.folder + "/cpu.max");
    if (!(in >> quota_us >> period_us)) return 0;
  } else if (!(std::ifstream(group.folder + "/cpu.cfs_quota_us") >> quota_us) ||
             !(std::ifstream(group.folder + "/cpu.cfs_period_us") >>
               period_us)) {
    return 0;
  }
  return quota_us > 0 && period_us > 0 ? quota_us / period_us : 0;
}

// "; pids.max of control group /job/1 is 100": the smallest limit of this
// process's group and its ancestors.
std::string ControlGroupText(const std::string& root) {
  std::string text;
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (const ControlGroup& group : FindControlGroups("pids", root)) {
    uint64_t most = 0;
    if (std::ifstream(group.folder + "/pids.max") >> most && most < least) {
      least = most;
      text = absl::StrCat("; pids.max of control group ", group.path, " is ",
                          most);
    }
  }
  return text;
}

}  // namespace

std::vector<ControlGroup> FindControlGroups(const std::string& controller,
                                            const std::string& root) {
  std::vector<ControlGroup> groups;
  std::ifstream in(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(in, line)) {
    // A number, the controllers (none in version 2), and the path.
    const std::vector<std::string> fields =
        absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    const bool is_second = fields[1].empty();
    if (!is_second && std::ranges::count(controllers, controller) == 0) {
      continue;
    }
    const std::string top = absl::StrCat(
        root, "/sys/fs/cgroup", is_second ? "" : absl::StrCat("/", controller));
    // The top is all that a container may see.
    std::string path = fields[2];
    while (!path.empty() && path != "/") {
      groups.push_back({top + path, path, is_second});
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
    groups.push_back({top, "/", is_second});
  }
  return groups;
}

std::optional<ProcessorQuota> FindProcessorQuota(const std::string& root) {
  std::optional<ProcessorQuota> least;
  for (const ControlGroup& group : FindControlGroups("cpu", root)) {
    const double processors = GetQuota(group);
    if (processors == 0 ||
        (least.has_value() && least->processors <= processors)) {
      continue;
    }
    // The inode number of a group is the same under every path.
    struct stat entry = {};
    least = ProcessorQuota{.processors = processors, .group = 1};
    if (stat(group.folder.c_str(), &entry) == 0) least->group = entry.st_ino;
  }
  return least;
}

int UsableProcessors(const std::string& root) {
  const int allowed = AllowedProcessors();
  const auto quota = FindProcessorQuota(root);
  if (!quota.has_value() || quota->processors >= allowed) return allowed;
  return std::max(1, static_cast<int>(quota->processors));
}

uint64_t AddressSpaceLeft() {
  const auto limit = GetLimit(RLIMIT_AS);
  if (!limit.has_value()) return std::numeric_limits<uint64_t>::max();
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const uint64_t used = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return *limit - std::min(*limit, used);
}

uint64_t DescriptorLimit() {
  return GetLimit(RLIMIT_NOFILE).value_or(std::numeric_limits<uint64_t>::max());
}

uint64_t DescriptorsLeft() {
  uint64_t used = 0;
  std::error_code error;
  // One descriptor is the iterator's own.
  for (auto at = std::filesystem::directory_iterator("/proc/self/fd", error);
       !error && at != std::filesystem::directory_iterator();
       at.increment(error)) {
    ++used;
  }
  // There is no descriptor left for the iterator.
  if (error == std::errc::too_many_files_open) return 0;
  const uint64_t limit = DescriptorLimit();
  return limit - std::min(limit, used);
}

int StartableThreads(int wanted) {
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  std::vector<std::thread> threads;
  try {
    while (static_cast<int>(threads.size()) < wanted) {
      threads.emplace_back([ended] { ended.wait(); });
    }
  } catch (const std::system_error&) {
    // The limit is reached.
  }
  end.set_value();
  for (std::thread& thread : threads) thread.join();
  return static_cast<int>(threads.size());
}

std::string AddressSpaceLimitText() {
  const auto limit = GetLimit(RLIMIT_AS);
  return limit.has_value()
             ? absl::StrCat("; RLIMIT_AS (ulimit -v) is ", *limit, " bytes")
             : "";
}

std::string ThreadLimitsText(const std::string& root) {
  std::string text = AddressSpaceLimitText();
  // Root has no such limit.
  if (const auto threads = GetLimit(RLIMIT_NPROC);
      threads.has_value() && geteuid() != 0) {
    absl::StrAppend(&text, "; RLIMIT_NPROC (ulimit -u) is ", *threads);
  }
  return text + ControlGroupText(root);
}

bool IsOfThread(const std::system_error& error) {
  return error.code() == std::errc::resource_unavailable_try_again;
}

std::string DescribeSystemError(const std::system_error& error) {
  if (!IsOfThread(error)) return error.what();
  return absl::StrCat("could not start a thread: ", error.what(),
                      ThreadLimitsText());
}

}  // namespace muster::base
