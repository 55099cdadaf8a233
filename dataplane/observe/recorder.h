#ifndef MUSTER_DATAPLANE_OBSERVE_RECORDER_H_
#define MUSTER_DATAPLANE_OBSERVE_RECORDER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "dataplane/observe/flight_recorder.h"
#include "dataplane/observe/metrics.h"
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane {

// Recorder is a decorator that writes every collective, send and receive of
// `inner` to a flight recorder, and reports it to the metrics when it
// completes.
class Recorder : public BackendDecorator {
 public:
  // `metrics` may be null. `on_failure`, if set, is called once when the group
  // fails, before its running collectives fail.
  Recorder(std::unique_ptr<Backend> inner,
           std::shared_ptr<FlightRecorder> recorder,
           FlightRecorder::Group group,
           std::shared_ptr<Metrics> metrics = nullptr,
           std::function<void(const Status&)> on_failure = nullptr);
  ~Recorder() override;

  std::shared_ptr<Work> Start(const Collective& collective) override;
  std::unique_ptr<Prepared> Prepare(const Collective& collective) override {
    return inner().Prepare(collective);
  }
  Ticket Enter(const Collective& collective) override;
  Completion Run(const Collective& collective, Prepared* prepared,
                 const Ticket& ticket) override;
  void Abort(Status cause) override;

 private:
  // Adds a record of `collective` and returns its number, or -1.
  int64_t Record(const Collective& collective);
  // Requires that metrics_ is not null.
  inline Metrics::Series& GetSeries(CollectiveKind kind);
  Metrics::Series& MakeSeries(CollectiveKind kind);

  const std::shared_ptr<FlightRecorder> recorder_;
  const std::shared_ptr<FlightRecorder::GroupRecord> group_;
  const std::shared_ptr<Metrics> metrics_;
  // By kind; null if the kind has not run. To find a series by its names takes
  // a good part of a small collective's time.
  std::array<std::atomic<Metrics::Series*>, kCollectiveKindCount> series_ = {};
  const std::function<void(const Status&)> on_failure_;
  std::atomic<bool> failed_{false};
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_OBSERVE_RECORDER_H_
