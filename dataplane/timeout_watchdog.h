#ifndef MUSTER_DATAPLANE_TIMEOUT_WATCHDOG_H_
#define MUSTER_DATAPLANE_TIMEOUT_WATCHDOG_H_

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "muster/base/status.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane {

struct WatchdogOptions {
  std::string group_name = {};
  int rank = 0;
  // Added to a collective's deadline, and to the time of an Abort. A backend
  // that watches its own deadlines, and has better error texts, fails within
  // it.
  std::chrono::milliseconds grace = std::chrono::seconds(2);
};

// TimeoutWatchdog wraps a backend that may be a user's. A collective that is
// not complete `grace` after its deadline fails (kDeadlineExceeded). A
// collective that is not complete `grace` after Abort, or when this object is
// destroyed, fails with the cause. The backend may still write to the tensors
// after that.
//
// One thread watches the clock.
class TimeoutWatchdog : public BackendDecorator {
 public:
  TimeoutWatchdog(std::unique_ptr<Backend> inner, WatchdogOptions options);
  ~TimeoutWatchdog() override;

  std::shared_ptr<Work> Start(const Collective& collective) override;
  void Abort(Status cause) override;

 private:
  class Clockwork;

  const WatchdogOptions options_;
  // Shared, because completions of the backend may come at any later time.
  const std::shared_ptr<Clockwork> clockwork_;
  std::thread thread_;
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_TIMEOUT_WATCHDOG_H_
