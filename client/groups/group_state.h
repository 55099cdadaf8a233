// The implementation behind a ProcessGroup.

#ifndef MUSTER_CLIENT_GROUPS_GROUP_STATE_H_
#define MUSTER_CLIENT_GROUPS_GROUP_STATE_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/control/continuations.h"
#include "client/control/fork_guard.h"
#include "client/groups/error_resolver.h"
#include "dataplane/communicator.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/prepared.h"
#include "muster/process_group.h"
#include "muster/session.h"

namespace muster::internal {

struct GroupStateOptions {
  std::string name;
  std::string backend;
  std::chrono::milliseconds timeout{0};
  // The user's option that sets the timeout.
  std::string timeout_name;
  int64_t generation = 0;
  // Ascending by global rank. The index is the rank in the group.
  std::vector<Seat> seats;
  // For people.
  std::string description = {};
  // This process's rank in the group; -1: not a member.
  int rank = -1;
  // Whether this is the default group. Its failure ends the generation, and its
  // ranks are the global ones.
  bool is_world = true;
  // Appended to the names of the group's barriers and of groups made from it,
  // and told in its failures, to keep them apart from those of an earlier group
  // of the same name.
  std::string barrier_suffix = {};
  // The CUDA device to which the group is bound; -1: none.
  int device = -1;
  // See BackendOptions.
  std::string cpu_transport = {};
};

// Sets the operation of `collective`. Throws DistError (kInvalidArgument) if
// `factor` is not 1 and `op` does not use it.
void SetReduction(const dataplane::ReduceOperator& op, double factor,
                  dataplane::Collective& collective);

// Returns rank 0 if `rank` is not set.
RankArgument OrZero(RankArgument rank);

// Returns the seats of `ranks`, which are ascending.
std::vector<Seat> FindSeats(const Formation& formation,
                            const std::vector<int>& ranks);

// GroupState connects one communicator with the control plane: it starts
// collectives, and converts their failures into the group's one error.
// Thread-safe.
class GroupState : public std::enable_shared_from_this<GroupState> {
 public:
  static std::shared_ptr<GroupState> Create(
      GroupStateOptions options, std::unique_ptr<dataplane::Backend> backend,
      std::shared_ptr<Session> session,
      std::shared_ptr<ErrorResolver> resolver);

  // Represents every group that this process is not in. Its methods only log a
  // warning.
  static std::shared_ptr<GroupState> NonMember(int global_rank);

  // Throws DistError for bad arguments, and, unless `async_op`, what Work::Wait
  // throws.
  Work Run(dataplane::Collective&& collective, bool async_op);
  // Checks a collective that is no send or receive, for the two below. Throws
  // DistError for bad arguments, and the error of a group that has failed.
  PreparedCollective Prepare(dataplane::Collective&& collective);
  // As PreparedCollective::Run and Start.
  void Run(dataplane::PreparedCollective& prepared);
  Work Start(const std::shared_ptr<dataplane::PreparedCollective>& prepared);
  // Throws the error of a `collective` whose arguments are bad (`why`). Unless
  // it is to be prepared, it uses up a number.
  [[noreturn]] void Refuse(dataplane::Collective&& collective,
                           const Status& why, bool is_prepared);
  // Uses up a number, for a call of `kind` whose caller will throw the error of
  // its bad arguments (`why`). Does nothing if this process is no member.
  // Throws the error of a group that has failed.
  void UseUpNumber(dataplane::CollectiveKind kind, const Status& why);
  // Runs several collectives as one.
  Work RunCoalesced(std::vector<dataplane::Collective> collectives,
                    bool async_op);
  // Starts sends and receives together. Each has its own Work.
  std::vector<Work> RunTogether(std::vector<dataplane::Collective> collectives);
  // Throws what Run throws for these arguments.
  void CheckArguments(const dataplane::Collective& collective) const;
  // Throws if `group_rank` is this rank: `verb` would wait for itself.
  void CheckIsOther(int group_rank, absl::string_view verb) const;
  void MonitoredBarrier(std::chrono::milliseconds timeout, bool wait_all_ranks);

  // Returns the error to throw for a failed collective. May wait for the
  // verdict.
  Status Explain(const Status& symptom);
  [[noreturn]] void ThrowFailure(const Status& symptom);
  // Waits until `until` for that error, which a background thread determines
  // (async_op). Returns false if it is not known by then. Instant::min() only
  // checks.
  bool AwaitExplained(const Status& symptom, Instant until);

  // As dataplane::Backend::Split. Null after Shutdown, too.
  std::shared_ptr<dataplane::ParentHandle> Split(
      const dataplane::SplitOptions& options);

  // Allocates memory that all ranks can access. Null if this process is not in
  // the group. `timeout` 0 is the group's. Throws what Run throws.
  std::shared_ptr<dataplane::SymmetricMemory> AllocateSymmetric(
      size_t bytes, std::optional<DeviceType> device,
      std::chrono::milliseconds timeout);

  // As ProcessGroup::last_run.
  dataplane::LastRun last_run(DeviceType device) const {
    auto* const live = communicator();
    return live == nullptr ? dataplane::LastRun() : live->last_run(device);
  }

  // As ProcessGroup::Abort. `culprits` are group ranks; empty: this rank.
  void Abort(const std::string& reason, std::vector<int> culprits = {});

  // Throws in a forked child, whose parent has the group.
  void CheckIsHere() const {
    if (!fork_guard_.is_here()) ThrowNotLive();
  }
  bool is_here() const { return fork_guard_.is_here(); }

  // Aborts what runs and closes the connections. The group is unusable then.
  void Shutdown();

  const std::shared_ptr<Continuations>& continuations() const {
    return continuations_;
  }

  // The group's error, and whether a caller has seen it.
  Status status() const;
  bool failure_seen() const;

  // For heartbeats.
  std::vector<GroupProgress> Progress() const;

  // These convert between global ranks, which users see, and group ranks. They
  // throw DistError (kInvalidArgument) if the rank is not in the group. For the
  // default group ToGroupRank accepts any number; the data plane checks it.
  int ToGroupRank(int global_rank) const;
  // Checks the rank in the default group, too.
  int ToMemberRank(int global_rank) const;
  // Converts the argument `name`, which must have exactly one of its two ranks.
  // Returns -1 if this process is not a member.
  int ToGroupRank(const RankArgument& rank, absl::string_view name) const {
    // The most common case.
    return options_.is_world && rank.global.has_value() &&
                   !rank.in_group.has_value()
               ? *rank.global
               : FindGroupRank(rank, name);
  }
  int ToGlobalRank(int group_rank) const;
  // Describes a group rank as a culprit.
  MemberInfo GetMember(int rank) const;

  bool is_member() const { return options_.rank >= 0; }
  // Returns true, after a warning in the log, if this process is no member.
  bool IsForOthers(absl::string_view verb) const;
  // The group rank and size; -1 and -1 if this process is no member.
  int rank() const { return options_.rank; }
  int size() const {
    return is_member() ? static_cast<int>(options_.seats.size()) : -1;
  }
  std::vector<int> ranks() const;
  const GroupStateOptions& options() const { return options_; }
  // Calls `callback` when the collective is complete, before any Wait returns,
  // or at once if it is. It runs on the thread that completes it, and must
  // neither block nor throw.
  static void OnCompletion(Work& work, std::function<void()> callback);
  // Whether the group takes CUDA tensors and no CPU tensors.
  bool is_cuda_only() const;

 private:
  GroupState(GroupStateOptions options,
             std::vector<dataplane::DeviceType> devices,
             std::shared_ptr<Session> session,
             std::shared_ptr<ErrorResolver> resolver);

  // Null if there is none, after Shutdown, and in a forked child.
  dataplane::Communicator* communicator() const {
    const bool is_over = was_shut_down_.load(std::memory_order_acquire) ||
                         !fork_guard_.is_here();
    return is_over ? nullptr : communicator_.get();
  }
  // Throws if communicator() is null.
  dataplane::Communicator& LiveCommunicator() const {
    dataplane::Communicator* const live = communicator();
    if (live == nullptr) ThrowNotLive();
    return *live;
  }
  Status NotLive() const;
  [[noreturn]] void ThrowNotLive() const;
  int FindGroupRank(const RankArgument& rank, absl::string_view name) const;
  void TellResolver();
  // Runs a collective for which the caller does not wait here.
  Work StartCopy(dataplane::Collective collective, bool async_op);
  // MakeHandle, for `started`, which runs `collective`.
  Work MakeWatched(std::shared_ptr<dataplane::Work> started,
                   const dataplane::Collective& collective, bool async_op);
  // Makes the Work that the user gets; complete if not `async_op`. Throws
  // DistError for bad arguments.
  Work MakeHandle(std::shared_ptr<dataplane::Work> started,
                  std::span<const Tensor> result, bool async_op);
  // If `work` fails, explains the failure in the background: the group's error
  // must not wait until the user calls Wait. `collective`, if not null, is what
  // `work` runs.
  void Watch(dataplane::Work& work, std::chrono::milliseconds timeout,
             std::shared_ptr<const dataplane::Collective> collective = nullptr);
  // Throws the error of a collective that started at `began` and ended with
  // `status`. Does nothing if it is OK.
  void ThrowUnlessOk(const Status& status, Instant began,
                     std::chrono::milliseconds timeout,
                     const dataplane::Collective* collective = nullptr);
  // Records a collective's failure. Returns false if it was a bad argument,
  // which does not fail the group.
  bool NoteFailure(Instant began, std::chrono::milliseconds timeout,
                   const dataplane::Collective* collective);
  ErrorResolver::Answer Report(const ErrorResolver::Symptom& symptom);
  std::string BarrierName(absl::string_view name) const;
  int global_rank() const;
  std::string BarrierText(const Status& status,
                          std::chrono::milliseconds timeout) const;

  const GroupStateOptions options_;
  // The device types that the backend takes; empty without a backend.
  const std::vector<dataplane::DeviceType> devices_;
  const std::shared_ptr<Session> session_;
  const std::shared_ptr<ErrorResolver> resolver_;
  const std::shared_ptr<Continuations> continuations_;
  // Explains failures. Separate from the users' continuations, which may wait
  // for that.
  Continuations explanations_;

  // Constant after Create. Null: this process is not in the group.
  std::unique_ptr<dataplane::Communicator> communicator_;
  std::atomic<bool> was_shut_down_{false};
  const ForkGuard fork_guard_;

  mutable Mutex mutex_;
  bool failure_seen_ MUSTER_GUARDED_BY(mutex_) = false;
  // Whether the first failed collective had begun after the others' timeout.
  bool began_late_ MUSTER_GUARDED_BY(mutex_) = false;
  // Whether it ended before its own timeout.
  bool ended_early_ MUSTER_GUARDED_BY(mutex_) = false;
  // How long after its timeout it ended.
  Instant::duration overtime_ MUSTER_GUARDED_BY(mutex_) = {};
  bool failed_ MUSTER_GUARDED_BY(mutex_) = false;
  // Its dataplane::Fingerprint; empty if not known.
  std::string ran_ MUSTER_GUARDED_BY(mutex_);
  // The call that timed out, while the coordinator looks for the culprit; else
  // empty.
  std::string settling_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_GROUP_STATE_H_
