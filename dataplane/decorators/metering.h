#ifndef MUSTER_DATAPLANE_DECORATORS_METERING_H_
#define MUSTER_DATAPLANE_DECORATORS_METERING_H_

#include <array>
#include <atomic>
#include <memory>

#include "dataplane/backend.h"
#include "dataplane/collective.h"
#include "dataplane/metrics.h"

namespace muster::dataplane {

// Reports every collective of `inner` to `metrics` when it completes.
class Metering : public BackendDecorator {
 public:
  Metering(std::unique_ptr<Backend> inner, std::shared_ptr<Metrics> metrics);

  std::shared_ptr<Work> Start(const Collective& collective) override;
  Ending Run(const Collective& collective, ReleasableLock& order) override;

 private:
  inline Metrics::Series& SeriesOf(CollectiveKind kind);
  Metrics::Series& FindSeries(CollectiveKind kind);

  const std::shared_ptr<Metrics> metrics_;
  // By kind, of those that have run: to find one by its names takes a good part
  // of a small collective's time.
  std::array<std::atomic<Metrics::Series*>, kCollectiveKindCount> series_ = {};
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_DECORATORS_METERING_H_
