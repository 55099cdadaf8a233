// Batches the events that tell members which others have left.

#ifndef MUSTER_COORDINATOR_CORE_DEPARTURE_BATCHER_H_
#define MUSTER_COORDINATOR_CORE_DEPARTURE_BATCHER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/btree_set.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/outbox.h"
#include "muster/base/status.h"

namespace muster::coordinator::core {

// The longest time for which departures are batched, as a multiple of the
// shortest and as an absolute time.
inline constexpr int kDeparturePauseGrowth = 10;
inline constexpr Duration kDeparturePauseMax = std::chrono::seconds(1);

// The number of departures in one batch that are described, and the largest
// size of each description's texts, in bytes.
inline constexpr size_t kDescribedDeparturesMax = 8;
inline constexpr int64_t kDepartureTextMax = 256;

// DepartureBatcher records which members have left the newest generation, and
// which of these departures the other members do not know yet.
//
// When a job of n members ends, all n leave. If each departure were sent at
// once to all that remain, that would be n * n / 2 events. So a departure is
// sent at once only if there was none for twice the longest pause. Those that
// follow are sent together, in a few batches, to the members that remain by
// then. Pauses grow with the number of members, as does the cost of a batch.
class DepartureBatcher {
 public:
  // A member has left the generation in which it had `event.rank`. Departures
  // after a batch are gathered for `pause`. The pause doubles with each batch,
  // up to kDeparturePauseGrowth times `pause`.
  void Add(Event event, Duration pause, Instant now);

  // If the next batch is due, returns its event and counts its departures as
  // told.
  std::optional<Event> TakeDue(Instant now);

  // Like TakeDue, for a batch that need not be due.
  std::optional<Event> TakeUntold(Instant now);

  // The time when the next batch is due; none: there is no next batch.
  std::optional<Instant> NextDeadline() const;

  // One event for all departures that were told in this generation, for members
  // that may have missed them; none: there were none. Those members get later
  // batches like the others.
  std::optional<Event> All();

  // A new generation begins. There must be no untold departure.
  void Reset();

  // For new batchers, after a restart: a member has left the newest generation.
  // The departure counts as told: members that come back ask for All.
  void Restore(const Event& event) { Remember(event); }

  // `newest` is the generation of the departures. Errors: INTERNAL.
  Status CheckInvariants(Generation newest) const;

 private:
  void Remember(const Event& event);

  std::vector<Event> untold_;
  Instant due_;  // if untold_ is not empty
  std::optional<Instant> told_at_;
  Duration pause_{};  // between told_at_ and the next batch
  // Set by the first departure after a quiet time.
  Duration pause_min_{};
  Duration pause_max_{};

  // The told departures of the newest generation.
  absl::btree_set<Rank> left_;
  std::vector<Event> described_;  // some of them
  std::optional<Event> all_;      // what All returns; none: not made yet
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_DEPARTURE_BATCHER_H_
