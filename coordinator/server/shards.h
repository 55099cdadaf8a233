#ifndef MUSTER_COORDINATOR_SERVER_SHARDS_H_
#define MUSTER_COORDINATOR_SERVER_SHARDS_H_

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/server/jobs/commit_queue.h"
#include "coordinator/server/jobs/driver.h"
#include "coordinator/server/jobs/job.h"
#include "coordinator/server/rpc/session_service.h"
#include "coordinator/storage/fleet.h"
#include "coordinator/storage/storage.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::coordinator {

// Restores the jobs whose records are in `storage`. Their steps are committed
// by `commits`; see Driver::Restore. Returns the number of jobs.
StatusOr<int> RestoreJobs(Storage& storage,
                          const std::shared_ptr<CommitQueue>& commits,
                          Driver& driver);

// Shards begins and ends the service of a coordinator's shards.
class Shards final : public FleetHost {
 public:
  using NewQueue = std::function<std::shared_ptr<CommitQueue>(
      std::unique_ptr<Storage> storage)>;

  // `driver` and `sessions` outlive the result.
  Shards(Driver& driver, SessionTable& sessions, NewQueue new_queue);

  Status Take(int shard, std::unique_ptr<Storage> storage) override;
  Status Hold(int shard, const std::string& owner) override;
  void Release(int shard, const std::string& owner) override;
  void Lose(const std::vector<int>& shards) override;

  // Completes and syncs all commits.
  void Stop();

  // The number of commits that are not completed.
  int64_t depth() const;

 private:
  struct Shard {
    std::shared_ptr<CommitQueue> commits;  // null: not served
    // From Hold on.
    std::vector<std::shared_ptr<Job>> held;
  };

  Shard Get(int shard) const MUSTER_LOCKS_EXCLUDED(mu_);
  void Set(int shard, Shard state) MUSTER_LOCKS_EXCLUDED(mu_);
  std::vector<std::shared_ptr<Job>> Retire(int shard, const std::string& owner);
  void EndCalls(const std::vector<std::shared_ptr<Job>>& jobs,
                const std::string& owner);

  Driver& driver_;
  SessionTable& sessions_;
  const NewQueue new_queue_;
  mutable Mutex mu_;
  std::array<Shard, kShards> shards_ MUSTER_GUARDED_BY(mu_);
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_SHARDS_H_
