#include "coordinator/server/ops/metrics.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <utility>
#include <vector>

#include "base/process_usage.h"
#include "muster/base/status.h"
#include "muster/version.h"
#include "prometheus/collectable.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace muster::coordinator {
namespace {

constexpr int kCodeCount = 17;
constexpr int kEventKindCount = 6;
const char* const kBarrierOutcomes[] = {"released", "timed_out", "member_lost",
                                        "conflict", "aborted"};
constexpr int kBarrierOutcomeCount = 5;

// From a store operation (microseconds) to a call that waits for minutes.
const std::vector<double>& CallBuckets() {
  static const auto* const kBuckets = new std::vector<double>{
      5e-6, 2e-5, 1e-4, 5e-4, 2e-3, 1e-2, 5e-2, 0.25, 1, 5, 30, 300};
  return *kBuckets;
}

const std::vector<double>& WaitBuckets() {
  static const auto* const kBuckets = new std::vector<double>{
      1e-4, 5e-4, 2e-3, 1e-2, 5e-2, 0.25, 1, 5, 30, 300};
  return *kBuckets;
}

const std::vector<double>& BatchBuckets() {
  static const auto* const kBuckets = new std::vector<double>{
      1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096};
  return *kBuckets;
}

double Seconds(core::Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// The outcome of a barrier notice, -1 for other notices.
int FindBarrierOutcome(core::NoticeKind kind) {
  switch (kind) {
    case core::NoticeKind::kBarrierReleased:
      return 0;
    case core::NoticeKind::kBarrierTimedOut:
      return 1;
    case core::NoticeKind::kBarrierMemberLost:
      return 2;
    case core::NoticeKind::kBarrierConflict:
      return 3;
    case core::NoticeKind::kBarrierAborted:
      return 4;
    default:
      return -1;
  }
}

prometheus::MetricFamily GaugeFamily(const char* name, const char* help,
                                     double value) {
  prometheus::MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = prometheus::MetricType::Gauge;
  family.metric.emplace_back();
  family.metric.back().gauge.value = value;
  return family;
}

prometheus::MetricFamily GaugeFamily(const char* name, const char* help,
                                     int64_t value) {
  return GaugeFamily(name, help, static_cast<double>(value));
}

prometheus::MetricFamily CounterFamily(
    const char* name, const char* help, const char* label,
    const std::vector<std::pair<std::string, double>>& values) {
  prometheus::MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = prometheus::MetricType::Counter;
  for (const auto& [label_value, value] : values) {
    family.metric.emplace_back();
    if (label != nullptr) {
      family.metric.back().label.push_back({label, label_value});
    }
    family.metric.back().counter.value = value;
  }
  return family;
}

std::vector<prometheus::MetricFamily> FleetFamilies(const FleetCounts& fleet) {
  std::vector<std::pair<std::string, double>> errors;
  for (const auto& [code, count] : fleet.errors) {
    errors.emplace_back(StatusCodeToString(code), count);
  }
  const auto count = [](int64_t value) { return static_cast<double>(value); };
  return {
      GaugeFamily("muster_coordinator_fleet_members",
                  "Coordinators that share the jobs.", fleet.members),
      GaugeFamily("muster_coordinator_shards_owned",
                  "Shards of jobs that this coordinator serves.", fleet.owned),
      CounterFamily("muster_coordinator_shard_changes_total",
                    "Shards that this coordinator began to serve, gave to "
                    "another, and lost.",
                    "change",
                    {{"acquired", count(fleet.acquired)},
                     {"handed_over", count(fleet.handed_over)},
                     {"lost", count(fleet.lost)}}),
      CounterFamily("muster_coordinator_fenced_writes_total",
                    "Writes that etcd refused, because another coordinator had "
                    "the shard.",
                    nullptr, {{"", count(fleet.fenced_writes)}}),
      CounterFamily("muster_coordinator_etcd_errors_total",
                    "Failed requests to etcd.", "code", errors),
      CounterFamily("muster_coordinator_shard_load_seconds_total",
                    "From the ownership of a shard to its service, in all.",
                    nullptr, {{"", Seconds(fleet.load_time)}})};
}

// The same names and meanings as in Prometheus' own client libraries.
std::vector<prometheus::MetricFamily> ProcessFamilies() {
  const base::ProcessUsage usage = base::ReadProcessUsage();
  prometheus::MetricFamily cpu;
  cpu.name = "process_cpu_seconds_total";
  cpu.help = "User and system CPU time of the process in seconds.";
  cpu.type = prometheus::MetricType::Counter;
  cpu.metric.emplace_back();
  cpu.metric.back().counter.value = usage.cpu_seconds;
  return {
      std::move(cpu),
      GaugeFamily("process_open_fds", "Open file descriptors.", usage.open_fds),
      GaugeFamily("process_max_fds", "The most there may be of them.",
                  usage.max_fds),
      GaugeFamily("process_resident_memory_bytes", "Resident memory in bytes.",
                  usage.resident_bytes),
      GaugeFamily("process_virtual_memory_bytes", "Virtual memory in bytes.",
                  usage.virtual_bytes),
      GaugeFamily("process_start_time_seconds",
                  "When the process started, in seconds since 1970.",
                  usage.start_time_seconds)};
}

prometheus::MetricFamily MembersFamily(const Gauges& gauges) {
  prometheus::MetricFamily family;
  family.name = "muster_coordinator_members";
  family.help = "Members by state; departed ones while they are remembered.";
  family.type = prometheus::MetricType::Gauge;
  for (int i = 0; i < core::kMemberStateCount; ++i) {
    const auto state = static_cast<core::MemberState>(i);
    family.metric.emplace_back();
    family.metric.back().label.push_back(
        {"state", std::string(core::MemberStateName(state))});
    family.metric.back().gauge.value = static_cast<double>(gauges.members[i]);
  }
  return family;
}

std::vector<prometheus::MetricFamily> Families(const Gauges& g) {
  std::vector<prometheus::MetricFamily> families = {
      GaugeFamily("muster_coordinator_jobs", "Jobs that have state.", g.jobs),
      GaugeFamily("muster_coordinator_sessions",
                  "Open sessions, on streams of their own or by relays.",
                  g.sessions),
      GaugeFamily("muster_coordinator_relays",
                  "Streams that carry the sessions of a host.", g.relays),
      GaugeFamily("muster_coordinator_keys", "Keys in all stores.", g.keys),
      GaugeFamily("muster_coordinator_store_bytes",
                  "Bytes of keys and values in all stores.", g.store_bytes),
      GaugeFamily("muster_coordinator_queue_items", "Items in all queues.",
                  g.queue_items),
      GaugeFamily("muster_coordinator_waiters", "Calls that wait.", g.waiters),
      GaugeFamily("muster_coordinator_open_barriers",
                  "Barrier instances that wait for somebody.", g.open_barriers),
      GaugeFamily("muster_coordinator_groups", "Registered process groups.",
                  g.groups),
      GaugeFamily("muster_coordinator_storage_uncommitted_steps",
                  "Steps that wait for the storage.", g.uncommitted_steps),
      GaugeFamily("muster_coordinator_refused_files",
                  "Files of TLS and tokens that are not taken as they are.",
                  g.refused_files),
      MembersFamily(g),
  };
  if (g.certificate_expiry.has_value()) {
    families.push_back(GaugeFamily(
        "muster_coordinator_certificate_expiry_seconds",
        "When the certificate ends, since 1970.", *g.certificate_expiry));
  }
  if (g.token_expiry.has_value()) {
    families.push_back(GaugeFamily("muster_coordinator_token_expiry_seconds",
                                   "When the next token expires, since 1970.",
                                   *g.token_expiry));
  }
  if (g.fleet.has_value()) {
    for (prometheus::MetricFamily& family : FleetFamilies(*g.fleet)) {
      families.push_back(std::move(family));
    }
  }
  return families;
}

}  // namespace

struct Metrics::Families {
  // One method's counters. A code's counter is made when it is first used, so
  // that a scrape does not list hundreds of zeros.
  struct PerMethod {
    std::array<std::atomic<prometheus::Counter*>, kCodeCount> requests = {};
    prometheus::Histogram* duration = nullptr;
  };

  explicit Families(std::function<Gauges()> read) : gauges(std::move(read)) {
    for (int m = 0; m < kMethodCount; ++m) {
      methods[m].duration =
          &durations.Add({{"method", kMethodNames[m]}}, CallBuckets());
      RequestCounter(static_cast<Method>(m), StatusCode::kOk);
    }
    for (int i = 0; i < kBarrierOutcomeCount; ++i) {
      const prometheus::Labels labels = {{"outcome", kBarrierOutcomes[i]}};
      barriers[i] = &barriers_total.Add(labels);
      barrier_waits[i] = &barrier_wait_seconds.Add(labels, WaitBuckets());
    }
    for (int i = 0; i < kEventKindCount; ++i) {
      const absl::string_view name =
          core::EventKindName(static_cast<core::EventKind>(i));
      events[i] = &events_total.Add({{"kind", std::string(name)}});
    }
    prometheus::BuildGauge()
        .Name("muster_build_info")
        .Help("Always 1; the label tells the version.")
        .Register(registry)
        .Add({{"version", MUSTER_VERSION}})
        .Set(1);
  }

  // Family::Add returns the same counter for the same labels, so a race is
  // harmless.
  prometheus::Counter& RequestCounter(Method method, StatusCode code) {
    const int index = std::clamp(static_cast<int>(code), 0, kCodeCount - 1);
    auto& slot = methods[static_cast<int>(method)].requests[index];
    prometheus::Counter* counter = slot.load(std::memory_order_acquire);
    if (counter == nullptr) {
      counter = &requests.Add(
          {{"method", MethodName(method)},
           {"code", StatusCodeToString(static_cast<StatusCode>(index))}});
      slot.store(counter, std::memory_order_release);
    }
    return *counter;
  }

  const std::function<Gauges()> gauges;
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests =
      prometheus::BuildCounter()
          .Name("muster_coordinator_rpc_requests_total")
          .Help("Answered calls, unary and in streams.")
          .Register(registry);
  prometheus::Family<prometheus::Histogram>& durations =
      prometheus::BuildHistogram()
          .Name("muster_coordinator_rpc_duration_seconds")
          .Help("From a call's arrival to its answer, waiting included.")
          .Register(registry);
  prometheus::Histogram& batch_operations =
      prometheus::BuildHistogram()
          .Name("muster_coordinator_stream_batch_operations")
          .Help("Operations per message that a stream brought.")
          .Register(registry)
          .Add({}, BatchBuckets());
  prometheus::Family<prometheus::Counter>& barriers_total =
      prometheus::BuildCounter()
          .Name("muster_coordinator_barriers_total")
          .Help("Decided barrier instances.")
          .Register(registry);
  prometheus::Family<prometheus::Histogram>& barrier_wait_seconds =
      prometheus::BuildHistogram()
          .Name("muster_coordinator_barrier_wait_seconds")
          .Help("From a barrier instance's first arrival to its decision.")
          .Register(registry);
  prometheus::Histogram& rendezvous_seconds =
      prometheus::BuildHistogram()
          .Name("muster_coordinator_rendezvous_seconds")
          .Help("From a generation's first join to its formation.")
          .Register(registry)
          .Add({}, WaitBuckets());
  prometheus::Histogram& commit_seconds =
      prometheus::BuildHistogram()
          .Name("muster_coordinator_storage_commit_seconds")
          .Help("One write to the storage, with its sync.")
          .Register(registry)
          .Add({}, WaitBuckets());
  prometheus::Histogram& commit_steps =
      prometheus::BuildHistogram()
          .Name("muster_coordinator_storage_commit_steps")
          .Help("Steps that one write to the storage committed.")
          .Register(registry)
          .Add({}, BatchBuckets());
  prometheus::Counter& commit_records =
      prometheus::BuildCounter()
          .Name("muster_coordinator_storage_records_total")
          .Help("Records that were written or erased in the storage.")
          .Register(registry)
          .Add({});
  prometheus::Family<prometheus::Counter>& events_total =
      prometheus::BuildCounter()
          .Name("muster_coordinator_events_total")
          .Help("What members were told of others: departures, waiting.")
          .Register(registry);

  std::array<PerMethod, kMethodCount> methods;
  std::array<prometheus::Counter*, kBarrierOutcomeCount> barriers;
  std::array<prometheus::Histogram*, kBarrierOutcomeCount> barrier_waits;
  std::array<prometheus::Counter*, kEventKindCount> events;
};

Metrics::Metrics(std::function<Gauges()> gauges)
    : families_(std::make_unique<Families>(std::move(gauges))) {}

Metrics::~Metrics() = default;

void Metrics::CountCalls(Method method, StatusCode code,
                         core::Duration duration, int64_t count) {
  families_->RequestCounter(method, code).Increment(static_cast<double>(count));
  prometheus::Histogram& histogram =
      *families_->methods[static_cast<int>(method)].duration;
  const double seconds = Seconds(duration);
  if (count == 1) {
    histogram.Observe(seconds);
    return;
  }
  const std::vector<double>& bounds = CallBuckets();
  std::vector<double> increments(bounds.size() + 1, 0.0);
  const auto bucket = std::lower_bound(bounds.begin(), bounds.end(), seconds);
  increments[bucket - bounds.begin()] = static_cast<double>(count);
  histogram.ObserveMultiple(increments, seconds * static_cast<double>(count));
}

void Metrics::CountBatch(int64_t operations) {
  families_->batch_operations.Observe(static_cast<double>(operations));
}

void Metrics::CountNotice(const core::Notice& notice) {
  if (notice.kind == core::NoticeKind::kGenerationFormed) {
    families_->rendezvous_seconds.Observe(Seconds(notice.duration));
  }
  const int outcome = FindBarrierOutcome(notice.kind);
  if (outcome < 0) return;
  families_->barriers[outcome]->Increment();
  families_->barrier_waits[outcome]->Observe(Seconds(notice.duration));
}

void Metrics::CountEvent(core::EventKind kind, int64_t count) {
  families_->events[static_cast<int>(kind)]->Increment(
      static_cast<double>(count));
}

void Metrics::CountCommit(core::Duration took, int64_t steps, int64_t records) {
  families_->commit_seconds.Observe(Seconds(took));
  families_->commit_steps.Observe(static_cast<double>(steps));
  families_->commit_records.Increment(static_cast<double>(records));
}

std::string Metrics::Scrape() const {
  std::vector<prometheus::MetricFamily> all = families_->registry.Collect();
  for (std::vector<prometheus::MetricFamily> more :
       {coordinator::Families(families_->gauges()), ProcessFamilies()}) {
    std::move(more.begin(), more.end(), std::back_inserter(all));
  }
  return prometheus::TextSerializer().Serialize(all);
}

}  // namespace muster::coordinator
