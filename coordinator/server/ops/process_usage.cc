#include "coordinator/server/ops/process_usage.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <future>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace muster::coordinator {
namespace {

// Of some twenty threads, and more on more than two processors, each takes a
// stack and a part of the heap.
constexpr uint64_t AddressSpaceMin(int64_t processors) {
  return static_cast<uint64_t>(832 +
                               96 * std::clamp<int64_t>(processors, 2, 32))
         << 20;
}

// gRPC's, and those of a few connections.
constexpr uint64_t kDescriptorsMin = 24;

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double OpenFds() {
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  int entries = 0;
  while (readdir(folder) != nullptr) ++entries;
  closedir(folder);
  return entries - 3;  // ".", ".." and the descriptor of `folder`
}

double MaxFds() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<double>(limit.rlim_cur);
}

// Field `number` of proc(5)'s stat, counted from 1 as there; past the name.
double StatField(int number) {
  std::ifstream file("/proc/self/stat");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  // The name may hold anything, but no field behind it holds a parenthesis.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= number; ++i) fields >> field;
  return field.empty() ? 0 : std::stod(field);
}

// When the machine started, in seconds since 1970.
double BootTime() {
  std::ifstream file("/proc/stat");
  std::string word;
  double seconds = 0;
  while (file >> word) {
    if (word == "btime" && file >> seconds) return seconds;
  }
  return 0;
}

double StartTime() {
  static const double start =
      BootTime() + StatField(22) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return start;
}

}  // namespace

ProcessUsage ReadProcessUsage() {
  double virtual_pages = 0;
  double resident_pages = 0;
  std::ifstream("/proc/self/statm") >> virtual_pages >> resident_pages;
  const auto page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));
  return {.cpu_seconds = CpuSeconds(),
          .resident_bytes = resident_pages * page_bytes,
          .virtual_bytes = virtual_pages * page_bytes,
          .open_fds = OpenFds(),
          .max_fds = MaxFds(),
          .start_time_seconds = StartTime()};
}

Status CheckAddressSpace(uint64_t limit_bytes, int64_t processors) {
  const uint64_t needed = AddressSpaceMin(processors);
  if (limit_bytes >= needed) return OkStatus();
  return ResourceExhaustedError(absl::StrCat(
      "this process may have ", limit_bytes >> 10,
      " KiB of address space (ulimit -v), and a coordinator's threads need ",
      needed >> 10));
}

Status CheckDescriptors(uint64_t limit, uint64_t open) {
  // The last 128 are kept free of connections, of a small limit half
  // (Listener).
  const uint64_t used = open + kDescriptorsMin;
  const uint64_t needed = used + std::min<uint64_t>(used, 128);
  if (limit >= needed) return OkStatus();
  return ResourceExhaustedError(absl::StrCat(
      "this process may have ", limit, " file descriptors (ulimit -n) and has ",
      open, " open; a coordinator needs at least ", needed,
      ", and one more for each connection"));
}

Status CheckThreads(int64_t processors) {
  const auto needed =
      static_cast<size_t>(20 + 4 * std::clamp<int64_t>(processors, 2, 32));
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  std::vector<std::thread> threads;
  try {
    while (threads.size() < needed) {
      threads.emplace_back([ended] { ended.wait(); });
    }
  } catch (const std::system_error&) {
    // That is what is to be found out.
  }
  end.set_value();
  for (std::thread& thread : threads) thread.join();
  if (threads.size() == needed) return OkStatus();
  rlimit limit = {};
  getrlimit(RLIMIT_NPROC, &limit);
  return ResourceExhaustedError(absl::StrCat(
      "a coordinator needs ", needed, " threads, and this process can start ",
      threads.size(), " (ulimit -u is ",
      limit.rlim_cur == RLIM_INFINITY ? "unlimited"
                                      : absl::StrCat(limit.rlim_cur),
      "; a control group may have another limit, pids.max)"));
}

uint64_t AddressSpaceLimit() {
  rlimit limit = {};
  getrlimit(RLIMIT_AS, &limit);
  return limit.rlim_cur;
}

}  // namespace muster::coordinator
