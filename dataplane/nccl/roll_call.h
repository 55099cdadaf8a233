// Finds the ranks that others wait for in a collective, which NCCL does not
// report.

#ifndef MUSTER_DATAPLANE_NCCL_ROLL_CALL_H_
#define MUSTER_DATAPLANE_NCCL_ROLL_CALL_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/string_view.h"
#include "muster/base/clock.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/dataplane/bootstrap_store.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane::nccl {

// RollCall finds the ranks that have not come to a collective. A rank that has
// waited in a collective for some time notes its number in the group's store,
// so that a rank that times out can tell late ranks from missing ones.
// Thread-safe.
class RollCall {
 public:
  // `store` may be null in a group of one.
  RollCall(std::shared_ptr<BootstrapStore> store, int rank, int size);
  ~RollCall();

  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  // The wait in a collective with this timeout after which a rank calls Tell.
  static std::chrono::milliseconds TellAfter(std::chrono::milliseconds timeout);

  // Notes that this rank has come to its collective `number`, from 1; 0: to the
  // making of the communicator. Does not wait: a thread, started by the first
  // call, writes it.
  void Tell(uint64_t number);

  // The ranks that had time to note `number` and have not, ascending; if many,
  // the first ones. Takes a moment longer than TellAfter.
  std::vector<int> Missing(uint64_t number,
                           std::chrono::milliseconds timeout) const;

  // Returns `status`, the timeout of making the communicator of `group`, with
  // the missing ranks as culprits.
  Status NotMade(const Status& status, absl::string_view group) const;

  // Calls Missing on the thread and passes the result to `then`, with no lock
  // held. Not called if this object is destroyed before.
  using Then = std::function<void(const std::vector<int>& missing)>;
  void FindMissing(uint64_t number, std::chrono::milliseconds timeout,
                   Then then);

  // Ends the thread and waits for that.
  void Stop();

 private:
  struct Question {
    uint64_t number = 0;
    std::chrono::milliseconds timeout{0};
    Then then;
  };

  void Wake() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Serve();
  void Publish(uint64_t number) const;

  const std::shared_ptr<BootstrapStore> store_;
  const int rank_;
  const int size_;

  Mutex mutex_;
  CondVar changed_;
  uint64_t to_tell_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::optional<Question> question_ MUSTER_GUARDED_BY(mutex_);
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// "rank 1", "ranks 1, 2"; "the other ranks" if there are none.
std::string DescribeRanks(const std::vector<int>& ranks);

// The error of a collective to which the `missing` ranks have not come.
Status TimedOut(const Collective& collective, absl::string_view group,
                const std::vector<int>& missing);

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_ROLL_CALL_H_
