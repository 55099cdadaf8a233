#ifndef MUSTER_CLIENT_TELEMETRY_METRICS_H_
#define MUSTER_CLIENT_TELEMETRY_METRICS_H_

#include <chrono>
#include <memory>
#include <string>

#include "dataplane/observe/metrics.h"

namespace muster::worker {

// Metrics holds the numbers of one worker process. Thread-safe.
//
//   muster_build_info{version}                                  always 1
//   muster_worker_rank, muster_worker_world_size                gauges
//   muster_dataplane_collectives_total{op,backend,code}
//   muster_dataplane_collective_bytes_total{op,backend}
//   muster_dataplane_collective_duration_seconds{op,backend}    histogram
//   muster_dataplane_collective_running_seconds                 gauge
//   muster_dataplane_refused_connections_total
//   process_cpu_seconds_total, process_open_fds,
//   process_resident_memory_bytes, process_start_time_seconds
//
// Bytes and durations count collectives that succeeded: a failed one's bytes
// did not arrive, and its duration is a timeout's, not the network's. At the
// debug level DETAIL what ranks compare first is a part of it.
class Metrics : public dataplane::Metrics {
 public:
  static std::unique_ptr<Metrics> Create();

  virtual void SetRank(int rank, int world_size) = 0;

  // How long the oldest one that runs has been running; 0: none runs.
  virtual void SetRunning(std::chrono::milliseconds running_for) = 0;

  // Everything in Prometheus' text format.
  virtual std::string Render() const = 0;

 protected:
  Metrics() = default;
};

}  // namespace muster::worker

#endif  // MUSTER_CLIENT_TELEMETRY_METRICS_H_
