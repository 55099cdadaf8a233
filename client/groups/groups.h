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
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "client/control/deadline.h"
#include "client/distributed.h"
#include "client/groups/call_registry.h"
#include "client/groups/error_resolver.h"
#include "client/groups/group_state.h"
#include "client/groups/live_groups.h"
#include "client/process_group.h"
#include "client/session.h"
#include "client/stores/bootstrap.h"
#include "dataplane/backend.h"
#include "dataplane/observe/metrics.h"

namespace muster::internal {

// `backend` in small letters. Throws DistError (kInvalidArgument): this program
// has none of that name.
std::string CheckBackend(const std::string& backend);

// `fallback` if it is zero. Throws DistError (kInvalidArgument): it is
// negative.
std::chrono::milliseconds CheckTimeout(std::chrono::milliseconds timeout,
                                       std::chrono::milliseconds fallback,
                                       absl::string_view name);

// Of ShrinkGroup: the ranks in `group` that stay, ascending. Throws DistError
// (kInvalidArgument): what is wrong with those to exclude.
std::vector<int> SurvivorsOf(const ProcessGroup& group,
                             const std::vector<int>& ranks_to_exclude);
// Aborts `group` in which these are to blame for it.
void AbortToShrink(ProcessGroup& group,
                   const std::vector<int>& ranks_to_exclude);

// Where the ranks of a group meet; nobody waits there any more once the
// resolver, or the group's keys in the store, say how it ended, nor as long as
// `forming` lives when the ranks disagree about the call that it stands for
// (null: there is none).
std::shared_ptr<SessionBootstrap> BootstrapOf(
    const std::shared_ptr<Session>& session, const std::string& key_prefix,
    const std::shared_ptr<ErrorResolver>& resolver, int64_t generation,
    const std::shared_ptr<CallRegistry::Waiting>& forming);

// Connects this process with its peers of the group, and adds the group to
// `live`. `metrics` may be null.
StatusOr<std::shared_ptr<GroupState>> ConnectGroup(
    GroupStateOptions options, const dataplane::BackendOptions& peers,
    std::shared_ptr<dataplane::Metrics> metrics,
    std::shared_ptr<Session> session, std::shared_ptr<ErrorResolver> resolver,
    LiveGroups& live);

struct GroupsOptions {
  Formation formation;
  // The default group, which is in no table here.
  std::shared_ptr<ProcessGroup> world;
  std::shared_ptr<Session> session;
  std::shared_ptr<LiveGroups> live;
  std::shared_ptr<CallRegistry> call_registry;
  // Options for each group's resolver; its ranks are filled in.
  ErrorResolver::Options judging;
  // As in dataplane::BackendOptions.
  std::string local_address;
  int device = -1;
  dataplane::NcclOptions nccl;
  // May be null.
  std::shared_ptr<dataplane::Metrics> metrics;
  // Of the keys over which the ranks of the groups meet; of this generation.
  std::string key_prefix;
};

// Groups makes, names, keeps and ends the process groups beside the default
// one, of one generation. Thread-safe.
class Groups {
 public:
  explicit Groups(GroupsOptions options);
  // Cuts off those that nobody has destroyed.
  ~Groups();

  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  // As the functions of distributed.h.
  std::shared_ptr<ProcessGroup> New(const NewGroupOptions& options);
  // Whether New refuses these arguments by themselves.
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

  // Ends `group`. Returns its error if it failed and nobody has seen that.
  // Throws DistError (kInvalidArgument): there is no such group.
  Status Destroy(const std::shared_ptr<ProcessGroup>& group);

  // Ends all of them, the last by name first, and makes no more. Returns the
  // first error that nobody has seen, and whether one of another group was
  // seen.
  struct Outcome {
    Status unseen;
    bool seen = false;
  };
  Outcome DestroyAll();

  // Throws DistError (kInvalidArgument) unless it is the default group, one of
  // these, or the one of non-members.
  void CheckKnown(const std::shared_ptr<ProcessGroup>& group) const;

 private:
  struct Entry {
    // The user's: one that nobody has any more nobody can name.
    std::weak_ptr<ProcessGroup> group = {};
    std::shared_ptr<GroupState> state = nullptr;  // null: it is being made
    std::shared_ptr<SessionBootstrap> bootstrap = nullptr;
  };
  struct Made {
    std::shared_ptr<ProcessGroup> group;
    std::shared_ptr<SessionBootstrap> bootstrap;
  };
  // What is to be made.
  struct Plan {
    std::string name;
    // As in SharedCall.
    int64_t call_number = 0;
    std::string call_series;
    std::string meaning;
    std::vector<int> ranks;  // ascending
    std::string backend;
    int device = -1;  // the CUDA device that it is bound to; -1: none
    dataplane::NcclOptions nccl;
    std::chrono::milliseconds timeout{0};
    std::string timeout_name;
    std::string description;
    // From the group whose ranks these are of; may be null.
    std::shared_ptr<dataplane::ParentHandle> parent_handle;
    // No group of this name was ever formed: made_ does not count it, as calls
    // that fail on one rank alone would part it from the others.
    bool name_is_fresh = false;
  };

  std::vector<int> CheckRanks(const NewGroupOptions& options) const;
  // `number`: of the call; 0: with local synchronization, and then no name yet
  // if none is given.
  Plan PlanNew(const NewGroupOptions& options, int64_t number) const;
  // The part of `parent` that this rank is in; of no ranks: it is in none.
  Plan PlanSplit(const ProcessGroup& parent,
                 const std::vector<std::vector<int>>& split_ranks,
                 const SplitGroupOptions& options, int64_t number) const;
  static SharedCall CallOf(const Plan& plan);
  // Its name is taken by then, and is free again if it throws.
  std::shared_ptr<ProcessGroup> Form(const Plan& plan);
  Made Connect(const Plan& plan);
  // Ends those that nobody has any more, unless they run something or have
  // failed. Where groups are made and ended, as that may take a moment.
  void EndDropped();
  std::shared_ptr<ErrorResolver> FindResolver(
      const std::vector<int>& ranks) const;
  void Register(const Plan& plan, const ErrorResolver& resolver,
                const Deadline& deadline) const;

  const GroupsOptions options_;
  const std::shared_ptr<ProcessGroup> non_member_;

  mutable Mutex mutex_;
  bool over_ MUSTER_GUARDED_BY(mutex_) = false;
  // Of those that are being made, too: without a group yet.
  std::map<std::string, Entry> entries_ MUSTER_GUARDED_BY(mutex_);
  // Names by counting: those of all ranks, those of one list of ranks, and the
  // splits of one group, by its UniqueName.
  int64_t last_number_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int64_t> last_by_hash_ MUSTER_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> last_split_ MUSTER_GUARDED_BY(mutex_);
  int64_t last_meeting_ MUSTER_GUARDED_BY(mutex_) = 0;
  // How often a group of this name and these ranks was made, but for calls that
  // failed: the same on all of them.
  std::map<std::pair<std::string, std::vector<int>>, int64_t> made_
      MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_GROUPS_H_
