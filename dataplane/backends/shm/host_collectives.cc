#include "dataplane/backends/shm/host_collectives.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/backends/shm/single_copy.h"
#include "dataplane/backends/shm/staged.h"

namespace muster::dataplane::shm_internal {
namespace {

// Beyond, tensors in symmetric memory are looked for there.
constexpr size_t kRegionBytesMin = 8 << 10;

// How large it is, where all ranks know the same; else 0.
size_t KnownBytes(const Collective& collective) {
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllGatherIntoTensor:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kReduceScatterTensor:
      return collective.bytes();
    default:
      return 0;
  }
}

}  // namespace

HostCollectives::HostCollectives(std::unique_ptr<Segment> segment,
                                 std::shared_ptr<const Regions> regions,
                                 gloo_internal::Mesh& mesh,
                                 const HostTraits& traits)
    : segment_(std::move(segment)),
      regions_(std::move(regions)),
      board_(segment_->memory(), mesh.rank(), mesh.world_size(),
             traits.is_crowded,
             [&mesh](int rank) { mesh.set_waiting_for(rank); }),
      algorithm_(traits.algorithm),
      shop_{.board = board_,
            .mesh = mesh,
            .regions = *regions_,
            .reads_memory = traits.reads_memory} {}

absl::Status HostCollectives::Run(const Collective& collective) {
  const History after = Rounds(shop_, collective).After();
  const absl::Status done = RunOneWay(collective);
  shop_.history = after;
  if (!done.ok()) return done;
  // All that was needed had come, but the collective has failed elsewhere: a
  // group ends on all ranks or on none.
  const int failed = board_.FindFailed();
  return failed < 0 ? done : shop_.mesh.Gone(failed);
}

// Every rank comes to the same decisions.
absl::Status HostCollectives::RunOneWay(const Collective& collective) {
  absl::StatusOr<bool> done = false;
  if (algorithm_ != Algorithm::kStaged && regions_->any() &&
      KnownBytes(collective) >= kRegionBytesMin) {
    done = RunSingleCopy(shop_, collective, Where::kInRegions);
  }
  if (done.ok() && !*done && algorithm_ == Algorithm::kSingleCopy) {
    done = RunSingleCopy(shop_, collective, Where::kAnywhere);
  }
  if (!done.ok() || *done) return done.status();
  return RunStaged(shop_, collective);
}

}  // namespace muster::dataplane::shm_internal
