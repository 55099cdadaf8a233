#ifndef MUSTER_DATAPLANE_CPU_SHM_GROUP_AGREEMENT_H_
#define MUSTER_DATAPLANE_CPU_SHM_GROUP_AGREEMENT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dataplane/cpu/engine/engine.h"
#include "dataplane/cpu/shm/segment.h"
#include "muster/base/clock.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane::shm {

// Lets the ranks of a group agree on something outside its collectives. All
// ranks make the same calls, in one order with the collectives. Unless stated
// otherwise, an error is as in a collective: other ranks may have a different
// one, or none, and the group is broken.
class GroupAgreement {
 public:
  // A rank that cannot take part, and its reason; the same on all ranks.
  struct Refusal {
    int rank = 0;
    std::string why = {};

    // "rank 3: no memory".
    std::string Describe() const;
  };

  // `engine` must live longer. Error texts name `step`.
  GroupAgreement(cpu::Engine& engine, Step step, Instant deadline)
      : engine_(engine),
        step_(step),
        deadline_(deadline),
        timeout_(std::max(Clock::duration(0), deadline - Clock::now())) {}

  int rank() const { return engine_.transport().rank(); }
  int world_size() const { return engine_.transport().world_size(); }

  // Gathers `own`, a plain value, from all ranks. Returns the values by rank.
  template <typename Words>
  StatusOr<std::vector<Words>> AllGather(Words own) {
    std::vector<Words> all(world_size());
    Status status = Gather(&own, all.data(), sizeof(Words));
    if (!status.ok()) return status;
    return all;
  }

  // The first rank whose `own` is an error, or nullopt.
  StatusOr<std::optional<Refusal>> FindRefusal(const Status& own);

  // The result of Share.
  struct Shared {
    // Null if no rank has a segment; `refusal` is the reason.
    std::unique_ptr<Segment> segment = nullptr;
    Refusal refusal = {};
  };

  // Makes a segment that this rank shares with others; rank `maker`, one of
  // them, creates it. Either all ranks of the group get one, or none. `file`,
  // `reserved`: see Segment.
  StatusOr<Shared> Share(size_t bytes, int maker,
                         const std::shared_ptr<SegmentFile>& file = nullptr,
                         std::optional<size_t> reserved = std::nullopt);

  // Call it if all ranks fail, each with its `failure`. Returns it when all
  // ranks have come here, so that none ends the group before the others know
  // the reason.
  Status End(const Status& failure) {
    AllGather(uint8_t{0}).status().IgnoreError();
    return failure;
  }

 private:
  Status Gather(void* own, void* all, size_t bytes);

  cpu::Engine& engine_;
  const Step step_;
  const Instant deadline_;
  // For all calls together.
  const Clock::duration timeout_;
};

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_GROUP_AGREEMENT_H_
