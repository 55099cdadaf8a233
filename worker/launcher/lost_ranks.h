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

#include "client/control/host_members.h"
#include "client/tools/diagnose/hung_ranks.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"
#include "muster/session.h"
#include "worker/launcher/hang_detector.h"
#include "worker/launcher/rank_environment.h"

namespace muster::worker {

// LostRanks asks the coordinator, ten times per lease, which processes of this
// host it has declared lost: those hang (HangDetector). It is not a member that
// gets events, because such a member might be lost together with them. Four
// times per hang timeout it also asks which processes hang although their
// heartbeats continue: those in user code for which others have waited that
// long.
//
// Thread-safe. Has a thread of its own.
class LostRanks {
 public:
  struct Hung {
    pid_t pid = 0;
    // For people: "rank 2 (pid 7) FATE: CAUSE".
    std::string fate;
    std::string cause;
  };

  // The state of the rendezvous in progress.
  struct Rendezvous {
    // The ranks of this host for which others wait, ascending.
    std::vector<int> missing;
    // How many ranks wait, on all hosts.
    int joined = 0;
    // No rank of this host has registered since this object was made.
    bool none_came = true;
  };

  // This host has `rank_count` of the `world_size` ranks, from `first_rank` on.
  struct Ranks {
    int first_rank = 0;
    int rank_count = 0;
    int world_size = 0;
  };

  // `wake` is called on another thread when Take or TakeRendezvous has
  // something. With a hang timeout of 0, ranks with heartbeats do not hang.
  LostRanks(const CoordinatorAddress& coordinator, const Ranks& ranks,
            std::chrono::milliseconds hang_timeout, std::function<void()> wake);
  // Waits up to kAnswerTime for a call in progress.
  ~LostRanks();

  LostRanks(const LostRanks&) = delete;
  LostRanks& operator=(const LostRanks&) = delete;

  // Returns the processes found since the last call.
  std::vector<Hung> Take() MUSTER_LOCKS_EXCLUDED(mutex_);

  // Returns the coordinator's last answer if ranks of this host are or were
  // missing (or, with a hang timeout, none has registered yet). Returns an
  // answer only once.
  std::optional<Rendezvous> TakeRendezvous() MUSTER_LOCKS_EXCLUDED(mutex_);

  // Whether the coordinator has answered before and does not now
  // (HangDetector).
  bool IsOutOfTouch() const MUSTER_LOCKS_EXCLUDED(mutex_);

  // While IsOutOfTouch, for people: "the coordinator at 10.0.0.7:7070 has not
  // answered for 7.2s"; else empty.
  std::string DescribeSilence() const MUSTER_LOCKS_EXCLUDED(mutex_);

  // Whether the coordinator was out of reach so long that this host's ranks may
  // have learned just now that they were lost (HangDetector::WasCutOff).
  bool WasCutOff() const MUSTER_LOCKS_EXCLUDED(mutex_);

 private:
  void Run();
  // Both return the pause until the next call.
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

  // Used only by the thread.
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
