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

#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "client/control/error_file.h"
#include "client/control/host_members.h"
#include "worker/launcher/launch_options.h"
#include "worker/launcher/rank_environment.h"

namespace muster {
class Session;
struct MemberEvent;
struct Formation;
struct SessionOptions;
}  // namespace muster

namespace muster::worker {

// Payload of Hosts::Meet's kOutOfRange, empty, when the job is over because all
// its ranks have succeeded.
inline constexpr char kJobFinishedUrl[] = "muster/job_finished";

// Hosts represents this host among the hosts of the job. Its muster-run is a
// member of the job JOB.agents on the coordinator (the ranks are members of
// JOB). Each generation of that job is one attempt of all ranks. A host that
// leaves, joins the rendezvous again (because its ranks failed) or joins in
// addition ends the generation. The other hosts are told, end their ranks, and
// meet again.
//
// Thread-safe.
class Hosts {
 public:
  // `wake` is called, on another thread, when there may be a Change.
  Hosts(const LaunchOptions& options, const CoordinatorAddress& coordinator,
        std::function<void()> wake);
  ~Hosts();

  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  // What a host tells the others when they meet.
  struct Report {
    // How often the ranks were started again after a failure, as this host
    // knows; the highest number counts.
    int restarts = 0;
    // Of its ranks in the attempt before; empty: they did not fail first.
    std::string failure = {};
    // That its --log-dir has room for; the highest number counts.
    int log_run = 1;
  };

  struct Meeting {
    Assignment assignment;
    // Of the attempt before; empty: there was none, or nothing failed.
    std::string failure;
  };

  // Waits for the other hosts, and returns what all agreed on. Takes up to
  // --rdzv-conf's join_timeout.
  // Errors: kDeadlineExceeded (hosts are missing: the text lists them),
  //   kOutOfRange (the job is over: the text says how it ended, for people;
  //   kJobFinishedUrl), others of Session::Connect and Join.
  StatusOr<Meeting> Meet(const Report& report);

  // Why the attempt that the last meeting began is over.
  struct Change {
    std::string why;
    // Another host gave up: the job has failed.
    bool failed = false;
    // Hosts wait to take part; nothing is wrong.
    bool joined = false;
    // This host was lost to the others: it was cut off, or stopped, for longer
    // than the coordinator's lease.
    bool lost = false;
  };
  std::optional<Change> change() const MUSTER_LOCKS_EXCLUDED(mutex_);

  // Asks the coordinator, so that change() is all that it knew by now. Waits
  // for --rdzv-conf's join_timeout at most while that one is out of reach.
  // Returns the lease, after which a host that says nothing is lost; 0: not
  // known. Errors: kUnavailable, kDeadlineExceeded (nobody answered).
  StatusOr<std::chrono::milliseconds> CatchUp();

  // For people: which hosts a Meet in progress waits for; empty: not known.
  std::string Missing() const;

  // This host's ranks have succeeded: waits for those of all others. OK: they
  // have, too. kAborted: the attempt is over, meet again.
  Status AwaitOthers();

  // The job has failed, by `failure`, for which this host's ranks blame
  // `blamed` of others; all hosts are told.
  void GiveUp(const std::string& failure,
              const std::vector<internal::Culprit>& blamed = {});

  // When another host has given up: whom its ranks blame.
  std::vector<internal::Culprit> Blamed();

  // Leaves in peace. Ends what another thread waits for. A coordinator that
  // does not answer within `timeout` takes this host for lost.
  void Leave(const std::string& reason,
             std::chrono::milliseconds timeout = std::chrono::seconds(2));

 private:
  Status Connect();
  StatusOr<Meeting> TryToMeet(const Report& report);
  StatusOr<Formation> Join(const std::shared_ptr<Session>& session);
  // What all hosts of `formation` say, once they have.
  StatusOr<Meeting> Exchange(const std::shared_ptr<Session>& session,
                             const Formation& formation, const Report& report);
  void OnEvent(const MemberEvent& event) MUSTER_LOCKS_EXCLUDED(mutex_);
  void OnOver(const Status& why) MUSTER_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<Session> session() const MUSTER_LOCKS_EXCLUDED(mutex_);
  // Of the hosts' job; one who is no member.
  SessionOptions Options() const;
  StatusOr<internal::HostMembers> Ask() const;
  // Under which whoever gives up says whom it blames.
  std::string BlamedKey() const MUSTER_LOCKS_EXCLUDED(mutex_);

  const LaunchOptions& options_;
  const CoordinatorAddress coordinator_;
  const std::function<void()> wake_;
  std::stop_source stop_connecting_;  // by Leave

  mutable Mutex mutex_;
  std::shared_ptr<Session> session_ MUSTER_GUARDED_BY(mutex_);
  bool left_ MUSTER_GUARDED_BY(mutex_) = false;
  CondVar pause_;  // ends by Leave
  int64_t generation_ MUSTER_GUARDED_BY(mutex_) = 0;
  int hosts_ MUSTER_GUARDED_BY(mutex_) = 0;
  // What came last for a generation that is over, and of one that others wait
  // in.
  int64_t over_generation_ MUSTER_GUARDED_BY(mutex_) = 0;
  Change over_ MUSTER_GUARDED_BY(mutex_);
  int64_t joined_generation_ MUSTER_GUARDED_BY(mutex_) = 0;
  Change joined_ MUSTER_GUARDED_BY(mutex_);
  // Of the session.
  std::optional<Change> lost_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_HOSTS_H_
