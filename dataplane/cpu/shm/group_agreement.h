#ifndef MUSTER_DATAPLANE_CPU_SHM_GROUP_AGREEMENT_H_
#define MUSTER_DATAPLANE_CPU_SHM_GROUP_AGREEMENT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "dataplane/collective.h"
#include "dataplane/cpu/engine/engine.h"
#include "dataplane/cpu/shm/segment.h"

namespace muster::dataplane::shm {

// Lets the ranks of a group agree on something outside its collectives. All
// ranks make the same calls, in one order with the collectives. Unless stated
// otherwise, an error is one of a collective: other ranks may have a different
// one, or none, and the group is broken.
class GroupAgreement {
 public:
  // A rank that cannot do what all were to do, and why: the same on all ranks.
  struct Refusal {
    int rank = 0;
    std::string why = {};

    // "rank 3: no memory".
    std::string Describe() const;
  };

  // `engine` lives longer. Texts call it `step`.
  GroupAgreement(cpu::Engine& engine, Step step, Instant deadline)
      : engine_(engine),
        step_(step),
        deadline_(deadline),
        timeout_(std::max(Clock::duration(0), deadline - Clock::now())) {}

  int rank() const { return engine_.transport().rank(); }
  int world_size() const { return engine_.transport().world_size(); }

  // What each of them says, by rank: bytes alone.
  template <typename Words>
  StatusOr<std::vector<Words>> Hear(Words own) {
    std::vector<Words> all(world_size());
    Status status = Gather(&own, all.data(), sizeof(Words));
    if (!status.ok()) return status;
    return all;
  }

  // The first rank whose `own` is an error; nothing if there is none.
  StatusOr<std::optional<Refusal>> FindRefusal(const Status& own);

  // What became of a segment.
  struct Shared {
    // Null: the reason why none of the ranks has one.
    std::unique_ptr<Segment> segment = nullptr;
    Refusal refusal = {};
  };

  // A segment of this rank and others: rank `maker`, which is one of them,
  // makes it. All ranks of the group have one, or none. `file`, `reserved`: see
  // Segment.
  StatusOr<Shared> Share(size_t bytes, int maker,
                         const std::shared_ptr<SegmentFile>& file = nullptr,
                         std::optional<size_t> reserved = std::nullopt);

  // Of ranks that all fail, each with `failure`, which ends the group: nobody
  // does that before all know why.
  Status End(const Status& failure) {
    Hear(uint8_t{0}).status().IgnoreError();
    return failure;
  }

 private:
  Status Gather(void* own, void* all, size_t bytes);

  cpu::Engine& engine_;
  const Step step_;
  const Instant deadline_;
  // Of all of it.
  const Clock::duration timeout_;
};

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_GROUP_AGREEMENT_H_
