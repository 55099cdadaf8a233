// Makes, names and destroys the process groups other than the default one.

#ifndef MUSTER_CLIENT_GROUPS_GROUPS_H_
#define MUSTER_CLIENT_GROUPS_GROUPS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/control/deadline.h"
#include "client/groups/error_resolver.h"
#include "client/groups/group_calls.h"
#include "client/groups/group_state.h"
#include "client/groups/live_groups.h"
#include "client/stores/bootstrap.h"
#include "dataplane/observe/metrics.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/nccl_options.h"
#include "muster/distributed.h"
#include "muster/process_group.h"
#include "muster/session.h"

namespace muster::internal {

// Returns `backend` in lower case. Throws DistError (kInvalidArgument) if this
// program has no such backend.
std::string CheckBackend(const std::string& backend);

// Returns `name`, or `fallback` if it is empty. Throws DistError
// (kInvalidArgument) if there is no such transport.
std::string CheckCpuTransport(const std::string& name,
                              const std::string& fallback);

// Returns `fallback` if `timeout` is 0. Throws DistError (kInvalidArgument) if
// it is negative.
std::chrono::milliseconds CheckTimeout(std::chrono::milliseconds timeout,
                                       std::chrono::milliseconds fallback,
                                       absl::string_view name);

// Returns the ranks of `group` that ShrinkGroup keeps, ascending. Throws
// DistError (kInvalidArgument) if the ranks to exclude are not valid.
std::vector<int> FindSurvivors(const ProcessGroup& group,
                               const std::vector<int>& ranks_to_exclude);
// Aborts `group` with these ranks as culprits.
void AbortToShrink(ProcessGroup& group,
                   const std::vector<int>& ranks_to_exclude);

// Makes the store through which the ranks of a group find each other. Waits in
// it end when the resolver or the group's keys say that the group has ended, or
// when the ranks' calls differ from the call `forming` (may be null; must be
// alive).
std::shared_ptr<SessionBootstrap> MakeBootstrap(
    const std::shared_ptr<Session>& session, const std::string& key_prefix,
    const std::shared_ptr<ErrorResolver>& resolver, int64_t generation,
    const std::shared_ptr<GroupCalls::Waiting>& forming);

// Connects this process with its peers and adds the group to `live`. `metrics`
// may be null.
StatusOr<std::shared_ptr<GroupState>> ConnectGroup(
    GroupStateOptions options, const dataplane::BackendOptions& peers,
    std::shared_ptr<dataplane::Metrics> metrics,
    std::shared_ptr<Session> session, std::shared_ptr<ErrorResolver> resolver,
    LiveGroups& live);

struct GroupsOptions {
  Formation formation;
  // The default group. It is in no table here.
  std::shared_ptr<ProcessGroup> world;
  std::shared_ptr<Session> session;
  std::shared_ptr<LiveGroups> live;
  std::shared_ptr<const GroupCalls> calls;
  // Options of the groups' resolvers; Groups sets `ranks`.
  ErrorResolver::Options judging;
  // As in dataplane::BackendOptions.
  std::string local_address;
  int device = -1;
  dataplane::NcclOptions nccl;
  // May be null.
  std::shared_ptr<dataplane::Metrics> metrics;
  // Prefix of the groups' keys, different in every generation.
  std::string key_prefix;
};

// Groups makes, names, stores and ends all groups of one generation except the
// default group. Thread-safe.
class Groups {
 public:
  explicit Groups(GroupsOptions options);
  // Aborts the groups that were not destroyed.
  ~Groups();

  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  // As the functions of distributed.h.
  std::shared_ptr<ProcessGroup> New(const NewGroupOptions& options);
  // Whether New refuses these arguments whatever other ranks do.
  bool Refuses(const NewGroupOptions& options) const;
  std::shared_ptr<ProcessGroup> Split(
      const std::shared_ptr<ProcessGroup>& parent,
      const std::vector<std::vector<int>>& split_ranks,
      const SplitGroupOptions& options);

  std::shared_ptr<ProcessGroup> Shrink(
      const std::shared_ptr<ProcessGroup>& group,
      const std::vector<int>& ranks_to_exclude,
      const ShrinkGroupOptions& options);

  // Waits until all ranks of the default group have made this call with the
  // same `arguments`. `meaning` says to people what it makes: `makes a device
  // mesh of shape [2, 2]`. Throws as New; DistError (kInvalidArgument): another
  // rank passes other arguments.
  void Meet(const std::string& arguments, const std::string& meaning);

  // Ends `group`. Returns its error if it has failed and no caller has seen the
  // error. Throws DistError (kInvalidArgument) if there is no such group.
  Status Destroy(const std::shared_ptr<ProcessGroup>& group);

  // Ends all groups, in reverse order of their names; no more can be made.
  // Returns the first error that no caller has seen, and whether a caller has
  // seen that of another group.
  struct DestroyResult {
    Status unseen;
    bool seen = false;
  };
  DestroyResult DestroyAll();

  // Throws DistError (kInvalidArgument) unless `group` is the default group,
  // one of these groups, or the non-member group.
  void CheckKnown(const std::shared_ptr<ProcessGroup>& group) const;

 private:
  struct Entry {
    // The user's. If it has expired, no caller can name the group any more.
    std::weak_ptr<ProcessGroup> group = {};
    std::shared_ptr<GroupState> state = nullptr;  // null: being formed
    std::shared_ptr<SessionBootstrap> bootstrap = nullptr;
  };
  struct Made {
    std::shared_ptr<ProcessGroup> group;
    std::shared_ptr<SessionBootstrap> bootstrap;
  };
  // A group to be made.
  struct Plan {
    std::string name;
    // As in SharedCall.
    int64_t call_number = 0;
    std::string call_series;
    int callers = 0;
    std::string meaning;
    std::vector<int> ranks;  // ascending
    std::string backend;
    int device = -1;  // CUDA device to which the group is bound; -1: none
    dataplane::NcclOptions nccl;
    std::string cpu_transport;
    std::chrono::milliseconds timeout{0};
    std::string timeout_name;
    std::string description;
    // From the group that has these ranks; may be null.
    std::shared_ptr<dataplane::ParentHandle> parent_handle;
    // The name was never used before, so made_ does not count it: a call that
    // fails on one rank only would make the counts differ.
    bool name_is_fresh = false;
  };

  std::vector<int> CheckRanks(const NewGroupOptions& options) const;
  // `number` is that of the call. It is 0 with local synchronization; the plan
  // then has no name unless the options have one.
  Plan PlanNew(const NewGroupOptions& options, int64_t number) const;
  // Plans the part of `parent` that has this rank; no ranks if none has it.
  Plan PlanSplit(const ProcessGroup& parent,
                 const std::vector<std::vector<int>>& split_ranks,
                 const SplitGroupOptions& options, int64_t number) const;
  static SharedCall MakeSharedCall(const Plan& plan, int64_t instance);
  // The caller has reserved the name, which is free again if Form throws.
  std::shared_ptr<ProcessGroup> Form(const Plan& plan);
  Made Connect(const Plan& plan);
  // Ends the groups that the user has dropped, unless they run something or
  // have failed. Called where groups are made and ended, because it may take a
  // while.
  void EndDropped();
  std::shared_ptr<ErrorResolver> FindResolver(
      const std::vector<int>& ranks) const;
  void Register(const Plan& plan, const SharedCall& call,
                const ErrorResolver& resolver, const Deadline& deadline) const;

  const GroupsOptions options_;
  const std::shared_ptr<ProcessGroup> non_member_;

  mutable Mutex mutex_;
  bool over_ MUSTER_GUARDED_BY(mutex_) = false;
  // Includes groups that are being formed.
  std::map<std::string, Entry> entries_ MUSTER_GUARDED_BY(mutex_);
  // Counters for names: groups of all ranks, groups by the hash of their ranks,
  // and splits by the UniqueName of the parent.
  int64_t last_number_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int64_t> last_by_hash_ MUSTER_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> last_split_ MUSTER_GUARDED_BY(mutex_);
  int64_t last_meeting_ MUSTER_GUARDED_BY(mutex_) = 0;
  // How many groups of this name and these ranks were made, without calls that
  // failed. The same on all ranks of the group.
  std::map<std::pair<std::string, std::vector<int>>, int64_t> made_
      MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_GROUPS_H_
