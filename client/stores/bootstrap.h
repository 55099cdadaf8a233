// Implements the data plane's BootstrapStore, through which the ranks of a new
// group find each other, on the job's store at the coordinator.

#ifndef MUSTER_CLIENT_STORES_BOOTSTRAP_H_
#define MUSTER_CLIENT_STORES_BOOTSTRAP_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/dataplane/bootstrap_store.h"
#include "muster/dataplane/interruption.h"
#include "muster/session.h"

namespace muster::internal {

// Get ends early if the group is known to be broken.
class SessionBootstrap : public dataplane::BootstrapStore {
 public:
  // Returns why a wait is in vain; OK if it is not. May ask the coordinator if
  // `asks`, which is true every 300 ms in the first seconds of a wait and then
  // once a second.
  using Broken = std::function<Status(bool asks)>;

  SessionBootstrap(std::shared_ptr<Session> session, std::string prefix,
                   Broken broken);

  // Ends a running Get with the reason, unless that is kCancelled: a rank that
  // left in peace may have set all its keys.
  const dataplane::Interruption& interruption() const { return interruption_; }

  Status Set(const std::string& key, const std::string& value) override;
  Status SetBy(const std::string& key, const std::string& value,
               Instant deadline) override;
  StatusOr<std::vector<std::string>> Get(const std::vector<std::string>& keys,
                                         Instant deadline) override;
  StatusOr<int64_t> Add(const std::string& key, int64_t delta) override;

  void Forget(const std::string& key, Instant deadline) override;

  // Deletes the keys of this process: a coordinator outlives many groups.
  // Returns false if the coordinator does not answer.
  bool DeleteOwnKeys();

 private:
  bool IsTimeToAsk();
  std::chrono::milliseconds Slice();

  const std::shared_ptr<Session> session_;
  const std::string prefix_;
  const Broken broken_;
  const dataplane::Interruption interruption_;
  Mutex mutex_;
  std::vector<std::string> own_keys_ MUSTER_GUARDED_BY(mutex_);
  // How many times the next question was scheduled.
  int slices_ MUSTER_GUARDED_BY(mutex_) = 0;
  Instant next_ask_ MUSTER_GUARDED_BY(mutex_) = Instant::min();
};

// Deletes the keys of generations before `current` under `prefix`, which the
// generation follows in every key.
void DeleteStaleKeys(Session& session, const std::string& prefix,
                     int64_t current);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_STORES_BOOTSTRAP_H_
