#include "client/telemetry/metrics.h"

#include <prometheus/client_metric.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/metric_family.h>
#include <prometheus/metric_type.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/process_usage.h"
#include "client/telemetry/data_parallel_metrics.h"
#include "muster/base/status.h"
#include "muster/version.h"

namespace muster::worker {
namespace {

// The upper bounds of the buckets of durations, in nanoseconds: from the
// latency of a small collective on one host to a timeout. One more bucket has
// the rest.
constexpr std::array<int64_t, 22> kDurationBounds = {
    1'000,          2'500,         5'000,       10'000,        25'000,
    50'000,         100'000,       250'000,     500'000,       1'000'000,
    2'500'000,      5'000'000,     10'000'000,  25'000'000,    50'000'000,
    100'000'000,    250'000'000,   500'000'000, 1'000'000'000, 2'500'000'000,
    10'000'000'000, 60'000'000'000};

prometheus::MetricFamily Family(std::string name, std::string help,
                                prometheus::MetricType type) {
  prometheus::MetricFamily family;
  family.name = std::move(name);
  family.help = std::move(help);
  family.type = type;
  return family;
}

// The three families of collectives.
struct CollectiveFamilies {
  prometheus::MetricFamily collectives =
      Family("muster_dataplane_collectives_total",
             "Collectives that completed, by status code.",
             prometheus::MetricType::Counter);
  prometheus::MetricFamily bytes =
      Family("muster_dataplane_collective_bytes_total",
             "Bytes of this rank's tensors in collectives that succeeded.",
             prometheus::MetricType::Counter);
  prometheus::MetricFamily durations =
      Family("muster_dataplane_collective_duration_seconds",
             "Start to completion of collectives that succeeded.",
             prometheus::MetricType::Histogram);
};

// Own counters, from which the library's metrics are made on request: counting
// in the library takes a seventh of a small collective's time.
class CollectiveSeries final : public Metrics::Series {
 public:
  CollectiveSeries(absl::string_view op, absl::string_view backend)
      : op_(op), backend_(backend) {}

  void Finished(size_t bytes, std::chrono::nanoseconds elapsed,
                StatusCode code) override {
    if (code != StatusCode::kOk) return CountFailed(code);
    size_t bucket = 0;
    while (bucket < kDurationBounds.size() &&
           elapsed.count() > kDurationBounds[bucket]) {
      ++bucket;
    }
    const auto nanoseconds = static_cast<uint64_t>(elapsed.count());
    for (Owned& each : owned_) {
      if (each.owner.load(std::memory_order_relaxed) != ThisThread()) continue;
      Add(each.counts.buckets[bucket], 1);
      Add(each.counts.nanoseconds, nanoseconds);
      Add(each.counts.bytes, bytes);
      return;
    }
    CountNotOwned(bucket, nanoseconds, bytes);
  }

  // Adds all metrics that have a value.
  void AddTo(CollectiveFamilies& families) const {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const auto& [code, count] : failed_) AddCount(code, count, families);
    }
    prometheus::ClientMetric durations = Labelled({});
    uint64_t count = 0;
    for (size_t bucket = 0; bucket <= kDurationBounds.size(); ++bucket) {
      count += Sum([&](const Counts& counts) -> const Count& {
        return counts.buckets[bucket];
      });
      const double bound =
          bucket == kDurationBounds.size()
              ? std::numeric_limits<double>::infinity()
              : static_cast<double>(kDurationBounds[bucket]) / 1e9;
      durations.histogram.bucket.push_back({count, bound});
    }
    if (count == 0) return;
    AddCount(StatusCode::kOk, count, families);
    durations.histogram.sample_count = count;
    durations.histogram.sample_sum =
        static_cast<double>(Sum(&Counts::nanoseconds)) / 1e9;
    families.durations.metric.push_back(std::move(durations));
    prometheus::ClientMetric bytes = Labelled({});
    bytes.counter.value = static_cast<double>(Sum(&Counts::bytes));
    families.bytes.metric.push_back(std::move(bytes));
  }

 private:
  using Count = std::atomic<uint64_t>;
  // Successful collectives: their number, by bucket of kDurationBounds; sums.
  struct Counts {
    std::array<Count, kDurationBounds.size() + 1> buckets = {};
    Count nanoseconds = 0;
    Count bytes = 0;
  };

  // Counters of one thread, on cache lines of their own.
  struct alignas(64) Owned {
    // Null: free.
    std::atomic<const void*> owner = nullptr;
    Counts counts;
  };

  // Identifies a thread by the address of its thread-local variables. Only a
  // thread that begins after its end, and sees its writes, can have the same.
  static const void* ThisThread() { return __builtin_thread_pointer(); }

  // Not inlined: a function that calls others saves registers, which would slow
  // the usual case.
  [[gnu::noinline]] void CountFailed(StatusCode code) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++failed_[code];
  }
  // For a thread without counters: it owns the first free ones from now on, or,
  // if there are none, counts together with others.
  [[gnu::noinline]] void CountNotOwned(size_t bucket, uint64_t nanoseconds,
                                       size_t bytes) {
    Counts* counts = &together_;
    for (Owned& each : owned_) {
      const void* owner = each.owner.load(std::memory_order_relaxed);
      // An exchange would take the cache line away even if it fails.
      if (owner != nullptr ||
          !each.owner.compare_exchange_strong(owner, ThisThread(),
                                              std::memory_order_relaxed)) {
        continue;
      }
      counts = &each.counts;
      break;
    }
    counts->buckets[bucket].fetch_add(1, std::memory_order_relaxed);
    counts->nanoseconds.fetch_add(nanoseconds, std::memory_order_relaxed);
    counts->bytes.fetch_add(bytes, std::memory_order_relaxed);
  }

  // Adds to a counter that only this thread writes.
  static void Add(Count& count, uint64_t more) {
    count.store(count.load(std::memory_order_relaxed) + more,
                std::memory_order_relaxed);
  }
  // The sum over all threads.
  template <typename Which>
  uint64_t Sum(const Which& which) const {
    uint64_t sum =
        std::invoke(which, together_).load(std::memory_order_relaxed);
    for (const Owned& each : owned_) {
      sum += std::invoke(which, each.counts).load(std::memory_order_relaxed);
    }
    return sum;
  }

  prometheus::ClientMetric Labelled(absl::string_view code) const {
    prometheus::ClientMetric metric;
    metric.label.push_back({"backend", backend_});
    if (!code.empty()) metric.label.push_back({"code", std::string(code)});
    metric.label.push_back({"op", op_});
    return metric;
  }
  void AddCount(StatusCode code, uint64_t count,
                CollectiveFamilies& families) const {
    prometheus::ClientMetric metric = Labelled(StatusCodeToString(code));
    metric.counter.value = static_cast<double>(count);
    families.collectives.metric.push_back(std::move(metric));
  }

  const std::string op_;
  const std::string backend_;
  // The first threads have counters of their own, where an addition takes a
  // third of the time. Mostly there are no more threads.
  std::array<Owned, 3> owned_;
  Counts together_;
  mutable std::mutex mutex_;
  std::map<StatusCode, uint64_t> failed_;
};

// A metric of DataParallels, by hook.
struct DataParallelFamily {
  const char* name;
  const char* help;
  std::atomic<int64_t> DataParallelTotals::*value;
  prometheus::MetricType type = prometheus::MetricType::Counter;
  double unit = 1e-9;
};

constexpr DataParallelFamily kDataParallelFamilies[] = {
    {"muster_data_parallel_steps_total",
     "Reduced steps of DataParallels, also those without an input.",
     &DataParallelTotals::steps, prometheus::MetricType::Counter, 1},
    {"muster_data_parallel_backward_compute_seconds_total",
     "From the first gradient of a step to the last.",
     &DataParallelTotals::compute_time},
    {"muster_data_parallel_communication_seconds_total",
     "Time in which at least one bucket was being reduced.",
     &DataParallelTotals::communication_time},
    {"muster_data_parallel_overlap_seconds_total",
     "Communication before the last gradient of a step, which is hidden.",
     &DataParallelTotals::overlap_time},
    {"muster_data_parallel_exposed_communication_seconds_total",
     "Communication after the last gradient, for which a step waits.",
     &DataParallelTotals::exposed_time},
    {"muster_data_parallel_buckets", "Buckets of gradients.",
     &DataParallelTotals::buckets, prometheus::MetricType::Gauge, 1},
    {"muster_data_parallel_bucket_bytes", "Bytes of all buckets of gradients.",
     &DataParallelTotals::bucket_bytes, prometheus::MetricType::Gauge, 1},
};

// Adds those of the hooks that were used.
void AddDataParallels(std::vector<prometheus::MetricFamily>& families) {
  for (const DataParallelFamily& each : kDataParallelFamilies) {
    prometheus::MetricFamily family;
    family.name = each.name;
    family.help = each.help;
    family.type = each.type;
    for (size_t hook = 0; hook < kDataParallelHooks.size(); ++hook) {
      const DataParallelTotals& totals = data_parallel_totals[hook];
      if (totals.steps == 0 && totals.buckets == 0) continue;
      prometheus::ClientMetric metric;
      metric.label.push_back({"hook", std::string(kDataParallelHooks[hook])});
      const double value =
          static_cast<double>((totals.*each.value).load()) * each.unit;
      (each.type == prometheus::MetricType::Gauge ? metric.gauge.value
                                                  : metric.counter.value) =
          value;
      family.metric.push_back(std::move(metric));
    }
    if (!family.metric.empty()) families.push_back(std::move(family));
  }
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
        running_(AddGauge("muster_dataplane_collective_running_seconds",
                          "How long the oldest collective, send or receive "
                          "that runs has been running; 0 when none does.")),
        refused_connections_(
            prometheus::BuildCounter()
                .Name("muster_dataplane_refused_connections_total")
                .Help("Connections to the ports of this process's groups that "
                      "did not show in time that they are of the group.")
                .Register(registry_)
                .Add({})),
        cpu_seconds_(
            prometheus::BuildCounter()
                .Name("process_cpu_seconds_total")
                .Help("User and system CPU time of the process in seconds.")
                .Register(registry_)
                .Add({})),
        open_fds_(AddGauge("process_open_fds", "Open file descriptors.")),
        resident_bytes_(AddGauge("process_resident_memory_bytes",
                                 "Resident memory in bytes.")) {
    build_info_.Add({{"version", MUSTER_VERSION}}).Set(1);
    rank_.Set(-1);
    AddGauge("process_start_time_seconds",
             "When the process began to count, in seconds since the epoch.")
        .Set(std::chrono::duration<double>(
                 std::chrono::system_clock::now().time_since_epoch())
                 .count());
  }

  Series& GetSeries(absl::string_view op, absl::string_view backend) override {
    const std::lock_guard<std::mutex> lock(series_mutex_);
    auto& series = series_[{std::string(op), std::string(backend)}];
    if (series == nullptr) {
      series = std::make_unique<CollectiveSeries>(op, backend);
    }
    return *series;
  }

  void SetRank(int rank, int world_size) override {
    rank_.Set(rank);
    world_size_.Set(world_size);
  }

  void SetRunning(std::chrono::milliseconds running_for) override {
    running_.Set(std::chrono::duration<double>(running_for).count());
  }

  std::string Render() const override {
    // A counter only increases: each scrape adds the use since the last one,
    // one scrape at a time.
    const std::lock_guard<std::mutex> lock(render_mutex_);
    const base::ProcessUsage usage = base::ReadProcessUsage();
    cpu_seconds_.Increment(usage.cpu_seconds - cpu_seconds_.Value());
    refused_connections_.Increment(
        static_cast<double>(dataplane::refused_connections.load()) -
        refused_connections_.Value());
    open_fds_.Set(usage.open_fds);
    resident_bytes_.Set(usage.resident_bytes);
    std::vector<prometheus::MetricFamily> families = registry_.Collect();
    CollectiveFamilies collectives;
    {
      const std::lock_guard<std::mutex> lock(series_mutex_);
      for (const auto& [names, series] : series_) series->AddTo(collectives);
    }
    for (prometheus::MetricFamily* const family :
         {&collectives.collectives, &collectives.bytes,
          &collectives.durations}) {
      if (!family->metric.empty()) families.push_back(std::move(*family));
    }
    AddDataParallels(families);
    return prometheus::TextSerializer().Serialize(families);
  }

 private:
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
  prometheus::Gauge& running_;
  prometheus::Counter& refused_connections_;
  prometheus::Counter& cpu_seconds_;
  prometheus::Gauge& open_fds_;
  prometheus::Gauge& resident_bytes_;
  mutable std::mutex render_mutex_;
  mutable std::mutex series_mutex_;
  // By collective and backend.
  std::map<std::pair<std::string, std::string>,
           std::unique_ptr<CollectiveSeries>>
      series_;
};

}  // namespace

std::unique_ptr<Metrics> Metrics::Create() {
  return std::make_unique<PrometheusMetrics>();
}

}  // namespace muster::worker
