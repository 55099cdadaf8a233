// What a ProcessGroup is made of.

#ifndef MUSTER_CLIENT_INTERNAL_GROUP_STATE_H_
#define MUSTER_CLIENT_INTERNAL_GROUP_STATE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "client/internal/failure_judge.h"
#include "client/process_group.h"
#include "client/session.h"
#include "dataplane/communicator.h"
#include "dataplane/mutex.h"

namespace muster::internal {

struct GroupStateOptions {
  std::string name;
  std::string backend;
  std::chrono::milliseconds timeout{0};
  Formation formation;
};

// GroupState joins one communicator with the control plane: it starts
// collectives, and turns their failures into the group's one error.
// Thread-safe.
class GroupState : public std::enable_shared_from_this<GroupState> {
 public:
  static std::shared_ptr<GroupState> Create(
      GroupStateOptions options, std::unique_ptr<dataplane::Backend> backend,
      std::shared_ptr<Session> session, std::shared_ptr<FailureJudge> judge);

  // Throws what Work::Wait throws, unless `async_op`.
  Work Run(dataplane::Collective collective, bool async_op);
  void MonitoredBarrier(std::chrono::milliseconds timeout, bool wait_all_ranks);

  // The error to throw for a failed collective. May wait for the verdict.
  absl::Status Explain(const absl::Status& symptom);
  [[noreturn]] void ThrowFailure(const absl::Status& symptom);

  // Aborts what runs and frees the connections; the group is unusable then.
  void Shutdown();

  // The group's error, and whether any caller has seen it.
  absl::Status status() const;
  bool failure_seen() const;

  // For heartbeats.
  std::vector<GroupProgress> Progress() const;

  // Between global ranks, which users see, and the group's own: the same, as
  // long as the only group is the default one.
  int GroupRankOf(int global_rank) const { return global_rank; }
  int GlobalRankOf(int group_rank) const { return group_rank; }

  int rank() const { return options_.formation.rank; }
  int size() const { return static_cast<int>(options_.formation.seats.size()); }
  const GroupStateOptions& options() const { return options_; }

 private:
  GroupState(GroupStateOptions options, std::shared_ptr<Session> session,
             std::shared_ptr<FailureJudge> judge);

  std::shared_ptr<dataplane::Communicator> communicator() const;
  // Throws when the group was shut down.
  std::shared_ptr<dataplane::Communicator> LiveCommunicator() const;
  void TellJudge();
  FailureJudge::Accusation Accuse(const absl::Status& own);
  absl::Status NameTheStuck(const absl::Status& own);
  std::string BarrierText(const absl::Status& status,
                          std::chrono::milliseconds timeout) const;

  const GroupStateOptions options_;
  const std::shared_ptr<Session> session_;
  const std::shared_ptr<FailureJudge> judge_;

  mutable dataplane::Mutex mutex_;
  std::shared_ptr<dataplane::Communicator> communicator_
      ABSL_GUARDED_BY(mutex_);
  bool failure_seen_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_INTERNAL_GROUP_STATE_H_
