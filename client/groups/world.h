// The state behind the default group, from InitProcessGroup to
// DestroyProcessGroup.

#ifndef MUSTER_CLIENT_GROUPS_WORLD_H_
#define MUSTER_CLIENT_GROUPS_WORLD_H_

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "client/control/deadline.h"
#include "client/groups/embedded_coordinator.h"
#include "client/groups/error_resolver.h"
#include "client/groups/group_calls.h"
#include "client/groups/group_state.h"
#include "client/groups/groups.h"
#include "client/groups/init_method.h"
#include "client/groups/live_groups.h"
#include "client/groups/process_telemetry.h"
#include "client/stores/bootstrap.h"
#include "muster/distributed.h"
#include "muster/errors.h"
#include "muster/process_group.h"
#include "muster/session.h"
#include "muster/store.h"

namespace muster::internal {

// The default group's name, and the prefix of its keys, which the generation
// follows.
inline constexpr char kWorldName[] = "world";
std::string WorldPrefix();

// One default group: the coordinator that rank 0 serves, the session, the
// communicator, the metrics and all other groups. Only the accessors are
// thread-safe.
class World {
 public:
  // Throws what InitProcessGroup throws, except for a second default group.
  static std::unique_ptr<World> Form(const InitProcessGroupOptions& options);

  // Without Destroy the other ranks see this member as lost.
  ~World();

  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Ends all groups and leaves in peace. Then throws the error of a group that
  // failed if no caller has seen one.
  void Destroy();

  // Returns a default group without some of the ranks, which replaces this one;
  // this one has left then. Throws what ShrinkGroup throws. This one then
  // stays, its groups are ended unless nothing was begun, and it knows which
  // other ranks are gone.
  std::unique_ptr<World> Shrink(const std::vector<int>& ranks_to_exclude,
                                const ShrinkGroupOptions& options);

  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  const std::shared_ptr<Store>& store() const { return store_; }
  Groups& groups() { return *groups_; }
  std::string debug_address() const;

 private:
  // State of a group that is being made from another default group.
  struct Shrinking {
    World* old = nullptr;
    // Old rank by new rank.
    std::vector<int> survivors;
    std::string excluded;  // "2,3"
    // Whether all survivors have come to the call.
    bool met = false;
  };
  class OthersWatch;

  explicit World(const InitProcessGroupOptions& options);
  static std::unique_ptr<World> MakeWorld(
      const InitProcessGroupOptions& options, const Shrinking* shrinking);

  std::string DebugAddress(const InitPlan& plan) const;
  void MeetInFile(const InitPlan& plan);
  void FormGroup(InitPlan plan);
  void ServeCoordinator(InitPlan& plan);
  void FindCoordinator(InitPlan& plan);
  void ConnectAndJoin(InitPlan& plan);
  Formation TryToJoin(const InitPlan& plan);
  std::string LocalAddress(const InitPlan& plan) const;
  ErrorResolver::Options Judging(const InitPlan& plan) const;
  void Connect(const InitPlan& plan);
  Deadline UntilJoined() const;
  bool OthersAreGone() const;
  std::shared_ptr<OthersWatch> WatchForOthers() const;
  void ConfirmAll();
  InitProcessGroupOptions PrepareToShrink(
      const std::vector<int>& ranks_to_exclude,
      const ShrinkGroupOptions& options, Shrinking& shrinking);
  void EndGeneration(const std::vector<int>& ranks_to_exclude);
  void AwaitSurvivors(Shrinking& shrinking, const Deadline& deadline);
  void AwaitFates(const Shrinking& shrinking, const Deadline& deadline);
  std::vector<MemberInfo> Gone(const std::vector<int>& survivors) const;
  void ThrowIfGone(const Shrinking& shrinking) const;
  [[noreturn]] void ThrowNotShrunk(const Shrinking& shrinking,
                                   const DistError& error) const;
  void GiveWay();
  void ThrowIfLost(const std::string& excluded) const;
  bool ServesOthers() const;
  void EndMeeting() noexcept;

  const InitProcessGroupOptions options_;
  const Deadline deadline_;
  // Null unless this group is being made from another one.
  const Shrinking* shrinking_ = nullptr;
  // Rank 0 serves the coordinator, here or in another process.
  bool embedded_ = false;
  Formation formation_;
  // The group that is made from this one takes both over.
  std::shared_ptr<Telemetry> telemetry_;
  std::shared_ptr<EmbeddedCoordinator> coordinator_;
  // The store in which rank 0 publishes the coordinator's address; null if
  // all ranks know it already.
  std::shared_ptr<Store> meeting_;
  std::string debug_address_;
  std::shared_ptr<LiveGroups> live_;
  std::shared_ptr<ErrorResolver> resolver_;
  std::shared_ptr<Session> session_;
  std::shared_ptr<SessionBootstrap> bootstrap_;
  std::shared_ptr<GroupState> state_;
  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<const GroupCalls> calls_;
  std::unique_ptr<Groups> groups_;
  std::shared_ptr<Store> store_;
  // The sets of excluded ranks of earlier calls of Shrink.
  std::set<std::string> excluded_before_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_WORLD_H_
