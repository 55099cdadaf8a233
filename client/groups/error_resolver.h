// Decides which error ended a group and which rank is the culprit.

#ifndef MUSTER_CLIENT_GROUPS_ERROR_RESOLVER_H_
#define MUSTER_CLIENT_GROUPS_ERROR_RESOLVER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/text.h"
#include "base/thread_annotations.h"
#include "client/control/deadline.h"
#include "client/control/throw.h"
#include "client/session.h"

namespace muster::internal {

// ErrorResolver makes one error out of the reports about a broken group: the
// backend's error, which may be a symptom of a symptom (a connection that a
// neighbour closed because its own neighbour died), the coordinator's events,
// and the loss of the coordinator.
//
// The coordinator's first event that ends the generation is the same for every
// rank. It overrides the backend's error if it arrives within `verdict_timeout`
// of it. Without such an event a rank reports its own conclusion, and the first
// report becomes the event. A member that left in peace ends nothing, but it
// explains connections that break afterwards. The cause of the group's end is
// logged once.
//
// An error with which a rank aborts the group (AsVerdict) needs no
// confirmation, except in the default group, where the coordinator announces
// it.
//
// Each group has its own resolver. A group other than the default one ends when
// one of its own members is the culprit, whether or not that ended the
// generation; other members of the job may come and go. Its ranks report
// nothing to the coordinator, because that would end all groups, but agree
// among themselves (Group::accuse).
//
// Ranks are global, except in the backend's errors, which use ranks of the
// group.
//
// Thread-safe. Events may arrive before Begin, as soon as there is a session.
class ErrorResolver {
 public:
  struct Options {
    std::chrono::milliseconds verdict_timeout = std::chrono::seconds(2);
    // The coordinator lives and dies with rank 0.
    bool embedded = false;
    // How long the session takes to find that the coordinator is gone.
    std::chrono::milliseconds coordinator_loss = std::chrono::seconds(1);
    // Of a group beside the default one, ascending; empty: the default group.
    std::vector<int> ranks = {};
  };

  struct Accusation {
    Status error;       // what this rank makes of its symptom
    bool told = false;  // the coordinator has it
  };

  struct Group {
    std::string name;
    int64_t generation = 0;
    int rank = -1;  // this process's
    // By the rank in the group.
    std::vector<Seat> seats;
    // What runs there now, for people; empty for nothing.
    std::function<std::string()> current;
    // Ends what runs there, with an error as the data plane has them: to blame
    // are ranks of the group.
    std::function<void(const Status&)> abort;
    // Without a verdict: tells the others what this rank thinks, or hears what
    // another has told before. Called without locks, may take seconds. Null:
    // keeps it to itself.
    std::function<Accusation(const Status& own)> accuse;
    // Whether the coordinator can be reached now.
    std::function<bool()> connected;
  };

  explicit ErrorResolver(Options options) : options_(std::move(options)) {}

  // Its destructor wakes those who wait for the resolver, and aborts what runs
  // in a group that is at its end. It is destroyed without locks, before the
  // resolver, and after all resolvers have the event: the user, whom it wakes,
  // may ask any group.
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

  // The callbacks of the session.
  Completion OnEvent(const MemberEvent& event) MUSTER_LOCKS_EXCLUDED(mutex_);
  Completion OnSessionOver(const Status& why) MUSTER_LOCKS_EXCLUDED(mutex_);

  // The group, of which name, generation and seats are known, forms until
  // Begin, or End: its `abort` is called once, as soon as Known is an error;
  // with kCancelled where that is one that left in peace.
  void Form(Group group) MUSTER_LOCKS_EXCLUDED(mutex_);

  // The group exists from now on; what came before is looked at again.
  void Begin(Group group) MUSTER_LOCKS_EXCLUDED(mutex_);

  // The group is no more; its functions are not called any longer.
  void End() MUSTER_LOCKS_EXCLUDED(mutex_);

  // The error that ended the group, so far as it is known; OK while it works.
  // Before Begin: whether somebody of it is gone in generation `generation`.
  Status Known(int64_t generation) const MUSTER_LOCKS_EXCLUDED(mutex_);

  // The same of a group that did not form because a connection failed: waits
  // up to `verdict_timeout` for who is gone.
  Status AwaitKnown(int64_t generation) MUSTER_LOCKS_EXCLUDED(mutex_);

  // The group's error, given that a collective failed here with `symptom`.
  // Waits for the coordinator's verdict if need be. Always the same for one
  // group.
  Status Decide(const Status& symptom) MUSTER_LOCKS_EXCLUDED(mutex_);

  // Waits until `until` for the error that ended the group; false when it is
  // not known then.
  bool AwaitFinal(Instant until) MUSTER_LOCKS_EXCLUDED(mutex_);

  // Waits until all other members of the group are gone, in peace or not, but
  // for those to blame: who is stuck does not come to its end.
  void AwaitOthersGone(std::chrono::milliseconds timeout)
      MUSTER_LOCKS_EXCLUDED(mutex_);

 private:
  // Who of a generation has gone.
  struct Gone {
    std::vector<bool> ranks;              // whether in peace or not
    std::vector<bool> left;               // in peace
    std::map<int, MemberInfo> described;  // of those some, by rank

    void Add(const MemberEvent& event);
    bool Has(int rank) const { return At(ranks, rank); }
    bool HasLeft(int rank) const { return At(left, rank); }

   private:
    static bool At(const std::vector<bool>& ranks, int rank);
    static void Mark(std::vector<bool>& ranks, int rank);
  };

  Status WhatIsKnown(int64_t generation) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of a group that forms: whether one of it has left in peace.
  Status FindDeparture(int64_t generation) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What Form promises, if it is time for it.
  Completion EndForming() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsWorld() const { return options_.ranks.empty(); }
  bool Includes(int rank) const;
  // Whether a member of the group is to blame for it, or left.
  bool Concerns(const MemberEvent& event) const;
  // The global rank of the group's rank `rank`; -1: none.
  int GlobalRank(int rank) const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `why` for the data plane, whose peers are to pass on who is to blame.
  Status ForGroup(Status why) const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status Verdict(const MemberEvent& event, const std::string& label) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Who the error is for: one that blames this rank itself must not read as if
  // another one was meant.
  enum class Reader { kThisRank, kOthers };
  // `symptom` with its culprits named in full.
  Status WithSeats(const Status& symptom, const std::vector<int>& culprits,
                   Reader reader) const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What another rank, or this one, has decided for the group.
  Status Decision(const Status& verdict) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status Departure(const Status& symptom, int culprit) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status CoordinatorGone(const Status& why) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The head of an error: what failed here first, else what runs now.
  std::string Label() const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string LabelOf(const Status& symptom) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string GroupLabel() const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AwaitVerdict(const Status& symptom, const std::vector<int>& culprits)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the rank of the group has left in peace, and as what it is known.
  bool HasLeft(int rank) const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The first of them that has; -1: none.
  int FirstLeft(const std::vector<int>& ranks) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  MemberInfo WhoLeft(int64_t generation, int rank) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Looks at all that is known; true when that is now the end of the group.
  bool Conclude() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Completion ConcludeAndEnd() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The group has ended with `why`.
  void Finish(Status why) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool begun_ MUSTER_GUARDED_BY(mutex_) = false;
  Group group_ MUSTER_GUARDED_BY(mutex_);
  // In the coordinator's order, but for those that left in peace.
  std::vector<MemberEvent> events_ MUSTER_GUARDED_BY(mutex_);
  // How many of them Conclude has looked at for this group.
  size_t concluded_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, Gone> gone_ MUSTER_GUARDED_BY(mutex_);  // by generation
  // Why the session is over.
  Status session_over_ MUSTER_GUARDED_BY(mutex_);
  // What failed here first, for the head of the error.
  std::string failed_label_ MUSTER_GUARDED_BY(mutex_);
  bool deciding_ MUSTER_GUARDED_BY(mutex_) = false;
  Status final_ MUSTER_GUARDED_BY(mutex_);
};

// `why` as the error with which a group ends on every rank that hears of it,
// word for word; to blame are these global ranks of the group.
Status AsVerdict(Status why, std::vector<int> culprits);

// These global ranks, ascending, of those that have a seat, with what is known
// of them; of many not of all.
Culprits SeatedAt(const std::vector<Seat>& seats, const std::vector<int>& ranks,
                  const std::string& cause);

// "rank 2 (trainer-2, pid 4711)". In texts about a group beside the default
// one, where "rank" counts those of the group: "global rank 2 (...)".
std::string DescribeMember(const MemberInfo& member, bool in_world);

// How many ranks an error text or a line of the log lists.
using base::kRanksInTextMax;

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_ERROR_RESOLVER_H_
