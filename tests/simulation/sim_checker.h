// The invariants of a simulation, checked at every step.

#ifndef MUSTER_TESTS_SIMULATION_SIM_CHECKER_H_
#define MUSTER_TESTS_SIMULATION_SIM_CHECKER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "coordinator/core/coordinator.h"
#include "tests/simulation/reference_store.h"
#include "tests/simulation/sim_message.h"

namespace muster::simulation {

// SimChecker sees every request that reaches the coordinator and everything
// that leaves it.
//
//   I1 a barrier instance has one answer for all of its waiters
//   I2 it is released only when every rank that takes part has arrived
//   I3 a read is never older than the last acknowledged write before it, and
//      numbered mutations are exact under retries (reference store), so each
//      item of a queue is popped exactly once, in order; a key with a lifetime
//      is gone one tick after it; keys that are written together are read
//      together; a watch is told of every change once, from its revision on
//   I4 a fenced incarnation changes nothing
//   I5 one reply per waiter, no later than its deadline and one tick
//   I6 within a generation ranks are dense, unique and the same everywhere; the
//      world is as large as its members allow, all of them live; in the elastic
//      form a member keeps its rank of the previous generation if that rank
//      exists, and no generation forms while one is running; nothing forms
//      after the rendezvous was closed; a group keeps the ranks of its first
//      registration, and counts each of them once; every departure of a rank is
//      told once to every other listener, at once, except leaves that follow
//      one another; a member that registers again is told of all that left its
//      generation
//   I7 after all have left every table is empty
//   I8 when the network has healed every waiting call finishes
//
// I1 to I6 are checked here at each step, I7 and I8 by the world at the end.
class SimChecker {
 public:
  // `late` is the longest time from a deadline to its tick.
  explicit SimChecker(core::Duration late) : late_(late) {}

  // A new, empty coordinator. The old one's waiters are gone.
  void Restart(core::CoordinatorEpoch epoch);

  // A coordinator with all that the old one had stored: its answers still hold.
  // The old one's waiters are gone.
  void Resume(core::Instant now);

  // Compares the watches of a restored coordinator with those of the old one,
  // from all revisions after `history_after`.
  void CompareWatches(core::Coordinator& old, core::Coordinator& restored,
                      int64_t history_after, core::Instant now);

  // Before the handling of a request.
  void Before(const Request& request, const core::Coordinator& coordinator,
              core::Instant now);

  // In every step, before its replies: handles changes without a request.
  // `ticked`: the step was a tick.
  void CheckStep(const core::Outbox& out, bool ticked, core::Instant now,
                 const core::Coordinator& coordinator);

  // In every step, after its replies.
  void CompareRevisions(const core::Coordinator& coordinator,
                        core::Instant now);

  // The request of a waiting call, or null.
  const Request* FindRequest(core::WaiterId waiter) const;

  // For every announced departure, before the replies of the same step.
  void Departed(const core::Event& event);

  // For every reply, in order.
  void Observe(const core::Reply& reply, core::Instant now);

  // Compares the store's whole contents with the reference.
  void CompareStores(core::Coordinator& coordinator, core::Instant now);

  // Fails if a call is waiting.
  void ExpectNoWaiters();

  void Fail(const std::string& what);
  const std::optional<std::string>& failure() const { return failure_; }

  std::vector<core::WaiterId> Waiters(const core::MemberId& member) const;
  size_t waiters() const { return waiting_.size(); }

  // Counts of events in the run.
  struct Seen {
    int64_t popped = 0;
    int64_t expired = 0;
    int64_t orphaned = 0;
    int64_t watched = 0;      // changes
    int64_t watches_cut = 0;  // the revision was forgotten
    int64_t watched_on = 0;   // changes of before a restart, told after it
    int64_t last_calls = 0;
    int64_t spares = 0;   // formations without a seat for somebody
    int64_t returns = 0;  // kept seats of an elastic world
    int64_t closed = 0;
    int64_t grouped = 0;          // calls that registered groups
    int64_t group_conflicts = 0;  // refused ones of these
    int64_t calls_told = 0;       // that others passed other arguments
    int64_t verdicts = 0;         // about groups, told or answered
    int64_t too_late = 0;         // barriers whose decision was dropped
    int64_t parts_released = 0;   // calls of barriers of some ranks
    int64_t read_together = 0;    // MultiGets
    int64_t waited = 0;
    int64_t stragglers = 0;  // numbers listed as unanswered
    int64_t told = 0;        // notifications of departures
    int64_t together = 0;    // events for several leaves
  };
  const Seen& seen() const { return seen_; }

 private:
  struct Waiting {
    Request request;
    core::Instant due;
    int64_t revision_floor = 0;  // of the key when a Get was issued
  };

  // The answered numbers of one incarnation, as it says.
  struct Acknowledged {
    uint64_t through = 0;
    std::set<uint64_t> open;  // up to there, but unanswered

    bool Covers(uint64_t number) const {
      return number <= through && !open.contains(number);
    }
  };

  using Registration = std::pair<core::MemberId, core::Incarnation>;
  // Epoch, generation, group, barrier, number of participants, instance: an
  // unused name is free for other ranks.
  using InstanceKey =
      std::tuple<uint64_t, int64_t, std::string, std::string, int32_t, int64_t>;

  void ObserveMutation(const Waiting& waiting, const core::Reply& reply);
  void ObserveGet(const Waiting& waiting, const core::Reply& reply,
                  core::Instant now);
  void ObserveMultiGet(const Waiting& waiting, const core::Reply& reply);
  void ObserveWait(const Waiting& waiting, const core::Reply& reply);
  void ObservePop(const Waiting& waiting, const core::Reply& reply);
  void ObserveWatch(const Waiting& waiting, const core::Reply& reply);
  void ObserveRegistration(const Waiting& waiting);
  void ObserveFormation(const Waiting& waiting,
                        const core::FormationReply& formation);
  void CheckFormation(const core::JoinRequest& join,
                      const core::Formation& formation);
  void ObserveGroups(const Waiting& waiting, const core::Reply& reply);
  void ObserveGroupCall(const Waiting& waiting, const core::Reply& reply);
  void ObserveVerdict(const core::GroupFailure& failure);
  void ObserveBarrier(const Waiting& waiting, const core::Reply& reply);
  std::vector<core::Rank> FindParticipants(const core::BarrierRequest& request);
  void CheckEvents(const core::Outbox& out, const core::JobSnapshot& job,
                   core::Instant now);
  void NoteLeave(const core::Notice& notice, core::Instant now);
  void ObserveDeparture(const core::Event& event, core::Instant now);
  void CheckLeaves(core::Instant now,
                   const std::set<core::MemberId>& listeners);
  void CheckToldBefore(const core::Event& event);
  void CheckOrder(const core::Event& event);
  void CheckToldAgain(const Request& request, const core::Outbox& out,
                      const core::JobSnapshot& job);
  void Acknowledge(const core::Call& call, Acknowledged& known);

  const core::Duration late_;
  std::optional<std::string> failure_;
  core::CoordinatorEpoch epoch_;
  std::map<core::WaiterId, Waiting> waiting_;

  // In the current epoch.
  ReferenceStore store_;
  std::set<std::tuple<core::MemberId, core::Incarnation, uint64_t>> applied_;
  std::set<Registration> registered_;
  std::set<Registration> fenced_;
  std::map<Registration, Acknowledged> acknowledged_;
  std::map<std::tuple<core::MemberId, core::Incarnation, uint64_t>, std::string>
      answers_;  // of the numbered mutations

  std::map<std::tuple<core::MemberId, core::Incarnation, uint64_t>, std::string>
      popped_;              // the answers of pops
  int64_t resumed_at_ = 0;  // the revision of the newest restart
  Seen seen_;

  // For the current request.
  core::WaiterId subject_;
  std::optional<std::string> expected_answer_;  // none: an error

  std::map<InstanceKey, core::BarrierReply> decisions_;
  std::map<std::pair<uint64_t, int64_t>, core::FormationReply> formations_;
  // By epoch, generation and name.
  struct Group {
    std::vector<core::Rank> ranks;
    std::set<core::MemberId> registered;
  };
  std::map<std::tuple<uint64_t, int64_t, std::string>, Group> groups_;
  // The counts in the answers to numbered calls.
  std::map<std::tuple<core::MemberId, core::Incarnation, uint64_t>,
           std::vector<int32_t>>
      counts_;
  // The texts of the answers to numbered calls in which ranks meet.
  std::map<std::tuple<core::MemberId, core::Incarnation, uint64_t>, std::string>
      told_calls_;
  // By epoch, generation and number of the call.
  struct GroupCall {
    std::set<uint64_t> hashes;  // of the arguments
    std::string text;           // told to ranks that wait in vain
  };
  std::map<std::tuple<uint64_t, int64_t, int64_t>, GroupCall> group_calls_;
  // The verdicts by epoch, generation, group and instance.
  std::map<std::tuple<uint64_t, int64_t, std::string, std::string>,
           std::pair<std::string, std::vector<core::Rank>>>
      verdicts_;
  // Leaves of ranks that the others do not know yet.
  struct Leave {
    core::Instant since;
    bool at_once = false;  // it must not wait for others
    bool excused = false;  // there was nobody to tell
  };
  std::map<Registration, Leave> leaves_;
  std::set<Registration> left_;        // in the newest generation, told or not
  std::set<Registration> departures_;  // told ones
  core::Instant left_told_at_;
  bool closed_ = false;   // in the current epoch
  bool running_ = false;  // the newest generation runs
  // The numbered barrier calls of each rank.
  std::map<std::tuple<uint64_t, int64_t, std::string, std::string, core::Rank>,
           std::set<uint64_t>>
      arrivals_;
};

}  // namespace muster::simulation

#endif  // MUSTER_TESTS_SIMULATION_SIM_CHECKER_H_
