#include "worker/launcher/process_state.h"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text.h"

namespace muster::worker {
namespace {

// The longest chain of processes that wait for each other.
constexpr int kDepthMax = 16;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

pid_t OnlyChild(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/task/", pid, "/children"));
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children.size() == 1 ? children[0] : 0;
}

const char* StateText(char state) {
  switch (state) {
    case 'R':
      return "runs";
    case 'S':
      return "sleeps";
    case 'D':
      return "waits for a device or a file system";
    case 'T':
    case 't':
      return "is stopped";
    case 'Z':
    case 'X':
      return "has ended";
    default:
      return "idles";
  }
}

}  // namespace

std::string DescribeProcessState(pid_t pid) {
  for (int depth = 0; depth < kDepthMax; ++depth) {
    const pid_t child = OnlyChild(pid);
    if (child == 0) break;
    pid = child;
  }
  const std::string folder = absl::StrCat("/proc/", pid, "/");
  const std::string stat = FirstLine(folder + "stat");
  // The name is between parentheses and may have any character.
  const size_t open = stat.find('(');
  const size_t close = stat.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return "";
  const std::string name = stat.substr(open + 1, close - open - 1);
  std::istringstream rest(stat.substr(close + 1));
  char state = '?';
  rest >> state;
  std::string skipped;
  for (int i = 0; i < 10; ++i) rest >> skipped;
  double user_ticks = 0;
  double system_ticks = 0;
  rest >> user_ticks >> system_ticks;
  const std::string place = FirstLine(folder + "wchan");
  return absl::StrFormat(
      "\"%s\" (pid %d) %s%s, after %.1fs on a processor", base::Escape(name),
      pid, StateText(state),
      state == 'R' || place.empty() || place == "0"
          ? ""
          : absl::StrCat(" in ", place),
      (user_ticks + system_ticks) / static_cast<double>(sysconf(_SC_CLK_TCK)));
}

}  // namespace muster::worker
