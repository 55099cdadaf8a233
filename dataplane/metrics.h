#ifndef MUSTER_DATAPLANE_METRICS_H_
#define MUSTER_DATAPLANE_METRICS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace muster::dataplane {

// What the data plane counts. The owner of the process's metrics implements
// it; calls come from any thread, when a collective completes, and must be
// quick.
class Metrics {
 public:
  virtual ~Metrics() = default;

  // `op` is CollectiveKindName, `backend` Backend::name(): both come from a
  // small closed set, so they can be labels. `bytes` are of this rank's
  // tensors, `seconds` from Start to completion.
  virtual void CollectiveFinished(absl::string_view op,
                                  absl::string_view backend, size_t bytes,
                                  double seconds, absl::StatusCode code) = 0;
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_METRICS_H_
