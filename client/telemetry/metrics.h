#ifndef MUSTER_CLIENT_TELEMETRY_METRICS_H_
#define MUSTER_CLIENT_TELEMETRY_METRICS_H_

#include <chrono>
#include <memory>
#include <string>

#include "dataplane/observe/metrics.h"

namespace muster::worker {

// Metrics holds the metrics of one worker process. Thread-safe.
//
//   muster_build_info{version}                                  always 1
//   muster_worker_rank, muster_worker_world_size                gauges
//   muster_dataplane_collectives_total{op,backend,code}
//   muster_dataplane_collective_bytes_total{op,backend}
//   muster_dataplane_collective_duration_seconds{op,backend}    histogram
//   muster_dataplane_collective_running_seconds                 gauge
//   muster_dataplane_refused_connections_total
//   muster_data_parallel_steps_total{hook}
//   muster_data_parallel_backward_compute_seconds_total{hook}
//   muster_data_parallel_communication_seconds_total{hook}
//   muster_data_parallel_overlap_seconds_total{hook}
//   muster_data_parallel_exposed_communication_seconds_total{hook}
//   muster_data_parallel_buckets{hook}                          gauges
//   muster_data_parallel_bucket_bytes{hook}
//   process_cpu_seconds_total, process_open_fds,
//   process_resident_memory_bytes, process_start_time_seconds
//
// Bytes and durations count only collectives that succeeded: the bytes of a
// failed one did not arrive, and its duration reflects a timeout, not the
// network. At debug level DETAIL a duration includes the consistency check.
//
// The metrics of DataParallel are sums of its LoggingData over the process.
// `hook` is a hook of communication_hooks.h, or "custom". A hook that was never
// used has no series.
class Metrics : public dataplane::Metrics {
 public:
  static std::unique_ptr<Metrics> Create();

  virtual void SetRank(int rank, int world_size) = 0;

  // Sets how long the oldest running collective has run; 0: none runs.
  virtual void SetRunning(std::chrono::milliseconds running_for) = 0;

  // Returns all metrics in Prometheus' text format.
  virtual std::string Render() const = 0;

 protected:
  Metrics() = default;
};

}  // namespace muster::worker

#endif  // MUSTER_CLIENT_TELEMETRY_METRICS_H_
