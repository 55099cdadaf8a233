#ifndef MUSTER_DATAPLANE_TIMEOUT_WATCHDOG_H_
#define MUSTER_DATAPLANE_TIMEOUT_WATCHDOG_H_

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "base/status.h"
#include "dataplane/backend.h"

namespace muster::dataplane {

struct WatchdogOptions {
  std::string group_name = {};
  int rank = 0;
  // Beyond a collective's deadline, or after an Abort: for a backend that keeps
  // the time itself, and can say more.
  std::chrono::milliseconds grace = std::chrono::seconds(2);
};

// TimeoutWatchdog stands before a backend that may be anybody's: a collective
// that it does not complete in its time, nor in the grace after that, fails
// (kDeadlineExceeded). So does, with the cause, what it does not complete when
// it is aborted or destroyed. Its tensors may be written later all the same, if
// the backend writes them.
//
// A thread of its own looks at the clock.
class TimeoutWatchdog : public BackendDecorator {
 public:
  TimeoutWatchdog(std::unique_ptr<Backend> inner, WatchdogOptions options);
  ~TimeoutWatchdog() override;

  std::shared_ptr<Work> Start(const Collective& collective) override;
  void Abort(Status cause) override;

 private:
  class Clockwork;

  const WatchdogOptions options_;
  // Completions of the backend may come as long as they like.
  const std::shared_ptr<Clockwork> clockwork_;
  std::thread thread_;
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_TIMEOUT_WATCHDOG_H_
