#include "dataplane/backends/shm/host_collectives.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/backends/shm/single_copy.h"

namespace muster::dataplane::shm_internal {
HostCollectives::HostCollectives(std::unique_ptr<Segment> segment,
                                 gloo_internal::Mesh& mesh,
                                 const HostTraits& traits)
    : segment_(std::move(segment)),
      board_(segment_->memory(), mesh.rank(), mesh.world_size(),
             traits.is_crowded,
             [&mesh](int rank) { mesh.set_waiting_for(rank); }),
      staged_rounds_max_(traits.staged_rounds_max),
      shop_{.board = board_, .mesh = mesh} {}

absl::Status HostCollectives::Run(const Collective& collective) {
  const History after = Rounds(shop_, collective).After();
  absl::StatusOr<bool> done = RunStaged(shop_, collective, staged_rounds_max_);
  if (done.ok() && !*done) done = RunSingleCopy(shop_, collective);
  // In memory that cannot be read.
  if (done.ok() && !*done) done = RunStaged(shop_, collective, kAnyRounds);
  shop_.history = after;
  return done.status();
}

}  // namespace muster::dataplane::shm_internal
