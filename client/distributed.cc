#include "muster/distributed.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/text.h"
#include "client/control/throw.h"
#include "client/groups/group_state.h"
#include "client/groups/world.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/errors.h"

namespace muster {
namespace {

using internal::ErrorSource;
using internal::World;

// The default group of this process.
struct Default {
  Mutex mutex;
  // A thread forms or ends a group, without the lock.
  bool changing MUSTER_GUARDED_BY(mutex) = false;
  std::shared_ptr<World> world MUSTER_GUARDED_BY(mutex);
  // Changes whenever `world` does.
  std::atomic<uint64_t> version{1};
  // Whether the process that forked this one had a group. Its connections and
  // threads do not belong to this process.
  bool parent_had_group = false;
};

// Its destructor ends the group of a process that exits without
// DestroyProcessGroup.
struct Owner {
  Owner() {
    pthread_atfork(nullptr, nullptr, [] { TheOwner().StartAnew(); });
  }
  ~Owner() { delete std::exchange(current, nullptr); }

  static Owner& TheOwner() {
    static Owner instance;
    return instance;
  }

  // Called in a forked child, which has no other thread. The parent's lock may
  // be held forever here.
  void StartAnew() MUSTER_NO_THREAD_SAFETY_ANALYSIS {
    // Forked while the process exits.
    if (current == nullptr) return;
    auto fresh = std::make_unique<Default>();
    fresh->version = current->version + 1;
    fresh->parent_had_group = current->parent_had_group || current->changing ||
                              current->world != nullptr;
    parents.push_back(std::exchange(current, fresh.release()));
  }

  Default* current = new Default;
  // The parent processes' groups, which only they may end. Never destroyed, so
  // that leak checkers find them.
  std::vector<Default*>& parents = *new std::vector<Default*>;
};

Default& DefaultGroupRef() { return *Owner::TheOwner().current; }

[[noreturn]] void NotInitialized() {
  internal::Throw(ErrorSource::kControl,
                  FailedPreconditionError(
                      "Default process group has not been initialized, please "
                      "make sure to call init_process_group. In C++: "
                      "muster::InitProcessGroup()"));
}

using internal::Invalid;

// The result keeps the group alive while one of its groups forms or ends.
std::shared_ptr<World> DefaultWorld() {
  Default& instance = DefaultGroupRef();
  MutexLock lock(instance.mutex);
  if (instance.world == nullptr) NotInitialized();
  return instance.world;
}

// A thread's cached reference to the default group. It saves the lock and the
// count of a reference, which would take longer than much of a small
// collective. A group that was shut down stays here until the thread next uses
// the default group, or ends.
struct Found {
  uint64_t version = 0;
  std::shared_ptr<ProcessGroup> group;
  // A call of this thread uses the cached group: it stays until the call ends.
  // Nested calls find the group themselves.
  bool is_used = false;
};

// The calling thread's cache. Null once it is destroyed: destructors of other
// thread_local objects, and functions that exit runs, find the group anew each
// time.
class FoundByThread {
 public:
  static Found* Get() {
    if (found_ == nullptr && !is_over_) Make();
    return found_;
  }

 private:
  struct Keeper {
    Keeper() { found_ = new Found; }
    ~Keeper() {
      is_over_ = true;
      delete std::exchange(found_, nullptr);
    }
  };

  [[gnu::noinline]] static void Make() { thread_local const Keeper keeper; }

  // No destructors, so that they are valid after those of thread_local objects.
  static thread_local constinit Found* found_;
  static thread_local constinit bool is_over_;
};

thread_local constinit Found* FoundByThread::found_ = nullptr;
thread_local constinit bool FoundByThread::is_over_ = false;

// The group of a call. Keeps it alive until the end of the call.
class Target {
 public:
  // Null: the default group. The caller keeps any other group alive.
  [[gnu::always_inline]] explicit Target(
      const std::shared_ptr<ProcessGroup>& group)
      : group_(group.get()) {
    if (group_ != nullptr) return;
    // Read before the group, so that the group is not older than the version.
    const uint64_t version =
        DefaultGroupRef().version.load(std::memory_order_acquire);
    found_ = FoundByThread::Get();
    if (found_ != nullptr && !found_->is_used && found_->group != nullptr &&
        found_->version == version) {
      found_->is_used = true;
      group_ = found_->group.get();
    } else {
      FindAnew(version);
    }
  }
  ~Target() {
    if (found_ != nullptr) found_->is_used = false;
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  ProcessGroup* operator->() const { return group_; }
  // Only for the default group.
  const std::shared_ptr<ProcessGroup>& shared() const {
    return found_ != nullptr ? found_->group : own_;
  }

  // Drops the calling thread's cached group.
  static void Forget() {
    Found* const found = FoundByThread::Get();
    if (found != nullptr && !found->is_used) found->group = nullptr;
  }

 private:
  [[gnu::noinline]] void FindAnew(uint64_t version) {
    if (found_ != nullptr && found_->is_used) found_ = nullptr;
    std::shared_ptr<ProcessGroup>& place =
        found_ != nullptr ? found_->group : own_;
    // Drops the old group even if there is no new one.
    place = nullptr;
    place = DefaultWorld()->group();
    group_ = place.get();
    if (found_ == nullptr) return;
    found_->version = version;
    found_->is_used = true;
  }

  ProcessGroup* group_;
  // They keep the default group: `found_` is the thread's cache. If a call uses
  // the cache already, or it is destroyed, `own_` has the group. Neither has a
  // group that the caller gave.
  Found* found_ = nullptr;
  std::shared_ptr<ProcessGroup> own_;
};

std::shared_ptr<ProcessGroup> Resolve(
    const std::shared_ptr<ProcessGroup>& group) {
  return group == nullptr ? WorldGroup() : group;
}

}  // namespace

void InitProcessGroup(const InitProcessGroupOptions& options) {
  Default& instance = DefaultGroupRef();
  if (instance.parent_had_group) {
    internal::Throw(
        ErrorSource::kControl,
        FailedPreconditionError(
            "this process was forked off by one that had a process group, "
            "without its threads: fork before InitProcessGroup, or let the "
            "child execute a program"));
  }
  {
    MutexLock lock(instance.mutex);
    if (instance.world != nullptr || instance.changing) {
      internal::Throw(
          ErrorSource::kControl,
          FailedPreconditionError(
              "trying to initialize the default process group twice!"));
    }
    instance.changing = true;
  }
  const absl::Cleanup done = [&instance] {
    MutexLock lock(instance.mutex);
    instance.changing = false;
  };
  std::unique_ptr<World> world = World::Form(options);
  MutexLock lock(instance.mutex);
  instance.world = std::move(world);
  ++instance.version;
}

bool IsInitialized() {
  Default& instance = DefaultGroupRef();
  MutexLock lock(instance.mutex);
  return instance.world != nullptr;
}

void DestroyProcessGroup(const std::shared_ptr<ProcessGroup>& group) {
  Default& instance = DefaultGroupRef();
  std::shared_ptr<World> world;
  {
    MutexLock lock(instance.mutex);
    if (instance.world == nullptr) NotInitialized();
    if (group == nullptr || group == instance.world->group()) {
      world = std::move(instance.world);
      ++instance.version;
      instance.changing = true;
    }
  }
  if (world == nullptr) {
    Status unseen = DefaultWorld()->groups().Destroy(group);
    return internal::ThrowIfFailed(ErrorSource::kBackend, std::move(unseen));
  }
  const absl::Cleanup done = [&instance] {
    MutexLock lock(instance.mutex);
    instance.changing = false;
  };
  Target::Forget();
  world->Destroy();
}

std::shared_ptr<ProcessGroup> WorldGroup() { return Target(nullptr).shared(); }

int GetRank(const std::shared_ptr<ProcessGroup>& group) {
  return Target(group)->rank();
}

int GetWorldSize(const std::shared_ptr<ProcessGroup>& group) {
  return Target(group)->size();
}

std::string GetBackend(const std::shared_ptr<ProcessGroup>& group) {
  return Target(group)->backend();
}

std::shared_ptr<ProcessGroup> NewGroup(const NewGroupOptions& options) {
  return DefaultWorld()->groups().New(options);
}

Subgroups NewSubgroups(int group_size, const NewSubgroupsOptions& options) {
  const int world_size = GetWorldSize();
  if (group_size <= 0) {
    Invalid(absl::StrCat("The arg 'group_size' (", group_size,
                         ") must be positive"));
  }
  if (group_size > world_size) {
    Invalid(absl::StrCat("The arg 'group_size' (", group_size,
                         ") must not exceed the world size (", world_size,
                         ")"));
  }
  if (world_size % group_size != 0) {
    Invalid(absl::StrCat("The world size (", world_size,
                         ") must be divisible by 'group_size=", group_size,
                         "'"));
  }
  std::vector<std::vector<int>> ranks(
      static_cast<size_t>(world_size / group_size));
  for (int rank = 0; rank < world_size; ++rank) {
    ranks[static_cast<size_t>(rank / group_size)].push_back(rank);
  }
  return NewSubgroupsByEnumeration(ranks, options);
}

Subgroups NewSubgroupsByEnumeration(
    const std::vector<std::vector<int>>& ranks_per_subgroup_list,
    const NewSubgroupsOptions& options) {
  if (ranks_per_subgroup_list.empty()) {
    Invalid("The arg 'ranks_per_subgroup_list' cannot be empty");
  }
  std::map<int, size_t> subgroup_of;
  for (size_t i = 0; i < ranks_per_subgroup_list.size(); ++i) {
    for (const int rank : ranks_per_subgroup_list[i]) {
      const auto [place, first] = subgroup_of.emplace(rank, i);
      if (first || place->second == i) continue;
      Invalid(absl::StrCat("Rank ", rank, " has appeared in both subgroup ",
                           place->second, " and ", i));
    }
  }
  std::vector<NewGroupOptions> groups;
  for (const std::vector<int>& ranks : ranks_per_subgroup_list) {
    groups.push_back({.ranks = ranks,
                      .timeout = options.timeout,
                      .backend = options.backend,
                      .description = options.description});
  }
  // Checks all groups before it makes any. NewGroup of the refused one throws,
  // and tells the ranks that make others.
  for (const NewGroupOptions& group : groups) {
    if (DefaultWorld()->groups().Refuses(group)) NewGroup(group);
  }
  Subgroups subgroups;
  for (const NewGroupOptions& group : groups) {
    subgroups.all.push_back(NewGroup(group));
    if (subgroups.current == nullptr || subgroups.all.back()->rank() >= 0) {
      subgroups.current = subgroups.all.back();
    }
  }
  return subgroups;
}

std::shared_ptr<ProcessGroup> SplitGroup(
    const std::shared_ptr<ProcessGroup>& parent,
    const std::vector<std::vector<int>>& split_ranks,
    const SplitGroupOptions& options) {
  return DefaultWorld()->groups().Split(Resolve(parent), split_ranks, options);
}

std::shared_ptr<ProcessGroup> ShrinkGroup(
    const std::vector<int>& ranks_to_exclude,
    const std::shared_ptr<ProcessGroup>& group,
    const ShrinkGroupOptions& options) {
  Default& instance = DefaultGroupRef();
  std::shared_ptr<World> world = DefaultWorld();
  if (group != nullptr && group != world->group()) {
    return world->groups().Shrink(group, ranks_to_exclude, options);
  }
  {
    MutexLock lock(instance.mutex);
    if (instance.world != world || instance.changing) NotInitialized();
    instance.changing = true;
  }
  const absl::Cleanup done = [&instance] {
    MutexLock lock(instance.mutex);
    instance.changing = false;
  };
  Target::Forget();
  std::unique_ptr<World> formed = world->Shrink(ranks_to_exclude, options);
  MutexLock lock(instance.mutex);
  instance.world = std::move(formed);
  ++instance.version;
  return instance.world->group();
}

int GetGroupRank(const std::shared_ptr<ProcessGroup>& group, int global_rank) {
  const std::vector<int> ranks = GetProcessGroupRanks(group);
  const auto found = std::find(ranks.begin(), ranks.end(), global_rank);
  if (found == ranks.end()) {
    Invalid(absl::StrCat("Global rank ", global_rank, " is not part of group ",
                         base::Quote(Target(group)->name())));
  }
  return static_cast<int>(found - ranks.begin());
}

int GetGlobalRank(const std::shared_ptr<ProcessGroup>& group, int group_rank) {
  const std::vector<int> ranks = GetProcessGroupRanks(group);
  if (group_rank < 0 || static_cast<size_t>(group_rank) >= ranks.size()) {
    Invalid(absl::StrCat("Group rank ", group_rank, " is not part of group ",
                         base::Quote(Target(group)->name())));
  }
  return ranks[static_cast<size_t>(group_rank)];
}

std::vector<int> GetProcessGroupRanks(
    const std::shared_ptr<ProcessGroup>& group) {
  const std::shared_ptr<World> world = DefaultWorld();
  if (group == nullptr) return world->group()->ranks();
  world->groups().CheckKnown(group);
  return group->ranks();
}

bool IsTorchElasticLaunched() {
  return std::getenv("TORCHELASTIC_RUN_ID") != nullptr;
}

int GetNodeLocalRank(std::optional<int> fallback_rank) {
  const char* const text = std::getenv("LOCAL_RANK");
  int rank = 0;
  if (text != nullptr) {
    if (absl::SimpleAtoi(text, &rank)) return rank;
    Invalid(absl::StrCat(
        "environment variable LOCAL_RANK must be a number but was ",
        base::Quote(text)));
  }
  if (fallback_rank.has_value()) return *fallback_rank;
  Invalid(
      "LOCAL_RANK is not in the environment. Consider passing fallback_rank "
      "to allow `get_node_local_rank` to work without a launcher");
}

MeshWorld DefaultMeshWorld() {
  const std::shared_ptr<ProcessGroup> group = WorldGroup();
  MeshWorld mesh;
  mesh.rank = group->rank();
  mesh.size = group->size();
  mesh.group = group;
  mesh.make_groups = [](const MeshGroups& groups) {
    std::shared_ptr<ProcessGroup> own;
    for (const std::vector<int>& ranks : groups.ranks) {
      auto made = NewGroup({.ranks = ranks,
                            .backend = groups.backend,
                            .description = groups.description});
      if (own == nullptr || made->rank() >= 0) own = std::move(made);
    }
    return own;
  };
  mesh.ranks_of = [](const std::shared_ptr<ProcessGroup>& one) {
    return one->ranks();
  };
  return mesh;
}

DeviceMesh InitDeviceMesh(const std::string& device_type,
                          const std::vector<int64_t>& shape,
                          const DeviceMeshOptions& options) {
  if (!IsInitialized()) InitProcessGroup();
  DefaultWorld()->groups().Meet(
      absl::StrCat(absl::StrJoin(shape, ","), "/",
                   absl::StrJoin(options.dim_names, ",",
                                 [](std::string* out, const std::string& name) {
                                   absl::StrAppend(out, base::Quote(name));
                                 }),
                   "/", device_type),
      absl::StrCat("makes a device mesh of shape [", absl::StrJoin(shape, ", "),
                   "]", options.dim_names.empty() ? "" : ", dimensions ",
                   absl::StrJoin(options.dim_names, ", "), ", on ",
                   base::Quote(device_type)));
  return DeviceMesh::Init(DefaultMeshWorld(), device_type, shape, options);
}

std::shared_ptr<Store> GetDefaultStore() { return DefaultWorld()->store(); }

std::string GetDebugAddress() { return DefaultWorld()->debug_address(); }

Work AllReduce(const Tensor& tensor, const AllReduceOptions& options) {
  return Target(options.group)->AllReduce(tensor, options);
}

Work Broadcast(const Tensor& tensor, std::optional<int> src,
               const BroadcastOptions& options) {
  return Target(options.group)->Broadcast(tensor, src, options);
}

Work Reduce(const Tensor& tensor, std::optional<int> dst,
            const ReduceOptions& options) {
  return Target(options.group)->Reduce(tensor, dst, options);
}

Work AllGather(const std::vector<Tensor>& tensor_list, const Tensor& tensor,
               const AllGatherOptions& options) {
  return Target(options.group)->AllGather(tensor_list, tensor, options);
}

Work AllGatherIntoTensor(const Tensor& output, const Tensor& input,
                         const AllGatherOptions& options) {
  return Target(options.group)->AllGatherIntoTensor(output, input, options);
}

Work Gather(const Tensor& tensor, const std::vector<Tensor>& gather_list,
            std::optional<int> dst, const GatherOptions& options) {
  return Target(options.group)->Gather(tensor, gather_list, dst, options);
}

Work Scatter(const Tensor& tensor, const std::vector<Tensor>& scatter_list,
             std::optional<int> src, const ScatterOptions& options) {
  return Target(options.group)->Scatter(tensor, scatter_list, src, options);
}

Work ReduceScatter(const Tensor& output, const std::vector<Tensor>& input_list,
                   const ReduceScatterOptions& options) {
  return Target(options.group)->ReduceScatter(output, input_list, options);
}

Work ReduceScatterTensor(const Tensor& output, const Tensor& input,
                         const ReduceScatterOptions& options) {
  return Target(options.group)->ReduceScatterTensor(output, input, options);
}

Work AllToAll(const std::vector<Tensor>& output_tensor_list,
              const std::vector<Tensor>& input_tensor_list,
              const AllToAllOptions& options) {
  return Target(options.group)
      ->AllToAll(output_tensor_list, input_tensor_list, options);
}

Work AllGatherV(const Tensor& output, const Tensor& input,
                const std::vector<int64_t>& counts,
                const AllGatherVOptions& options) {
  return Target(options.group)->AllGatherV(output, input, counts, options);
}

Work ReduceScatterV(const Tensor& output, const Tensor& input,
                    const std::vector<int64_t>& counts,
                    const ReduceScatterVOptions& options) {
  return Target(options.group)->ReduceScatterV(output, input, counts, options);
}

Work AllToAllSingle(const Tensor& output, const Tensor& input,
                    const AllToAllSingleOptions& options) {
  return Target(options.group)->AllToAllSingle(output, input, options);
}

void Send(const Tensor& tensor, std::optional<int> dst,
          const SendOptions& options) {
  Target(options.group)->Send(tensor, dst, options);
}

int Recv(const Tensor& tensor, std::optional<int> src,
         const RecvOptions& options) {
  return Target(options.group)->Recv(tensor, src, options);
}

Work Isend(const Tensor& tensor, std::optional<int> dst,
           const SendOptions& options) {
  return Target(options.group)->Isend(tensor, dst, options);
}

Work Irecv(const Tensor& tensor, std::optional<int> src,
           const RecvOptions& options) {
  return Target(options.group)->Irecv(tensor, src, options);
}

std::vector<Work> BatchIsendIrecv(const std::vector<P2POp>& p2p_op_list) {
  if (p2p_op_list.empty()) {
    internal::Throw(ErrorSource::kControl,
                    InvalidArgumentError("p2p_op_list must not be empty"));
  }
  const std::shared_ptr<ProcessGroup> group = Resolve(p2p_op_list[0].group);
  std::vector<dataplane::Collective> collectives;
  collectives.reserve(p2p_op_list.size());
  // Converts all before it starts the first, which cannot be undone.
  for (const P2POp& op : p2p_op_list) {
    if (Resolve(op.group) != group) {
      internal::Throw(
          ErrorSource::kControl,
          InvalidArgumentError("All ops need to use the same group."));
    }
    const int peer =
        group->state()->ToGroupRank({op.peer, op.group_peer}, "peer");
    if (group->rank() >= 0 && (peer < 0 || peer >= group->size())) {
      internal::Throw(ErrorSource::kControl,
                      InvalidArgumentError(absl::StrCat(
                          "Global rank ", peer, " is not part of group ",
                          base::Quote(group->name()))));
    }
    const bool sends = op.op == P2POp::Kind::kIsend;
    dataplane::Collective collective;
    collective.kind = sends ? dataplane::CollectiveKind::kSend
                            : dataplane::CollectiveKind::kRecv;
    (sends ? collective.inputs : collective.outputs).push_back(op.tensor);
    collective.peer = peer;
    collective.tag = op.tag;
    collective.begins_together = true;
    group->state()->CheckArguments(collective);
    collectives.push_back(std::move(collective));
  }
  return group->state()->RunTogether(std::move(collectives));
}

Work Barrier(const BarrierOptions& options) {
  return Target(options.group)->Barrier(options);
}

void MonitoredBarrier(const MonitoredBarrierOptions& options) {
  Target(options.group)->MonitoredBarrier(options);
}

}  // namespace muster
