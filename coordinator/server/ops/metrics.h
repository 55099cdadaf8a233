#ifndef MUSTER_COORDINATOR_SERVER_OPS_METRICS_H_
#define MUSTER_COORDINATOR_SERVER_OPS_METRICS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "coordinator/core/instant.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/outbox.h"
#include "coordinator/server/method.h"
#include "coordinator/storage/fleet.h"
#include "muster/base/status.h"

namespace muster::coordinator {

// The current totals of the coordinator over all jobs, read at each scrape.
struct Gauges {
  int64_t jobs = 0;
  int64_t sessions = 0;
  int64_t relays = 0;
  int64_t keys = 0;
  int64_t store_bytes = 0;
  int64_t queue_items = 0;
  int64_t waiters = 0;
  int64_t open_barriers = 0;
  int64_t groups = 0;
  int64_t uncommitted_steps = 0;
  std::array<int64_t, core::kMemberStateCount> members{};  // by MemberState
  // TLS and token files whose present contents are refused.
  int64_t refused_files = 0;
  // Seconds since 1970; none: there is no such expiry.
  std::optional<int64_t> certificate_expiry;
  std::optional<int64_t> token_expiry;
  // None: the coordinator shares its jobs with no others.
  std::optional<FleetCounts> fleet;
};

// Metrics counts events and renders the counts for Prometheus. Label values
// come from closed sets only, never from job, key, member or barrier names.
// Thread-safe.
class Metrics {
 public:
  explicit Metrics(std::function<Gauges()> gauges);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Counts `count` answered calls, each of which took `duration`.
  void CountCalls(Method method, StatusCode code, core::Duration duration,
                  int64_t count = 1);

  // Counts a stream's message with that many operations.
  void CountBatch(int64_t operations);

  void CountNotice(const core::Notice& notice);
  void CountEvent(core::EventKind kind, int64_t count);

  // Counts one write to the storage.
  void CountCommit(core::Duration took, int64_t steps, int64_t records);

  // Returns the metrics in the text exposition format.
  std::string Scrape() const;

 private:
  struct Families;
  const std::unique_ptr<Families> families_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_OPS_METRICS_H_
