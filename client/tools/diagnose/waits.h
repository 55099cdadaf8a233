// The waits of ranks that the coordinator knows: barriers, groups that form,
// keys and queues, but not collectives.

#ifndef MUSTER_CLIENT_TOOLS_DIAGNOSE_WAITS_H_
#define MUSTER_CLIENT_TOOLS_DIAGNOSE_WAITS_H_

#include <map>
#include <string>
#include <vector>

#include "muster/v1/admin.pb.h"

namespace muster::tools {

// The ranks in the barrier; empty if the coordinator does not list all.
std::vector<int> ArrivedIn(const v1::GetJobResponse& job,
                           const v1::OpenBarrier& barrier);

// The ranks that wait in a group that forms; empty if the coordinator does not
// list all. A rank that reports the group's progress is not waiting.
std::vector<int> WaitingIn(const v1::GetJobResponse& job,
                           const v1::RegisteredGroup& group);

// Returns `key "k"`, `an item of queue "q"`, and the number of further keys.
// Escapes the names.
std::string KeyText(const v1::KeyWait& wait);

// Whether the key is the SDK's own, such as those of a group that forms.
bool IsInternal(const v1::KeyWait& wait);

// The waits by rank.
class Waits {
 public:
  explicit Waits(const v1::GetJobResponse& job);

  struct Wait {
    std::string state;  // as in Culprit; empty: no wait
    std::string what;   // "it waits for ..."
  };
  // The wait for other ranks: in a barrier or a group that forms.
  Wait ForRanks(int rank) const;
  // The wait for a key of the store.
  Wait ForKey(int rank) const;

 private:
  std::map<int, Wait> for_ranks_;
  std::map<int, Wait> for_key_;
};

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_DIAGNOSE_WAITS_H_
