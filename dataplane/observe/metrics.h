#ifndef MUSTER_DATAPLANE_OBSERVE_METRICS_H_
#define MUSTER_DATAPLANE_OBSERVE_METRICS_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "muster/base/status.h"

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

    // Called when a collective has completed, `elapsed` after its start.
    // `bytes` is the size of this rank's tensors. Must be quick: every
    // collective calls it.
    virtual void Finished(size_t bytes, std::chrono::nanoseconds elapsed,
                          StatusCode code) = 0;
  };

  // Returns the same object for the same names. It lives as long as this
  // object. `op` is a CollectiveKindName and `backend` a Backend::name(): both
  // are from small closed sets, so they can be labels.
  virtual Series& GetSeries(absl::string_view op,
                            absl::string_view backend) = 0;
};

// The number of connections to ports of its groups that this process has closed
// because the peer did not prove, at all or in time, that it is in the group.
inline std::atomic<int64_t> refused_connections{0};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_OBSERVE_METRICS_H_
