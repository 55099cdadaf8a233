#include "base/process_usage.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace muster::base {
namespace {

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

// Field `number` after the name in /proc/self/stat, counted as in proc(5).
double StatField(int number) {
  std::ifstream file("/proc/self/stat");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  // The name may contain anything, but no later field has a parenthesis.
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

}  // namespace muster::base
