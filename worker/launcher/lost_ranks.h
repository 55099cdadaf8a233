#ifndef MUSTER_WORKER_LAUNCHER_LOST_RANKS_H_
#define MUSTER_WORKER_LAUNCHER_LOST_RANKS_H_

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/thread_annotations.h"
#include "client/control/host_members.h"
#include "client/session.h"
#include "client/tools/diagnose/hung_ranks.h"
#include "worker/launcher/hang_detector.h"
#include "worker/launcher/rank_environment.h"

namespace muster::worker {

// LostRanks asks the coordinator, ten times per lease, which processes of this
// host it has declared lost: those hang (HangDetector). It asks instead of
// being a member that is told, because such a member might be lost together
// with them. Four times per hang timeout it also asks which processes hang
// although their heartbeats continue: those in code of their own for which
// others have waited that long.
//
// Thread-safe. Has a thread of its own.
class LostRanks {
 public:
  struct Hung {
    pid_t pid = 0;
    // For people, after "rank 2 (pid 7) ", with `cause` behind a colon.
    std::string fate;
    std::string cause;
  };

  // Whom the rendezvous in progress waits for.
  struct Rendezvous {
    // Those of this host that others wait for, ascending.
    std::vector<int> missing;
    // How many ranks wait, on all hosts.
    int joined = 0;
    // No rank of this host has come to the coordinator since its start.
    bool none_came = true;
  };

  // The ranks of this host are `rank_count` from `first_rank` on, of
  // `world_size`.
  struct Ranks {
    int first_rank = 0;
    int rank_count = 0;
    int world_size = 0;
  };

  // `wake` is called, on another thread, when Take or TakeRendezvous has
  // something. A hang timeout of 0: nobody hangs whose heartbeats go on.
  LostRanks(const CoordinatorAddress& coordinator, const Ranks& ranks,
            std::chrono::milliseconds hang_timeout, std::function<void()> wake);
  // Waits for an answer that is on its way, for kAnswerTime at most.
  ~LostRanks();

  LostRanks(const LostRanks&) = delete;
  LostRanks& operator=(const LostRanks&) = delete;

  // Those since the last call.
  std::vector<Hung> Take() MUSTER_LOCKS_EXCLUDED(mutex_);

  // The coordinator's last answer, where ranks of this host are or were missing
  // (or, with a hang timeout, none has come yet), unless it was taken.
  std::optional<Rendezvous> TakeRendezvous() MUSTER_LOCKS_EXCLUDED(mutex_);

  // Whether the coordinator, which has answered before, does not
  // (HangDetector).
  bool IsOutOfTouch() const MUSTER_LOCKS_EXCLUDED(mutex_);

  // For people, while that is so: "the coordinator at 10.0.0.7:7070 has not
  // answered for 7.2s"; else empty.
  std::string DescribeSilence() const MUSTER_LOCKS_EXCLUDED(mutex_);

  // Whether this host was cut off from the coordinator for so long that its
  // ranks may just have been told that they were lost
  // (HangDetector::WasCutOff).
  bool WasCutOff() const MUSTER_LOCKS_EXCLUDED(mutex_);

 private:
  void Run();
  // Return the pause until the next time.
  std::chrono::milliseconds AskForLost() MUSTER_LOCKS_EXCLUDED(mutex_);
  std::chrono::milliseconds AskForHung() MUSTER_LOCKS_EXCLUDED(mutex_);
  void Tell(std::vector<Hung> hung) MUSTER_LOCKS_EXCLUDED(mutex_);
  void TellRendezvous(const internal::HostMembers& answer,
                      std::chrono::steady_clock::time_point asked_at)
      MUSTER_LOCKS_EXCLUDED(mutex_);
  SessionOptions ForReader() const;

  const CoordinatorAddress coordinator_;
  const Ranks ranks_;
  const std::chrono::steady_clock::time_point began_ =
      std::chrono::steady_clock::now();
  const std::chrono::milliseconds hang_timeout_;
  const std::function<void()> wake_;

  // Of the thread.
  bool none_came_ = true;
  bool told_missing_ = false;
  // Null: not connected.
  std::unique_ptr<internal::HostMembersReader> reader_;
  std::unique_ptr<tools::HungRanksReader> hung_reader_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  HangDetector detector_ MUSTER_GUARDED_BY(mutex_){Clock::now()};
  std::optional<Rendezvous> rendezvous_ MUSTER_GUARDED_BY(mutex_);
  std::vector<Hung> hung_ MUSTER_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_LOST_RANKS_H_
