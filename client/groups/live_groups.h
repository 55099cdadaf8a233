// Passes a session's events to all process groups, and their progress to the
// session.

#ifndef MUSTER_CLIENT_GROUPS_LIVE_GROUPS_H_
#define MUSTER_CLIENT_GROUPS_LIVE_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/groups/error_resolver.h"
#include "client/groups/group_state.h"
#include "muster/base/clock.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/session.h"

namespace muster::internal {

// The most groups of one process whose progress the coordinator accepts.
inline constexpr size_t kProgressGroupsMax = 256;

// LiveGroups delivers the session's events to the error resolvers of all
// groups, in the coordinator's order, and replays earlier events to resolvers
// that are added later. It keeps no group and no resolver alive. Thread-safe.
class LiveGroups {
 public:
  std::shared_ptr<ErrorResolver> NewResolver(ErrorResolver::Options options)
      MUSTER_LOCKS_EXCLUDED(mutex_);

  // From now on heartbeats have the group's progress, if it is one of the
  // oldest kProgressGroupsMax live groups.
  void Add(const std::shared_ptr<GroupState>& group)
      MUSTER_LOCKS_EXCLUDED(mutex_);

  // Exists while a group connects. Heartbeats say that it is in `call` and has
  // no collective yet.
  class Connecting {
   public:
    // `live` must outlive it.
    Connecting(LiveGroups* live, std::string group, std::string call);
    ~Connecting();
    Connecting(const Connecting&) = delete;
    Connecting& operator=(const Connecting&) = delete;

    GroupProgress Progress() const;

   private:
    LiveGroups& live_;
    const std::string group_;
    const std::string call_;
    const Instant since_ = Clock::now();
  };

  // The callbacks of the session.
  void OnEvent(const MemberEvent& event) MUSTER_LOCKS_EXCLUDED(mutex_);
  void OnSessionOver(const Status& why) MUSTER_LOCKS_EXCLUDED(mutex_);
  std::vector<GroupProgress> Progress() const MUSTER_LOCKS_EXCLUDED(mutex_);

  // Whether the coordinator has announced the generation's end.
  bool IsOver(int64_t generation) const MUSTER_LOCKS_EXCLUDED(mutex_);

  // The members with these ranks that left or were lost, and those that
  // reported a failure: they may be alive, but the coordinator does not answer
  // them.
  struct Absent {
    std::vector<MemberInfo> gone;
    std::vector<int> left;  // those of `gone` that left in peace
    std::vector<int> reported;
  };
  Absent FindAbsent(int64_t generation, const std::vector<int>& ranks) const
      MUSTER_LOCKS_EXCLUDED(mutex_);

 private:
  mutable Mutex mutex_;
  std::vector<MemberEvent> events_ MUSTER_GUARDED_BY(mutex_);
  Status session_over_ MUSTER_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<ErrorResolver>> resolvers_
      MUSTER_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<GroupState>> groups_ MUSTER_GUARDED_BY(mutex_);
  std::vector<const Connecting*> connecting_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_LIVE_GROUPS_H_
