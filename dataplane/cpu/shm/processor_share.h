#ifndef MUSTER_DATAPLANE_CPU_SHM_PROCESSOR_SHARE_H_
#define MUSTER_DATAPLANE_CPU_SHM_PROCESSOR_SHARE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace muster::dataplane::shm {

// The processors that a rank may use. Ranks send this struct to each other as
// raw bytes.
struct ProcessorShare {
  // A bit for each; from the 64th on they share the bits of those before.
  uint64_t processors = 0;
  // How many its system has.
  int64_t online = 0;
  // How much of them together its control group may use, as ProcessorQuota;
  // group 0: as much as there is.
  double quota = 0;
  uint64_t quota_group = 0;
};

// Of this process. `root` is where the system's files are, for tests.
ProcessorShare FindProcessorShare(const std::string& root = "");

// Whether ranks of one host that have `shares` have fewer processors than they
// are: all of them, or those that share a quota.
bool IsCrowded(const std::vector<ProcessorShare>& shares);

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_PROCESSOR_SHARE_H_
