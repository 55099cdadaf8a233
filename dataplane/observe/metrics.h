#ifndef MUSTER_DATAPLANE_OBSERVE_METRICS_H_
#define MUSTER_DATAPLANE_OBSERVE_METRICS_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace muster::dataplane {

// The interface through which the data plane reports its metrics. The owner of
// the process's metrics implements it. Thread-safe.
class Metrics {
 public:
  virtual ~Metrics() = default;

  // The collectives of one kind on one backend. Thread-safe.
  class Series {
   public:
    virtual ~Series() = default;

    // One has completed, `elapsed` after it was started. `bytes` are of this
    // rank's tensors. Must be quick: it is in the way of every collective.
    virtual void Finished(size_t bytes, std::chrono::nanoseconds elapsed,
                          StatusCode code) = 0;
  };

  // Lives as long as this; the same for the same names. `op` is
  // CollectiveKindName, `backend` Backend::name(): both come from a small
  // closed set, so they can be labels.
  virtual Series& SeriesOf(absl::string_view op, absl::string_view backend) = 0;
};

// How many connections this process has closed that came to a port of its
// groups and did not show, in time or at all, that they are of the group.
inline std::atomic<int64_t> refused_connections{0};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_OBSERVE_METRICS_H_
