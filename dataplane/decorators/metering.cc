#include "dataplane/decorators/metering.h"

#include <chrono>
#include <memory>
#include <utility>

namespace muster::dataplane {

Metering::Metering(std::unique_ptr<Backend> inner,
                   std::shared_ptr<Metrics> metrics)
    : BackendDecorator(std::move(inner)), metrics_(std::move(metrics)) {}

std::shared_ptr<Work> Metering::Start(const Collective& collective) {
  std::shared_ptr<Work> work = inner().Start(collective);
  // Names are literals, so the callback may outlive this object.
  work->OnCompletion(
      [metrics = metrics_, op = CollectiveKindName(collective.kind),
       backend = name(), bytes = collective.bytes(),
       started = collective.started](const absl::Status& status) {
        const std::chrono::duration<double> elapsed = Clock::now() - started;
        metrics->CollectiveFinished(op, backend, bytes, elapsed.count(),
                                    status.code());
      });
  return work;
}

Ending Metering::Run(const Collective& collective, ReleasableLock& order) {
  Ending ending = inner().Run(collective, order);
  const std::chrono::duration<double> elapsed = ending.at - collective.started;
  metrics_->CollectiveFinished(CollectiveKindName(collective.kind), name(),
                               collective.bytes(), elapsed.count(),
                               ending.status.code());
  return ending;
}

}  // namespace muster::dataplane
