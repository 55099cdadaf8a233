#ifndef MUSTER_WORKER_LAUNCHER_ABSENT_RANKS_H_
#define MUSTER_WORKER_LAUNCHER_ABSENT_RANKS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/control/host_members.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"
#include "worker/launcher/rank_environment.h"

namespace muster::worker {

// AbsentRanks acts for the ranks of this host that have ended for good. Another
// rank that waits for one of them in the rendezvous would wait for its whole
// timeout. So a placeholder joins as the ended rank and, when the generation
// has formed, reports that it has failed: the others get the same error as for
// a rank that dies later.
//
// A placeholder joins only if ranks wait: most ranks end when all are done.
//
// Thread-safe. Has a thread of its own, and one for each placeholder.
class AbsentRanks {
 public:
  // `world_size` is the launcher's. A rendezvous of another size, which the
  // program chose, waits for other ranks and is ignored.
  AbsentRanks(const CoordinatorAddress& coordinator, int world_size);
  // Waits up to two seconds for a call in progress.
  ~AbsentRanks();

  AbsentRanks(const AbsentRanks&) = delete;
  AbsentRanks& operator=(const AbsentRanks&) = delete;

  // `end` says how the rank ended: "exited with status 3".
  void Add(int rank, int64_t pid, const std::string& end)
      MUSTER_LOCKS_EXCLUDED(mutex_);

  // Whether others waited for these ranks half a second ago.
  bool others_wait() const { return others_wait_.load(); }

 private:
  class PlaceholderMember;

  void Run();
  // Asks whether ranks wait in a rendezvous of this world size.
  bool OthersWait();
  void Stand() MUSTER_LOCKS_EXCLUDED(mutex_);

  const CoordinatorAddress coordinator_;
  const int world_size_;

  // Used only by the thread. Null: not connected.
  std::unique_ptr<internal::HostMembersReader> reader_;

  std::atomic<bool> others_wait_ = false;

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  // One for each ended rank, whether it has joined or not.
  std::vector<std::unique_ptr<PlaceholderMember>> absent_
      MUSTER_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_ABSENT_RANKS_H_
