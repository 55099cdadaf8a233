#ifndef MUSTER_DATAPLANE_CPU_SHM_PROCESSOR_SHARE_H_
#define MUSTER_DATAPLANE_CPU_SHM_PROCESSOR_SHARE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace muster::dataplane::shm {

// The processors that a rank may use. Ranks send this struct to each other as
// raw bytes.
struct ProcessorShare {
  // A bit for each processor. The 64th and later ones reuse the bits.
  uint64_t processors = 0;
  // The number of processors online in the system.
  int64_t online = 0;
  // The processors that its control group may use together (ProcessorQuota).
  // Group 0: no quota.
  double quota = 0;
  uint64_t quota_group = 0;
};

// The share of this process. `root` is the system's root directory, for tests.
ProcessorShare FindProcessorShare(const std::string& root = "");

// Whether the ranks of one host, with `shares`, outnumber their processors: all
// of them together, or those that share a quota.
bool IsCrowded(const std::vector<ProcessorShare>& shares);

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_PROCESSOR_SHARE_H_
