// Connects the muster-run processes of a job's hosts through the coordinator.

#ifndef MUSTER_WORKER_LAUNCHER_HOSTS_H_
#define MUSTER_WORKER_LAUNCHER_HOSTS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "client/control/error_file.h"
#include "client/control/host_members.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "worker/launcher/launch_options.h"
#include "worker/launcher/rank_environment.h"

namespace muster {
class Session;
struct MemberEvent;
struct Formation;
struct SessionOptions;
}  // namespace muster

namespace muster::worker {

// The payload of Meet's kOutOfRange if the job is over because all its ranks
// have succeeded. Empty.
inline constexpr char kJobFinishedUrl[] = "muster/job_finished";

// Hosts represents this host among the hosts of the job. Its muster-run is a
// member of the job JOB.agents on the coordinator (the ranks are members of
// JOB). Each generation of that job is one attempt of all ranks. A generation
// ends if a host leaves, joins again (because its ranks failed), or joins in
// addition. The other hosts are then notified, end their ranks, and meet again.
//
// Thread-safe.
class Hosts {
 public:
  // `wake` is called on another thread when change() may have something new.
  Hosts(const LaunchOptions& options, const CoordinatorAddress& coordinator,
        std::function<void()> wake);
  ~Hosts();

  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  // The data of one host in a meeting.
  struct Report {
    // How often the ranks were restarted after a failure, as far as this host
    // knows. The highest number counts.
    int restarts = 0;
    // The first failure among its ranks in the last attempt; empty: none.
    std::string failure = {};
    // A run number that is free in its --log-dir. The highest number counts.
    int log_run = 1;
  };

  struct Meeting {
    Assignment assignment;
    // The failure of the last attempt; empty: none.
    std::string failure;
  };

  // Waits for the other hosts, and returns the agreed assignment. Takes up to
  // --rdzv-conf's join_timeout.
  // Errors: kDeadlineExceeded (hosts are missing: the text lists them),
  //   kOutOfRange (the job is over: the text says for people how it ended;
  //   kJobFinishedUrl), and those of Session::Connect and Join.
  StatusOr<Meeting> Meet(const Report& report);

  // Why the current attempt is over.
  struct Change {
    std::string why;
    // Another host gave up: the job has failed.
    bool failed = false;
    // Hosts wait to take part; nothing is wrong.
    bool joined = false;
    // The coordinator has declared this host lost: it was cut off or stopped
    // for longer than the lease.
    bool lost = false;
  };
  std::optional<Change> change() const MUSTER_LOCKS_EXCLUDED(mutex_);

  // Asks the coordinator, so that change() has all that it knows by now. Waits
  // up to --rdzv-conf's join_timeout while it is out of reach. Returns the
  // lease, after which a silent host is lost; 0: not known.
  // Errors: kUnavailable, kDeadlineExceeded (no answer).
  StatusOr<std::chrono::milliseconds> CatchUp();

  // The hosts for which a running Meet waits, for people; empty: not known.
  std::string Missing() const;

  // This host's ranks have succeeded: waits for those of all others. OK: all
  // have succeeded. kAborted: the attempt is over, meet again.
  Status AwaitOthers();

  // Ends the job on all hosts as failed, by `failure`. This host's ranks blame
  // the ranks `blamed` of other hosts.
  void GiveUp(const std::string& failure,
              const std::vector<internal::Culprit>& blamed = {});

  // If another host has given up: the ranks that its ranks blame.
  std::vector<internal::Culprit> Blamed();

  // Leaves in peace. Ends the waits of other threads. A coordinator that does
  // not answer within `timeout` declares this host lost.
  void Leave(const std::string& reason,
             std::chrono::milliseconds timeout = std::chrono::seconds(2));

 private:
  Status Connect();
  StatusOr<Meeting> TryToMeet(const Report& report);
  StatusOr<Formation> Join(const std::shared_ptr<Session>& session);
  // Returns the agreement of all hosts of `formation`.
  StatusOr<Meeting> Exchange(const std::shared_ptr<Session>& session,
                             const Formation& formation, const Report& report);
  void OnEvent(const MemberEvent& event) MUSTER_LOCKS_EXCLUDED(mutex_);
  void OnOver(const Status& why) MUSTER_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<Session> session() const MUSTER_LOCKS_EXCLUDED(mutex_);
  // Options of the hosts' job for a caller that is no member.
  SessionOptions Options() const;
  StatusOr<internal::HostMembers> Ask() const;
  // The key of Blamed.
  std::string BlamedKey() const MUSTER_LOCKS_EXCLUDED(mutex_);

  const LaunchOptions& options_;
  const CoordinatorAddress coordinator_;
  const std::function<void()> wake_;
  std::stop_source stop_connecting_;  // stopped by Leave

  mutable Mutex mutex_;
  std::shared_ptr<Session> session_ MUSTER_GUARDED_BY(mutex_);
  bool left_ MUSTER_GUARDED_BY(mutex_) = false;
  CondVar pause_;  // Leave ends the pause
  int64_t generation_ MUSTER_GUARDED_BY(mutex_) = 0;
  int hosts_ MUSTER_GUARDED_BY(mutex_) = 0;
  // The last event of a generation that is over, and of one that further hosts
  // wait to join.
  int64_t over_generation_ MUSTER_GUARDED_BY(mutex_) = 0;
  Change over_ MUSTER_GUARDED_BY(mutex_);
  int64_t joined_generation_ MUSTER_GUARDED_BY(mutex_) = 0;
  Change joined_ MUSTER_GUARDED_BY(mutex_);
  // About the session.
  std::optional<Change> lost_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_HOSTS_H_
