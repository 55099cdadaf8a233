// The waits of ranks that the coordinator knows of: barriers, groups that form,
// keys and queues, but not collectives.

#ifndef MUSTER_CLIENT_TOOLS_DIAGNOSE_WAITS_H_
#define MUSTER_CLIENT_TOOLS_DIAGNOSE_WAITS_H_

#include <map>
#include <string>
#include <vector>

#include "muster/v1/admin.pb.h"

namespace muster::tools {

// The ranks that have come to the barrier; empty when the coordinator does not
// tell them all.
std::vector<int> ArrivedIn(const v1::GetJobResponse& job,
                           const v1::OpenBarrier& barrier);

// The ranks that wait for the others of a group that forms; empty when the
// coordinator does not tell them all. One that tells of the group is in it.
std::vector<int> WaitingIn(const v1::GetJobResponse& job,
                           const v1::RegisteredGroup& group);

// `key "k"`, `an item of queue "q"`, and how many keys more; made harmless.
std::string KeyText(const v1::KeyWait& wait);

// Whether it is the SDK's own, such as of a group that forms.
bool IsInternal(const v1::KeyWait& wait);

// By rank.
class Waits {
 public:
  explicit Waits(const v1::GetJobResponse& job);

  struct Wait {
    std::string state;  // as Culprit has it; empty: none
    std::string what;   // "it waits for ..."
  };
  // For other ranks: in a barrier or a group that forms.
  Wait ForRanks(int rank) const;
  // For a key of the store.
  Wait ForKey(int rank) const;

 private:
  std::map<int, Wait> for_ranks_;
  std::map<int, Wait> for_key_;
};

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_DIAGNOSE_WAITS_H_
