#ifndef MUSTER_WORKER_LAUNCHER_ABSENT_RANKS_H_
#define MUSTER_WORKER_LAUNCHER_ABSENT_RANKS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/thread_annotations.h"
#include "client/control/host_members.h"
#include "worker/launcher/rank_environment.h"

namespace muster::worker {

// AbsentRanks stands in for the ranks of this host that have ended for good. A
// rank that waits for one of them in the rendezvous would wait for its whole
// timeout. So a placeholder takes the seat of the ended rank and, when the
// generation has formed, reports that it has failed: the others then get the
// same error as for a rank that dies later.
//
// Nothing happens while nobody waits, because most ranks end when all are done.
//
// Thread-safe. Has a thread of its own, and one for each rank that is waited
// for.
class AbsentRanks {
 public:
  // Ranks of another world size, which the program chose, are not waited for
  // in the same rendezvous.
  AbsentRanks(const CoordinatorAddress& coordinator, int world_size);
  // Waits for an answer that is on its way, for two seconds at most.
  ~AbsentRanks();

  AbsentRanks(const AbsentRanks&) = delete;
  AbsentRanks& operator=(const AbsentRanks&) = delete;

  // `end` is how it ended, as "exited with status 3".
  void Add(int rank, int64_t pid, const std::string& end)
      MUSTER_LOCKS_EXCLUDED(mutex_);

  // Whether others wait for them, as it was half a second ago.
  bool others_wait() const { return others_wait_.load(); }

 private:
  class PlaceholderMember;

  void Run();
  // Whether others wait in a rendezvous for the world of these ranks.
  bool OthersWait();
  void Stand() MUSTER_LOCKS_EXCLUDED(mutex_);

  const CoordinatorAddress coordinator_;
  const int world_size_;

  // Of the thread. Null: not connected.
  std::unique_ptr<internal::HostMembersReader> reader_;

  std::atomic<bool> others_wait_ = false;

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  // One for each rank, which stands or not.
  std::vector<std::unique_ptr<PlaceholderMember>> absent_
      MUSTER_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_ABSENT_RANKS_H_
