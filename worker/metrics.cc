#include "worker/metrics.h"

#include <dirent.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "client/version.h"

namespace muster::worker {
namespace {

// From the latency of a small collective on one host to a timeout's order.
const prometheus::Histogram::BucketBoundaries kDurationBuckets = {
    0.000001, 0.0000025, 0.000005, 0.00001, 0.000025, 0.00005, 0.0001, 0.00025,
    0.0005,   0.001,     0.0025,   0.005,   0.01,     0.025,   0.05,   0.1,
    0.25,     0.5,       1,        2.5,     10,       60};

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double ResidentBytes() {
  double total_pages = 0;
  double resident_pages = 0;
  std::ifstream("/proc/self/statm") >> total_pages >> resident_pages;
  return resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double OpenFds() {
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  int entries = 0;
  while (readdir(folder) != nullptr) ++entries;
  closedir(folder);
  return entries - 3;  // ".", ".." and the descriptor of `folder`
}

class PrometheusMetrics final : public Metrics {
 public:
  PrometheusMetrics()
      : build_info_(prometheus::BuildGauge()
                        .Name("muster_build_info")
                        .Help("Always 1; the label says what was built.")
                        .Register(registry_)),
        rank_(AddGauge("muster_worker_rank",
                       "Rank in the default group; -1 outside of one.")),
        world_size_(AddGauge("muster_worker_world_size",
                             "Size of the default group; 0 outside of one.")),
        collectives_(prometheus::BuildCounter()
                         .Name("muster_dataplane_collectives_total")
                         .Help("Collectives that completed, by status code.")
                         .Register(registry_)),
        bytes_(prometheus::BuildCounter()
                   .Name("muster_dataplane_collective_bytes_total")
                   .Help("Bytes of this rank's tensors in collectives that "
                         "succeeded.")
                   .Register(registry_)),
        durations_(
            prometheus::BuildHistogram()
                .Name("muster_dataplane_collective_duration_seconds")
                .Help("Start to completion of collectives that succeeded.")
                .Register(registry_)),
        running_(AddGauge("muster_dataplane_collective_running_seconds",
                          "How long the oldest collective, send or receive "
                          "that runs has been running; 0 when none does.")),
        cpu_seconds_(
            prometheus::BuildCounter()
                .Name("process_cpu_seconds_total")
                .Help("User and system CPU time of the process in seconds.")
                .Register(registry_)
                .Add({})),
        open_fds_(AddGauge("process_open_fds", "Open file descriptors.")),
        resident_bytes_(AddGauge("process_resident_memory_bytes",
                                 "Resident memory in bytes.")) {
    build_info_.Add({{"version", kVersion}}).Set(1);
    rank_.Set(-1);
    AddGauge("process_start_time_seconds",
             "When the process began to count, in seconds since the epoch.")
        .Set(std::chrono::duration<double>(
                 std::chrono::system_clock::now().time_since_epoch())
                 .count());
  }

  void CollectiveFinished(absl::string_view op, absl::string_view backend,
                          size_t bytes, double seconds,
                          absl::StatusCode code) override {
    if (code != absl::StatusCode::kOk) {
      CollectivesOf(op, backend, code).Increment();
      return;
    }
    const Series& series = SeriesOf(op, backend);
    series.collectives->Increment();
    series.bytes->Increment(static_cast<double>(bytes));
    series.durations->Observe(seconds);
  }

  void SetRank(int rank, int world_size) override {
    rank_.Set(rank);
    world_size_.Set(world_size);
  }

  void SetRunning(std::chrono::milliseconds running_for) override {
    running_.Set(std::chrono::duration<double>(running_for).count());
  }

  std::string Render() const override {
    // A counter can only go up: add what was used since the last scrape, in
    // one scrape at a time.
    const std::lock_guard<std::mutex> lock(render_mutex_);
    cpu_seconds_.Increment(CpuSeconds() - cpu_seconds_.Value());
    open_fds_.Set(OpenFds());
    resident_bytes_.Set(ResidentBytes());
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

 private:
  // Of collectives that succeeded.
  struct Series {
    prometheus::Counter* collectives;
    prometheus::Counter* bytes;
    prometheus::Histogram* durations;
  };

  prometheus::Counter& CollectivesOf(absl::string_view op,
                                     absl::string_view backend,
                                     absl::StatusCode code) {
    return collectives_.Add({{"op", std::string(op)},
                             {"backend", std::string(backend)},
                             {"code", absl::StatusCodeToString(code)}});
  }

  // To find them by their labels takes longer than a small collective. They
  // live as long as the registry.
  const Series& SeriesOf(absl::string_view op, absl::string_view backend) {
    const std::lock_guard<std::mutex> lock(series_mutex_);
    if (const auto of_op = series_.find(op); of_op != series_.end()) {
      const auto found = of_op->second.find(backend);
      if (found != of_op->second.end()) return found->second;
    }
    const prometheus::Labels labels = {{"op", std::string(op)},
                                       {"backend", std::string(backend)}};
    const Series series = {
        .collectives = &CollectivesOf(op, backend, absl::StatusCode::kOk),
        .bytes = &bytes_.Add(labels),
        .durations = &durations_.Add(labels, kDurationBuckets)};
    return series_[std::string(op)][std::string(backend)] = series;
  }

  prometheus::Gauge& AddGauge(const std::string& name,
                              const std::string& help) {
    return prometheus::BuildGauge()
        .Name(name)
        .Help(help)
        .Register(registry_)
        .Add({});
  }

  prometheus::Registry registry_;
  prometheus::Family<prometheus::Gauge>& build_info_;
  prometheus::Gauge& rank_;
  prometheus::Gauge& world_size_;
  prometheus::Family<prometheus::Counter>& collectives_;
  prometheus::Family<prometheus::Counter>& bytes_;
  prometheus::Family<prometheus::Histogram>& durations_;
  prometheus::Gauge& running_;
  prometheus::Counter& cpu_seconds_;
  prometheus::Gauge& open_fds_;
  prometheus::Gauge& resident_bytes_;
  mutable std::mutex render_mutex_;
  std::mutex series_mutex_;
  // By collective and backend. Those in it stay where they are.
  std::map<std::string, std::map<std::string, Series, std::less<>>, std::less<>>
      series_;
};

}  // namespace

std::unique_ptr<Metrics> Metrics::Create() {
  return std::make_unique<PrometheusMetrics>();
}

}  // namespace muster::worker
