#ifndef MUSTER_DATAPLANE_DECORATORS_METERING_H_
#define MUSTER_DATAPLANE_DECORATORS_METERING_H_

#include <memory>

#include "dataplane/backend.h"
#include "dataplane/metrics.h"

namespace muster::dataplane {

// Reports every collective of `inner` to `metrics` when it completes.
class Metering : public BackendDecorator {
 public:
  Metering(std::unique_ptr<Backend> inner, std::shared_ptr<Metrics> metrics);

  std::shared_ptr<Work> Start(const Collective& collective) override;
  Ending Run(const Collective& collective, ReleasableLock& order) override;

 private:
  const std::shared_ptr<Metrics> metrics_;
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_DECORATORS_METERING_H_
