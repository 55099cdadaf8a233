// A member that behaves like a client library.

#ifndef MUSTER_TESTS_SIMULATION_SIM_MEMBER_H_
#define MUSTER_TESTS_SIMULATION_SIM_MEMBER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/sim_message.h"
#include "tests/simulation/sim_random.h"

namespace muster::simulation {

// The members' behaviour in a run, drawn from its seed.
struct MemberHabits {
  int32_t world_size = 1;  // and the number of members
  // Not 0: the smallest and largest size of an elastic world.
  int32_t min_world_size = 0;
  int32_t max_world_size = 0;
  core::Duration last_call{};
  // A running world is replaced for waiting members only if its members have
  // time to come back meanwhile; otherwise this would never end.
  bool grows() const { return last_call >= std::chrono::seconds(2); }
  bool assigned_ranks = true;  // else the coordinator chooses
  core::Duration retry_after{};
  int64_t operations_max = 4;  // at a time
  double conflict = 0;         // chance of a barrier with the wrong arguments
  double leave = 0;            // chance of leaving, at each step
  double fail = 0;             // chance of reporting a failure
  double close = 0;            // chance of closing the rendezvous
  // Acknowledges answers even if older ones are missing.
  bool names_unanswered = false;
};

// SimMember registers, joins the rendezvous, then mixes store operations with
// barriers. It retries unanswered calls, takes a new incarnation when the old
// one is fenced, and joins again when its generation is over or others wait for
// whom its world has room. It leaves when the rendezvous is closed.
class SimMember {
 public:
  SimMember(int32_t index, const MemberHabits* habits, Random* random);

  // Starts a new process, which knows nothing of the old one.
  void Start(core::Instant now);

  // Returns the requests to send at `now`.
  std::vector<Request> Step(core::Instant now);

  void Receive(const Response& response, core::Instant now);
  void Receive(const core::Event& event);

  // The connection was closed and is open again.
  void Reconnected();

  // Abandons its calls and leaves.
  void BeginLeaving() { leaving_ = true; }
  bool gone() const { return phase_ == Phase::kGone; }

  // Whether the member has left or failed and wants to be started again.
  bool ended() const { return phase_ == Phase::kGone && !leaving_; }

  // Stops conflicts, leaves, failures and closing.
  void set_calm() { calm_ = true; }

  const core::MemberId& id() const { return id_; }
  core::Incarnation incarnation() const { return incarnation_; }

  // Barriers of the world that have released this process since `ResetScore`.
  int64_t released() const { return released_; }
  void ResetScore() { released_ = 0; }

  std::string Describe() const;

 private:
  enum class Phase { kRegistering, kJoining, kRunning, kEnding, kGone };

  struct Pending {
    Request request;
    core::Instant sent_at;
    bool sent = false;
  };

  void NewIncarnation();
  void BeginRegistering();
  void BeginJoining();
  void Issue(Request request);
  void IssueOperation();
  void IssueLifetimeOrQueue();
  std::string Somebodys(const std::string& prefix);
  void IssueBarrier();
  void IssueGroups();
  void GrowFor(int32_t waiting);
  bool Waiting(Verb verb) const;
  void Forget(Verb verb);
  void Complete(const Request& request, const Response& response);
  void CompleteBarrier(const Request& request, const Response& response);
  std::vector<core::Rank> Neighbours(int32_t width) const;
  void IssueGroupCall();
  void IssueGroupFailure();
  void Acknowledge(core::Call& call) const;

  const MemberHabits& habits_;
  Random& random_;
  const int32_t index_;
  const core::MemberId id_;

  // State of the process.
  core::Incarnation incarnation_;
  Phase phase_ = Phase::kGone;
  bool leaving_ = false;
  bool calm_ = false;
  std::map<uint64_t, Pending> pending_;  // by operation
  uint64_t next_operation_ = 1;
  uint64_t next_sequence_ = 1;
  uint64_t next_value_ = 1;
  std::optional<int64_t> seen_;  // the newest revision in its watches
  int64_t lock_revision_ = 0;    // last known, of the key "lock"
  std::optional<core::CoordinatorEpoch> epoch_;
  core::Instant heartbeat_at_;
  core::FormationReply formation_;
  core::Rank rank_;
  int64_t barriers_ = 0;     // number of calls in this generation
  bool grouped_ = false;     // the groups of this generation are registered
  int64_t groups_ = 0;       // number of calls that registered groups
  int64_t group_calls_ = 0;  // in which ranks of this generation meet
  // Failures of groups of which this rank has the verdict.
  int64_t group_failures_ = 0;
  int64_t released_ = 0;
};

}  // namespace muster::simulation

#endif  // MUSTER_TESTS_SIMULATION_SIM_MEMBER_H_
