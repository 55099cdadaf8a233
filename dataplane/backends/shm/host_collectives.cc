#include "dataplane/backends/shm/host_collectives.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/backends/shm/rehearsal.h"
#include "dataplane/backends/shm/single_copy.h"
#include "dataplane/backends/shm/staged.h"
#include "dataplane/backends/shm/symmetric_all_reduce.h"

namespace muster::dataplane::shm_internal {
namespace {

// At 20 GB/s they go in 50 ms, of which a rehearsal takes 0.3.
constexpr size_t kRehearsalBytes = size_t{1} << 30;

// How large it is, of all ranks' parts together, where all ranks know the same;
// else 0.
size_t KnownBytes(const Collective& collective, int world_size) {
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      return collective.tensors[0].bytes();
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllGatherIntoTensor:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kReduceScatterTensor:
      return collective.bytes();
    case CollectiveKind::kGather:
      return collective.inputs[0].bytes() * static_cast<size_t>(world_size);
    case CollectiveKind::kScatter:
      return collective.outputs[0].bytes() * static_cast<size_t>(world_size);
    default:
      return 0;
  }
}

}  // namespace

HostCollectives::HostCollectives(std::shared_ptr<Segment> segment,
                                 std::shared_ptr<const Regions> regions,
                                 gloo_internal::Mesh& mesh,
                                 const HostTraits& traits)
    : segment_(std::move(segment)),
      regions_(std::move(regions)),
      board_(segment_->memory(), mesh.rank(), mesh.world_size(), traits.board,
             [this, &mesh](int rank) {
               shop_.LetOthersStart();
               mesh.set_waiting_for(rank);
             }),
      traits_(traits),
      // More ranks: what they gain by reading was not measured.
      rehearses_(mesh.world_size() == 2 && traits.reads_memory &&
                 !traits.board.is_crowded &&
                 traits.algorithm == Algorithm::kFastest),
      shop_{.board = board_,
            .mesh = mesh,
            .regions = RegionFinder(*regions_),
            .reads_memory = traits.reads_memory} {}

absl::Status HostCollectives::Run(const Collective& collective,
                                  ReleasableLock* order) {
  shop_.order = order;
  shop_.header = NoteHeader::Of(collective);
  absl::Status done = RunOneWay(collective);
  shop_.history.Add(shop_.header);
  if (done.ok() && dependent_bytes_ >= rehearsal_bytes_) {
    shop_.LetOthersStart();
    done = Rehearse();
  }
  shop_.order = nullptr;
  if (!done.ok()) return done;
  // All that was needed had come, but the collective has failed elsewhere: a
  // group ends on all ranks or on none.
  const int failed = board_.FindFailed();
  return failed < 0 ? done : shop_.mesh.Gone(failed);
}

absl::Status HostCollectives::Rehearse() {
  dependent_bytes_ = 0;
  rehearsal_bytes_ = kRehearsalBytes;
  const char* const algorithm = shop_.mesh.algorithm();
  const absl::StatusOr<bool> reads_fast = ReadsFast(shop_);
  shop_.mesh.set_algorithm(algorithm);
  if (!reads_fast.ok()) return reads_fast.status();
  reads_fast_ = *reads_fast;
  selected_ = {};
  return absl::OkStatus();
}

// The table takes as long as a small collective does, and those mostly have the
// size of the last one.
Algorithm HostCollectives::Select(CollectiveKind kind, Memory memory,
                                  size_t bytes) {
  Selected& last =
      selected_[static_cast<size_t>(kind)][memory == Memory::kSymmetric];
  if (last.bytes != bytes || last.algorithm == Algorithm::kFastest) {
    const auto select = [&](bool reads_fast) {
      return SelectAlgorithm(kind,
                             {.memory = memory,
                              .world_size = board_.world_size(),
                              .is_crowded = traits_.board.is_crowded,
                              .reads_fast = reads_fast,
                              .bytes = bytes},
                             traits_.algorithm);
    };
    last = {bytes, select(reads_fast_),
            rehearses_ && select(true) != select(false)};
  }
  if (last.depends_on_reading) dependent_bytes_ += bytes;
  return last.algorithm;
}

// Every rank comes to the same decisions.
absl::Status HostCollectives::RunOneWay(const Collective& collective) {
  const auto select = [&](Memory memory, size_t bytes) {
    return Select(collective.kind, memory, bytes);
  };
  const auto reads = [&](Algorithm algorithm) {
    return algorithm == Algorithm::kSingleCopy && traits_.reads_memory;
  };
  const size_t bytes = KnownBytes(collective, board_.world_size());
  const Algorithm ordinary = select(Memory::kOrdinary, bytes);
  const bool looks_in_regions =
      regions_->any() &&
      select(Memory::kSymmetric, bytes) == Algorithm::kSymmetric;
  absl::StatusOr<bool> done = false;
  if (looks_in_regions && collective.kind == CollectiveKind::kAllReduce) {
    done = RunSymmetricAllReduce(shop_, collective);
    if (!done.ok() || *done) return done.status();
  }
  if (reads(ordinary)) {
    done = RunSingleCopy(shop_, collective, Where::kAnywhere);
  } else if (looks_in_regions &&
             collective.kind != CollectiveKind::kAllReduce) {
    done = RunSingleCopy(shop_, collective, Where::kInRegions);
  }
  if (!done.ok() || *done) return done.status();
  // What an all_to_all has to move it sees in its first round: unless that goes
  // better from tensor to tensor, and can, it is staged.
  done = RunStaged(shop_, collective, ordinary, [&](size_t known) {
    return reads(ordinary) || !reads(select(Memory::kOrdinary, known));
  });
  if (!done.ok() || *done) return done.status();
  done = RunSingleCopy(shop_, collective, Where::kAnywhere);
  if (!done.ok() || *done) return done.status();
  return RunStaged(shop_, collective, ordinary, [](size_t) { return true; })
      .status();
}

}  // namespace muster::dataplane::shm_internal
