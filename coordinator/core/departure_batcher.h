// Batches the events that tell members which others have left in peace.

#ifndef MUSTER_COORDINATOR_CORE_DEPARTURE_BATCHER_H_
#define MUSTER_COORDINATOR_CORE_DEPARTURE_BATCHER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/btree_set.h"
#include "base/status.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/outbox.h"

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
// which of these the others have not been told of.
//
// When a job of n members ends, all n leave. If each departure were sent at
// once to all that remain, that would be n * n / 2 events. So a departure is
// sent at once only if there was none for twice the longest pause. Those that
// follow are sent together, in a few batches, to the members that remain by
// then. Pauses grow with the number of members, as does the cost of a batch.
class DepartureBatcher {
 public:
  // A member has left the generation in which it had `event.rank`. After this
  // is told, the next ones are gathered for `pause`, for twice as long each
  // time that some were, and for kDeparturePauseGrowth times as long at most.
  void Add(Event event, Duration pause, Instant now);

  // What the others are to be told now, and it is taken for told: nothing
  // before its time.
  std::optional<Event> TakeDue(Instant now);

  // The same, whether its time has come or not.
  std::optional<Event> TakeUntold(Instant now);

  // When TakeDue has something; none: nothing is untold.
  std::optional<Instant> NextDeadline() const;

  // All of the generation that the others have been told of, for who may have
  // missed it; none: nobody. It will be told of the rest with the others.
  std::optional<Event> All();

  // A new generation begins. Nothing may be untold.
  void Reset();

  // Of new departures, after a restart: a member that has left the newest
  // generation. It is taken for told: those that come back will ask for All.
  void Restore(const Event& event) { Remember(event); }

  // `newest`: the generation that they are of. Possible errors: INTERNAL.
  Status CheckInvariants(Generation newest) const;

 private:
  void Remember(const Event& event);

  std::vector<Event> untold_;
  Instant due_;  // where some are untold
  std::optional<Instant> told_at_;
  Duration pause_{};  // after told_at_
  // By the members that there were when the first of them left.
  Duration pause_min_{};
  Duration pause_max_{};

  // Of the newest generation, those that are told.
  absl::btree_set<Rank> left_;
  std::vector<Event> described_;  // some of them
  std::optional<Event> all_;      // what All returns; none: not made yet
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_DEPARTURE_BATCHER_H_
