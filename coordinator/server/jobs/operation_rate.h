#ifndef MUSTER_COORDINATOR_SERVER_JOBS_OPERATION_RATE_H_
#define MUSTER_COORDINATOR_SERVER_JOBS_OPERATION_RATE_H_

#include <cstdint>
#include <deque>
#include <utility>

#include "coordinator/core/instant.h"

namespace muster::coordinator {

// Measures the recent rate of an event. Not thread-safe.
class OperationRate {
 public:
  // Records that `total` events have happened until `now`. Call it about once a
  // second.
  void Sample(core::Instant now, int64_t total);

  // The rate per second between the first sample of the last ten seconds and
  // the last sample; 0 before there are two.
  double per_second() const { return per_second_; }

 private:
  std::deque<std::pair<core::Instant, int64_t>> samples_;
  double per_second_ = 0;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_JOBS_OPERATION_RATE_H_
