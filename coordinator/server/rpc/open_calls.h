#ifndef MUSTER_COORDINATOR_SERVER_RPC_OPEN_CALLS_H_
#define MUSTER_COORDINATOR_SERVER_RPC_OPEN_CALLS_H_

#include <chrono>
#include <cstdint>

#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::coordinator {

// OpenCalls counts the calls and streams that gRPC has not finished, so that a
// drain can end with the last of them. gRPC's own Shutdown also waits for every
// connection, even a silent one. Thread-safe.
class OpenCalls {
 public:
  OpenCalls() = default;
  OpenCalls(const OpenCalls&) = delete;
  OpenCalls& operator=(const OpenCalls&) = delete;

  void Begin() {
    MutexLock lock(mu_);
    ++count_;
  }
  void End() {
    MutexLock lock(mu_);
    if (--count_ == 0) none_.NotifyAll();
  }

  // Returns true when there are no open calls, false at `deadline`.
  bool AwaitNone(std::chrono::steady_clock::time_point deadline) {
    MutexLock lock(mu_);
    while (count_ > 0 && std::chrono::steady_clock::now() < deadline) {
      none_.WaitUntil(mu_, deadline);
    }
    return count_ == 0;
  }

 private:
  Mutex mu_;
  CondVar none_;
  int64_t count_ MUSTER_GUARDED_BY(mu_) = 0;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_OPEN_CALLS_H_
