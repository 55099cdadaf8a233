#include "dataplane/decorators/metering.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

namespace muster::dataplane {
namespace {

// The clocks that were read need not agree to the last microsecond: QuickNow.
std::chrono::nanoseconds Elapsed(Instant started, Instant ended) {
  return std::max(ended - started, Instant::duration::zero());
}

}  // namespace

Metering::Metering(std::unique_ptr<Backend> inner,
                   std::shared_ptr<Metrics> metrics)
    : BackendDecorator(std::move(inner)), metrics_(std::move(metrics)) {}

inline Metrics::Series& Metering::SeriesOf(CollectiveKind kind) {
  Metrics::Series* const known =
      series_[static_cast<size_t>(kind)].load(std::memory_order_acquire);
  return known != nullptr ? *known : FindSeries(kind);
}

Metrics::Series& Metering::FindSeries(CollectiveKind kind) {
  Metrics::Series& series =
      metrics_->SeriesOf(CollectiveKindName(kind), name());
  series_[static_cast<size_t>(kind)].store(&series, std::memory_order_release);
  return series;
}

std::shared_ptr<Work> Metering::Start(const Collective& collective) {
  std::shared_ptr<Work> work = inner().Start(collective);
  // The callback may outlive this object.
  work->OnCompletion([metrics = metrics_, &series = SeriesOf(collective.kind),
                      bytes = collective.bytes(), started = collective.started](
                         const absl::Status& status) {
    series.Finished(bytes, Elapsed(started, Clock::now()), status.code());
  });
  return work;
}

Ending Metering::Run(const Collective& collective, ReleasableLock& order) {
  Ending ending = inner().Run(collective, order);
  // To ask a status for its code is a call.
  SeriesOf(collective.kind)
      .Finished(
          collective.bytes(), Elapsed(collective.started, ending.at),
          ending.status.ok() ? absl::StatusCode::kOk : ending.status.code());
  return ending;
}

}  // namespace muster::dataplane
