// Decides which error ended a group and which rank is the culprit.

#ifndef MUSTER_CLIENT_GROUPS_ERROR_RESOLVER_H_
#define MUSTER_CLIENT_GROUPS_ERROR_RESOLVER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "client/control/deadline.h"
#include "client/control/throw.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/session.h"

namespace muster::internal {

// ErrorResolver brings the coordinator's verdict to a broken group. A rank
// whose collective fails knows only a symptom, which may be a symptom of a
// symptom (a connection that a neighbour closed because its own neighbour
// died). It reports that, and the coordinator decides once for all ranks:
//
//  - Default group: the event that ends the generation, the departure of a
//    member or the verdict about a report.
//  - Other groups: the departure of a member, whether or not it ended the
//    generation, an event about a report that blames a member, or the verdict
//    about this group's reports. Other members of the job may come and go.
//
// A member that left in peace ends nothing, unless the event says that it ended
// the generation, but it explains connections that break afterwards. If the
// coordinator is out of reach, the rank ends the group
// with its own symptom. The cause of the group's end is logged once.
//
// Ranks are global, except in the backend's errors, which use ranks of the
// group.
//
// Thread-safe. Events may arrive before Begin, as soon as there is a session.
class ErrorResolver {
 public:
  struct Options {
    std::chrono::milliseconds verdict_timeout = std::chrono::seconds(2);
    // Rank 0 serves the coordinator.
    bool embedded = false;
    // How long the session needs to detect the loss of the coordinator.
    std::chrono::milliseconds coordinator_loss = std::chrono::seconds(1);
    // The group's global ranks, ascending; empty: the default group.
    std::vector<int> ranks = {};
  };

  // A failure as the rank saw it.
  struct Symptom {
    // Has the culprits and, if it is a collective's, the failed call.
    Status error;
    // The start of a text about the failed call.
    std::string call = {};
    // A rank aborted the group with `error`.
    bool is_decision = false;
    // How long to wait for the departure that explains a broken connection, and
    // how long the rank has waited already.
    std::chrono::milliseconds wait{0};
    std::chrono::milliseconds waited{0};
  };

  struct Answer {
    bool reached = false;  // the coordinator has the report
    // The event about the group's failure, if there is one already.
    std::optional<MemberEvent> verdict = {};
    // Why the coordinator takes no report; OK: it does, or is out of reach.
    Status refusal = {};
  };

  struct Group {
    std::string name;
    // Distinguishes groups of one name.
    std::string instance = {};
    int64_t generation = 0;
    int rank = -1;  // of this process
    // By group rank.
    std::vector<Seat> seats;
    // Describes the running collective, for people; empty if none runs.
    std::function<std::string()> current;
    // Ends the running collectives with an error whose culprits are ranks of
    // the group.
    std::function<void(const Status&)> abort;
    // Reports a symptom to the coordinator, again and again until there is a
    // verdict. Called without locks; may take seconds. Null: nobody is asked.
    std::function<Answer(const Symptom& symptom)> report;
    // Whether the coordinator can be reached now.
    std::function<bool()> connected;
  };

  explicit ErrorResolver(Options options) : options_(std::move(options)) {}

  // The destructor wakes all waiting threads and aborts the collectives of a
  // group that has ended. Destroy it without locks, before the resolver, and
  // after all resolvers have the event, because the user's threads that it
  // wakes may query any group.
  class Completion {
   public:
    Completion() = default;
    explicit Completion(std::function<void()> run) : run_(std::move(run)) {}
    Completion(Completion&& other) noexcept
        : run_(std::exchange(other.run_, {})) {}
    Completion& operator=(Completion&&) = delete;
    ~Completion() {
      if (run_) run_();
    }

   private:
    std::function<void()> run_;
  };

  // Callbacks of the session.
  Completion OnEvent(const MemberEvent& event) MUSTER_LOCKS_EXCLUDED(mutex_);
  Completion OnSessionOver(const Status& why) MUSTER_LOCKS_EXCLUDED(mutex_);

  // The group, of which name, generation and seats are known, is being formed
  // until Begin or End. Calls its `abort` once, as soon as Known returns an
  // error; with kCancelled if that is about a member that left in peace.
  void Form(Group group) MUSTER_LOCKS_EXCLUDED(mutex_);

  // The group is formed. Evaluates earlier events again.
  void Begin(Group group) MUSTER_LOCKS_EXCLUDED(mutex_);

  // The group is over. Its functions are not called any more.
  void End() MUSTER_LOCKS_EXCLUDED(mutex_);

  // Returns the error that ended the group; OK while it works. Before Begin: an
  // error if one of its members is gone in `generation`.
  Status Known(int64_t generation) const MUSTER_LOCKS_EXCLUDED(mutex_);

  // Returns kAborted with the error of another rank of the group, whose
  // collective has timed out and waits for the verdict; OK if there is none.
  // For ranks that wait for others elsewhere than on a connection.
  Status FindTrouble(int64_t generation) const MUSTER_LOCKS_EXCLUDED(mutex_);

  // As Known, for a group that did not form because a connection failed. Waits
  // up to `verdict_timeout` for the event that says who is gone.
  Status AwaitKnown(int64_t generation) MUSTER_LOCKS_EXCLUDED(mutex_);

  // Returns the group's error after a collective has failed here with
  // `symptom`. Waits for the coordinator's verdict if necessary. Returns the
  // same error whenever it is called.
  Status Decide(const Status& symptom) MUSTER_LOCKS_EXCLUDED(mutex_);

  // Waits until `until` for the error that ended the group. Returns false if it
  // is not known by then.
  bool AwaitFinal(Instant until) MUSTER_LOCKS_EXCLUDED(mutex_);

  // Waits until all other members of the group are gone, in peace or not. Does
  // not wait for culprits, which may hang.
  void AwaitOthersGone(std::chrono::milliseconds timeout)
      MUSTER_LOCKS_EXCLUDED(mutex_);

 private:
  // The members of a generation that are gone.
  struct Gone {
    std::vector<bool> ranks;              // all of them
    std::vector<bool> left;               // those that left in peace
    std::map<int, MemberInfo> described;  // some of those that left, by rank

    void Add(const MemberEvent& event);
    bool Has(int rank) const { return At(ranks, rank); }
    bool HasLeft(int rank) const { return At(left, rank); }

   private:
    static bool At(const std::vector<bool>& ranks, int rank);
    static void Mark(std::vector<bool>& ranks, int rank);
  };

  Status WhatIsKnown(int64_t generation) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // For a group that is being formed: an error if a member left in peace.
  Status FindDeparture(int64_t generation) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Does what Form promises, if there is an error.
  Completion EndForming() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsWorld() const { return options_.ranks.empty(); }
  bool Includes(int rank) const;
  // Whether the event blames a member of the group, or one left.
  bool Concerns(const MemberEvent& event) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Converts a group rank to a global rank; -1 if there is none.
  int GlobalRank(int rank) const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds the culprits as group ranks, which the data plane sends to peers.
  Status ForGroup(Status why) const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status Verdict(const MemberEvent& event, const std::string& label) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The reader of an error. This rank's own error says "this one" of itself.
  enum class Reader { kThisRank, kOthers };
  // Returns `symptom` with process ids and hosts of its culprits.
  Status WithSeats(const Status& symptom, const std::vector<int>& culprits,
                   Reader reader) const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status Alone(const Status& symptom, const std::vector<int>& culprits,
               const std::string& why_alone) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Converts the decision of a rank into the group's error.
  Status Decision(const Status& verdict) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status CoordinatorGone(const Status& why) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The start of an error's text: the call that failed here first, else the one
  // that runs now.
  std::string Label() const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string MakeLabel(const Status& symptom) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string GroupLabel() const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reports the symptom and waits for the group's error. If none comes, returns
  // what the coordinator did instead.
  std::string AwaitVerdict(Symptom symptom, const std::vector<int>& culprits)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the event is about the failure of this group.
  bool IsOwn(const MemberEvent& event) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the rank of the group has left in peace.
  bool HasLeft(int rank) const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  MemberInfo WhoLeft(int64_t generation, int rank) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Evaluates all that is known. Returns true if that ends the group now.
  bool Conclude() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Completion ConcludeAndEnd() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sets the group's error.
  void Finish(Status why) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool begun_ MUSTER_GUARDED_BY(mutex_) = false;
  Group group_ MUSTER_GUARDED_BY(mutex_);
  // In the coordinator's order, without leaves that ended nothing.
  std::vector<MemberEvent> events_ MUSTER_GUARDED_BY(mutex_);
  // How many of `events_` Conclude has evaluated for this group.
  size_t concluded_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, Gone> gone_ MUSTER_GUARDED_BY(mutex_);  // by generation
  // Why the session is over; OK while it lasts.
  Status session_over_ MUSTER_GUARDED_BY(mutex_);
  // The call that failed here first.
  std::string failed_label_ MUSTER_GUARDED_BY(mutex_);
  bool deciding_ MUSTER_GUARDED_BY(mutex_) = false;
  Status final_ MUSTER_GUARDED_BY(mutex_);
};

// Converts the error that a rank reported, whose text is complete.
Status ToError(const MemberEvent& event);

// Makes of `why` an error that every rank of the group ends with, word for
// word. `culprits` are global ranks of the group.
Status AsVerdict(Status why, std::vector<int> culprits);

// Describes the members with these global ranks, which are ascending. If there
// are many, the rest has ranks only.
Culprits SeatedAt(const std::vector<Seat>& seats, const std::vector<int>& ranks,
                  const std::string& cause);

// Returns "rank 2 (trainer-2, pid 4711)". If not `in_world`, the text is about
// a group with ranks of its own: "global rank 2 (...)".
std::string DescribeMember(const MemberInfo& member, bool in_world);

// How many ranks an error text or log line lists.
using base::kRanksInTextMax;

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_ERROR_RESOLVER_H_
