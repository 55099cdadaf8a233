#ifndef MUSTER_DATAPLANE_NCCL_TESTING_HOST_TEAM_H_
#define MUSTER_DATAPLANE_NCCL_TESTING_HOST_TEAM_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::dataplane::nccl::testing {

// One rank's part in a collective, as seen by the others.
struct Call {
  std::string what = {};  // must be equal on all ranks
  const void* from = nullptr;
  size_t bytes = 0;
  double factor = 1;  // used by reductions
  // Used by splits.
  int color = 0;
  int key = 0;
};

// The ranks of a communicator. A step is the number of one of its collectives.
class Team {
 public:
  explicit Team(int size) : size_(size) {}

  int size() const { return size_; }

  // Adds the rank's call for `step`. Await waits until all ranks have added
  // theirs; empty if `over` returns true first.
  void Arrive(uint64_t step, int rank, const Call& call) {
    MutexLock lock(mutex_);
    Step& met = steps_[step];
    if (met.calls.empty()) met.calls.resize(static_cast<size_t>(size_));
    met.calls[static_cast<size_t>(rank)] = call;
    ++met.arrived;
    changed_.NotifyAll();
  }
  std::optional<std::vector<Call>> Await(uint64_t step,
                                         const std::function<bool()>& over) {
    MutexLock lock(mutex_);
    const Step& met = steps_[step];
    while (met.arrived < size_) {
      if (over()) return std::nullopt;
      changed_.Wait(mutex_);
    }
    return met.calls;
  }

  // Whether all ranks have added their calls.
  bool HasMet(uint64_t step) {
    MutexLock lock(mutex_);
    return steps_[step].arrived == size_;
  }

  // Waits until each rank is done with the calls: their memory may change then.
  void Part(uint64_t step, const std::function<bool()>& over) {
    MutexLock lock(mutex_);
    Step& met = steps_[step];
    ++met.done;
    changed_.NotifyAll();
    while (met.done < size_ && !over()) changed_.Wait(mutex_);
  }

  // Messages from rank `from` to rank `to`, in order. The receiver keeps the
  // first one until it is done with it; the sender waits for that.
  void Post(int from, int to, const Call& call) {
    MutexLock lock(mutex_);
    mail_[{from, to}].push_back(call);
    changed_.NotifyAll();
  }
  std::optional<Call> Look(int from, int to,
                           const std::function<bool()>& over) {
    MutexLock lock(mutex_);
    const std::deque<Call>& mail = mail_[{from, to}];
    while (mail.empty()) {
      if (over()) return std::nullopt;
      changed_.Wait(mutex_);
    }
    return mail.front();
  }
  void Took(int from, int to) {
    MutexLock lock(mutex_);
    mail_[{from, to}].pop_front();
    changed_.NotifyAll();
  }
  void AwaitTaken(int from, int to, const std::function<bool()>& over) {
    MutexLock lock(mutex_);
    while (!mail_[{from, to}].empty() && !over()) changed_.Wait(mutex_);
  }

  // Called when a rank's communicator is aborted.
  void Wake() {
    MutexLock lock(mutex_);
    changed_.NotifyAll();
  }

  // The team of the ranks with one color in this step, in the order of their
  // keys; the same object for all of them.
  std::shared_ptr<Team> Divide(uint64_t step, int color, size_t size) {
    MutexLock lock(mutex_);
    std::shared_ptr<Team>& team = divided_[{step, color}];
    if (team == nullptr) team = std::make_shared<Team>(static_cast<int>(size));
    return team;
  }

 private:
  struct Step {
    std::vector<Call> calls;
    int arrived = 0;
    int done = 0;
  };
  const int size_;
  Mutex mutex_;
  CondVar changed_;
  std::map<uint64_t, Step> steps_ MUSTER_GUARDED_BY(mutex_);
  std::map<std::pair<int, int>, std::deque<Call>> mail_
      MUSTER_GUARDED_BY(mutex_);
  std::map<std::pair<uint64_t, int>, std::shared_ptr<Team>> divided_
      MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::dataplane::nccl::testing

#endif  // MUSTER_DATAPLANE_NCCL_TESTING_HOST_TEAM_H_
