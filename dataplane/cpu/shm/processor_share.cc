#include "dataplane/cpu/shm/processor_share.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <vector>

#include "base/process_limits.h"

namespace muster::dataplane::shm {

ProcessorShare FindProcessorShare(const std::string& root) {
  ProcessorShare share = {.processors = 1,
                          .online = sysconf(_SC_NPROCESSORS_ONLN)};
  if (const auto quota = FindProcessorQuota(root)) {
    share.quota = quota->processors;
    share.quota_group = quota->group;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return share;
  share.processors = 0;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &set)) {
      share.processors |= uint64_t{1} << processor % 64;
    }
  }
  return share;
}

bool IsCrowded(const std::vector<ProcessorShare>& shares) {
  if (shares.empty()) return false;
  uint64_t together = 0;
  int64_t online = shares.front().online;
  std::map<uint64_t, int> ranks_of_group;
  for (const ProcessorShare& share : shares) {
    together |= share.processors;
    online = std::min(online, share.online);
    if (share.quota_group == 0) continue;
    if (++ranks_of_group[share.quota_group] > share.quota) {
      return true;
    }
  }
  const int64_t processors = ~together == 0 ? online : std::popcount(together);
  return processors < static_cast<int64_t>(shares.size());
}

}  // namespace muster::dataplane::shm
