#ifndef MUSTER_COORDINATOR_SERVER_OPS_SELDOM_LOG_H_
#define MUSTER_COORDINATOR_SERVER_OPS_SELDOM_LOG_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/core/instant.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::coordinator {

// SeldomLog logs an event that clients can cause as often as they like: the
// first one at once, then at most one line per interval, with the number of
// events that it stands for and the details of the last: `EVENT: count=3
// DETAIL`. Thread-safe.
class SeldomLog {
 public:
  SeldomLog(absl::string_view event, core::Duration interval)
      : event_(event), interval_(interval) {}
  SeldomLog(const SeldomLog&) = delete;
  SeldomLog& operator=(const SeldomLog&) = delete;

  void Add(absl::string_view detail, core::Instant now);

  // Writes a line for events that are not logged yet, if it is time. Call it
  // about once per interval.
  void Tell(core::Instant now);

  // The line that Add or Tell would write; empty: it is not time for a line.
  std::string LineFor(absl::string_view detail, core::Instant now);
  std::string LineAt(core::Instant now);

 private:
  const std::string event_;
  const core::Duration interval_;
  Mutex mu_;
  int64_t untold_ MUSTER_GUARDED_BY(mu_) = 0;
  std::string last_ MUSTER_GUARDED_BY(mu_);
  core::Instant next_ MUSTER_GUARDED_BY(mu_);
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_OPS_SELDOM_LOG_H_
