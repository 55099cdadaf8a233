// The implementation behind a ProcessGroup.

#ifndef MUSTER_CLIENT_GROUPS_GROUP_STATE_H_
#define MUSTER_CLIENT_GROUPS_GROUP_STATE_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "client/control/continuations.h"
#include "client/control/fork_guard.h"
#include "client/groups/error_resolver.h"
#include "client/process_group.h"
#include "client/session.h"
#include "dataplane/communicator.h"

namespace muster::internal {

struct GroupStateOptions {
  std::string name;
  std::string backend;
  std::chrono::milliseconds timeout{0};
  // In which of the user's options that stands.
  std::string timeout_name;
  int64_t generation = 0;
  // Of the group, ascending: the global rank of the group's rank r is that of
  // seat r.
  std::vector<Seat> seats;
  // For people.
  std::string description = {};
  // This process's in the group; -1: it is not in it.
  int rank = -1;
  // The default group: its failures are reported to the coordinator, which ends
  // all groups, and its ranks are the global ones.
  bool is_world = true;
  // Begins the keys that its ranks share in the job's store, and differs from
  // that of any other group, also of one that had the same name and is over.
  std::string key_prefix = {};
  // What is added to the names of its barriers, and of groups made of it, so
  // that they do not meet those of another group that has had its name.
  std::string barrier_suffix = {};
  // The CUDA device that it is bound to; -1: none.
  int device = -1;
};

// `factor`. Throws DistError (kInvalidArgument): it is not 1, and `op` uses
// none.
double CheckFactor(dataplane::ReduceOp op, double factor);

// With rank 0 for none.
RankArgument OrZero(RankArgument rank);

// What a rank has written of the end of the group with these keys, for those
// that wait in the store: kAborted, whatever it is. OK: nothing.
Status EndInStore(Session& session, const std::string& key_prefix);

// The seats of these ranks of the formation, which are ascending.
std::vector<Seat> SeatsOf(const Formation& formation,
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

  // What stands for any group that this process is not in: it does nothing but
  // warn.
  static std::shared_ptr<GroupState> NonMember(int global_rank);

  // Throws DistError for bad arguments, and, unless `async_op`, what Work::Wait
  // throws.
  [[gnu::always_inline]] Work Run(const dataplane::CollectiveView& collective,
                                  bool async_op) {
    // On a device the caller goes on before it is complete.
    if (async_op || !is_member() || collective.cuda_device() >= 0) {
      return Start(collective, async_op);
    }
    Instant began;
    const Status status = LiveCommunicator().Run(collective, began);
    if (!status.ok()) EndOf(status, began, collective.timeout, &collective);
    return Work(continuations_->number(), collective.written());
  }
  // The same of several as one.
  Work RunCoalesced(std::vector<dataplane::Collective> collectives,
                    bool async_op);
  // Sends and receives, each with a handle of its own, that begin together.
  std::vector<Work> RunTogether(std::vector<dataplane::Collective> collectives);
  // Throws what Run would for its arguments.
  void CheckArguments(const dataplane::Collective& collective) const;
  // Throws if `group_rank` is this rank: `verb` would wait for itself.
  void CheckIsOther(int group_rank, absl::string_view verb) const;
  void MonitoredBarrier(std::chrono::milliseconds timeout, bool wait_all_ranks);

  // The error to throw for a failed collective. May wait for the verdict.
  Status Explain(const Status& symptom);
  [[noreturn]] void ThrowFailure(const Status& symptom);
  // Waits until `until` for that error, of a collective that is found out about
  // in the background (async_op); false when it is not known then. The least
  // `until` asks.
  bool AwaitExplained(const Status& symptom, Instant until);

  // As dataplane::Backend::Split; null also of a group that was shut down.
  std::shared_ptr<dataplane::ParentHandle> Split(
      const dataplane::SplitOptions& options);

  // A piece of memory that all ranks have; null when this process is not in the
  // group. Zero: the group's timeout. Throws what Run throws.
  std::shared_ptr<dataplane::SymmetricMemory> AllocateSymmetric(
      size_t bytes, std::optional<DeviceType> device,
      std::chrono::milliseconds timeout);

  // As ProcessGroup::last_run.
  dataplane::LastRun last_run(DeviceType device) const {
    auto* const live = communicator();
    return live == nullptr ? dataplane::LastRun() : live->last_run(device);
  }

  // As ProcessGroup::Abort. To blame are these ranks of the group; without any
  // it is this one.
  void Abort(const std::string& reason, std::vector<int> culprits = {});

  // Throws in a process that was forked off, whose group it is not.
  void CheckIsHere() const {
    if (!fork_guard_.is_here()) ThrowNotLive();
  }
  bool is_here() const { return fork_guard_.is_here(); }

  // Aborts what runs and frees the connections; the group is unusable then.
  void Shutdown();

  const std::shared_ptr<Continuations>& continuations() const {
    return continuations_;
  }

  // The group's error, and whether any caller has seen it.
  Status status() const;
  bool failure_seen() const;

  // For heartbeats.
  std::vector<GroupProgress> Progress() const;

  // Between global ranks, which users see, and the group's own. Throw DistError
  // (kInvalidArgument): it is not in the group.
  // (Of the default group any number is taken, for the data plane to check.)
  int GroupRankOf(int global_rank) const;
  // The same of any group.
  int MemberRankOf(int global_rank) const;
  // The same of an argument `name`, of which exactly one is to be given; -1
  // when this process is not a member.
  int GroupRankOf(const RankArgument& rank, absl::string_view name) const {
    // As most say it.
    return options_.is_world && rank.global.has_value() &&
                   !rank.in_group.has_value()
               ? *rank.global
               : FindGroupRank(rank, name);
  }
  int GlobalRankOf(int group_rank) const;
  // A rank of the group, for those who are to blame.
  MemberInfo MemberOf(int rank) const;

  bool is_member() const { return options_.rank >= 0; }
  // True, and says so in the log, when this process is not a member.
  bool IsForOthers(absl::string_view verb) const;
  // In the group; -1 and -1 when this process is not a member.
  int rank() const { return options_.rank; }
  int size() const {
    return is_member() ? static_cast<int>(options_.seats.size()) : -1;
  }
  std::vector<int> ranks() const;
  const GroupStateOptions& options() const { return options_; }
  // Its tensors are on CUDA devices, and none on the CPU.
  bool is_cuda_only() const;

 private:
  GroupState(GroupStateOptions options,
             std::vector<dataplane::DeviceType> devices,
             std::shared_ptr<Session> session,
             std::shared_ptr<ErrorResolver> resolver);

  // Null when there is none, the group was shut down, or it is that of the
  // process that forked this one off.
  dataplane::Communicator* communicator() const {
    const bool is_over = was_shut_down_.load(std::memory_order_acquire) ||
                         !fork_guard_.is_here();
    return is_over ? nullptr : communicator_.get();
  }
  // Throws when there is none.
  dataplane::Communicator& LiveCommunicator() const {
    dataplane::Communicator* const live = communicator();
    if (live == nullptr) ThrowNotLive();
    return *live;
  }
  Status NotLive() const;
  [[noreturn]] void ThrowNotLive() const;
  int FindGroupRank(const RankArgument& rank, absl::string_view name) const;
  void TellResolver();
  // Run, if the caller does not wait here, or is not in the group.
  Work Start(const dataplane::CollectiveView& collective, bool async_op);
  // What the user gets; complete if not asynchronous. Throws DistError if the
  // arguments were bad.
  Work HandleOf(std::shared_ptr<dataplane::Work> started,
                std::span<const Tensor> result, bool async_op);
  // Has the end of `work` looked at, if it is a failure: the group's error must
  // not wait for the user to look.
  // `collective`, if it is known, is what it runs.
  void Watch(dataplane::Work& work, std::chrono::milliseconds timeout,
             std::shared_ptr<const dataplane::Collective> collective = nullptr);
  // Throws what is to be thrown when one that `began` then has ended so; it was
  // `collective`, if that is known.
  void EndOf(const Status& status, Instant began,
             std::chrono::milliseconds timeout,
             const dataplane::CollectiveView* collective = nullptr);
  // Of a collective that began then. False: it is no failure of the group, but
  // a bad argument.
  bool NoteFailure(Instant began, std::chrono::milliseconds timeout,
                   const dataplane::Collective* collective);
  ErrorResolver::Accusation Report(const Status& own);
  ErrorResolver::Accusation AccuseTheOdd(const Status& own);
  ErrorResolver::Accusation Tell(Status error);
  Status NameTheOdd(const Status& own, const std::string& prefix);
  std::optional<Status> Agree(const Status& own);
  Status AwaitAgreed(const Status& own);
  std::string BarrierName(absl::string_view name) const;
  Status NameTheStuck(const Status& own);
  int global_rank() const;
  std::string BarrierText(const Status& status,
                          std::chrono::milliseconds timeout) const;

  const GroupStateOptions options_;
  // Whose tensors its backend takes; none: there is no backend.
  const std::vector<dataplane::DeviceType> devices_;
  const std::shared_ptr<Session> session_;
  const std::shared_ptr<ErrorResolver> resolver_;
  const std::shared_ptr<Continuations> continuations_;
  // Where failures are explained: not behind the users' continuations, which
  // may wait for that.
  Continuations explanations_;

  // Constant after Create; null: this process is not in the group.
  std::unique_ptr<dataplane::Communicator> communicator_;
  std::atomic<bool> was_shut_down_{false};
  const ForkGuard fork_guard_;

  mutable Mutex mutex_;
  bool failure_seen_ MUSTER_GUARDED_BY(mutex_) = false;
  // How the first collective to fail had begun: when the others' time was over.
  bool began_late_ MUSTER_GUARDED_BY(mutex_) = false;
  // And how long after its time it ended.
  Instant::duration overtime_ MUSTER_GUARDED_BY(mutex_) = {};
  bool failed_ MUSTER_GUARDED_BY(mutex_) = false;
  // What that was (dataplane::Fingerprint); empty: not known.
  std::string ran_ MUSTER_GUARDED_BY(mutex_);
  // What failed, while its ranks find out whom to blame; empty: they do not.
  std::string settling_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_GROUP_STATE_H_
