#include "dataplane/backends/shm/host_collectives.h"

#include <cstddef>
#include <memory>
#include <new>
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

inline HostCollectives::Memo* HostCollectives::MemoOf(
    const Collective& collective) {
  if (collective.plan == nullptr) return nullptr;
  std::unique_ptr<Plan::Memo>& memo = collective.plan->of_backend;
  if (memo == nullptr) memo.reset(new (std::nothrow) Memo(collective));
  return static_cast<Memo*>(memo.get());
}

inline absl::Status HostCollectives::RunOrdinary(const Collective& collective,
                                                 Algorithm ordinary) {
  // What an all_to_all has to move it sees in its first round: unless that goes
  // better from tensor to tensor, and can, it is staged.
  absl::StatusOr<bool> done =
      RunStaged(shop_, collective, ordinary, [&](size_t known) {
        return Reads(ordinary) ||
               !Reads(Select(collective.kind, Memory::kOrdinary, known));
      });
  if (!done.ok()) return std::move(done).status();
  return *done ? absl::OkStatus() : RunAfterAll(collective, ordinary);
}

absl::Status HostCollectives::Run(const Collective& collective,
                                  ReleasableLock* order) {
  shop_.order = order;
  Memo* const memo = MemoOf(collective);
  uint64_t digest = 0;
  if (memo == nullptr) {
    shop_.Say(collective);
    digest = History::DigestOf(shop_.made);
  } else {
    shop_.Say(memo->header, collective.sequence);
    digest = memo->digest;
  }
  const bool is_known = memo != nullptr && memo->staged_by.has_value() &&
                        (memo->ignores_regions || !regions_->any());
  absl::Status done = is_known ? RunOrdinary(collective, *memo->staged_by)
                               : RunOneWay(collective, memo);
  shop_.history.Add(*shop_.header, shop_.sequence, digest);
  if (done.ok() && dependent_bytes_ >= rehearsal_bytes_) {
    shop_.LetOthersStart();
    done = Rehearse();
  }
  // All that was needed had come, but the collective has failed elsewhere: a
  // group ends on all ranks or on none.
  const int failed = done.ok() ? board_.FindFailed() : -1;
  // Who has gone says why, which may take a moment.
  if (failed >= 0) shop_.LetOthersStart();
  shop_.order = nullptr;
  shop_.header = nullptr;
  if (failed >= 0) return shop_.mesh.Gone(failed);
  return done;
}

absl::Status HostCollectives::RunAfterAll(const Collective& collective,
                                          Algorithm ordinary) {
  const absl::StatusOr<bool> done =
      RunSingleCopy(shop_, collective, Where::kAnywhere);
  if (!done.ok() || *done) return done.status();
  return RunStaged(shop_, collective, ordinary, [](size_t) { return true; })
      .status();
}

absl::Status HostCollectives::Rehearse() {
  dependent_bytes_ = 0;
  rehearsal_bytes_ = kRehearsalBytes;
  const char* const algorithm = shop_.mesh.algorithm();
  const absl::StatusOr<Reading> reading = TryReading(shop_);
  shop_.mesh.set_algorithm(algorithm);
  if (!reading.ok()) return reading.status();
  reading_ = *reading;
  selected_ = {};
  return absl::OkStatus();
}

// The table takes as long as a small collective does, and those mostly have the
// size of the last one.
Algorithm HostCollectives::Select(CollectiveKind kind, Memory memory,
                                  size_t bytes) {
  Selected& last = LastSelected(kind, memory);
  if (last.bytes != bytes || last.algorithm == Algorithm::kFastest) {
    const auto select = [&](Reading reading) {
      return SelectAlgorithm(kind,
                             {.memory = memory,
                              .world_size = board_.world_size(),
                              .is_crowded = traits_.board.is_crowded,
                              .reading = reading,
                              .bytes = bytes},
                             traits_.algorithm);
    };
    const Algorithm otherwise = select(Reading::kSlower);
    last = {bytes, select(reading_),
            rehearses_ && (select(Reading::kFaster) != otherwise ||
                           select(Reading::kMuchFaster) != otherwise)};
  }
  if (last.depends_on_reading) dependent_bytes_ += bytes;
  return last.algorithm;
}

void HostCollectives::Fill(Memo& memo, CollectiveKind kind, size_t bytes) {
  // To select again would count it again: ranks have plans, or not, as their
  // callers go on, and must count alike.
  const Selected& ordinary = LastSelected(kind, Memory::kOrdinary);
  if (Reads(ordinary.algorithm) || ordinary.depends_on_reading) return;
  memo.staged_by = ordinary.algorithm;
  memo.ignores_regions =
      Select(kind, Memory::kSymmetric, bytes) != Algorithm::kSymmetric;
}

// Every rank comes to the same decisions.
absl::Status HostCollectives::RunOneWay(const Collective& collective,
                                        Memo* memo) {
  const size_t bytes = KnownBytes(collective, board_.world_size());
  const Algorithm ordinary = Select(collective.kind, Memory::kOrdinary, bytes);
  const bool looks_in_regions =
      regions_->any() && Select(collective.kind, Memory::kSymmetric, bytes) ==
                             Algorithm::kSymmetric;
  if (memo != nullptr) Fill(*memo, collective.kind, bytes);
  absl::StatusOr<bool> done = false;
  if (looks_in_regions && collective.kind == CollectiveKind::kAllReduce) {
    done = RunSymmetricAllReduce(shop_, collective);
    if (!done.ok() || *done) return done.status();
  }
  if (Reads(ordinary)) {
    done = RunSingleCopy(shop_, collective, Where::kAnywhere);
  } else if (looks_in_regions &&
             collective.kind != CollectiveKind::kAllReduce) {
    done = RunSingleCopy(shop_, collective, Where::kInRegions);
  }
  if (!done.ok() || *done) return done.status();
  return RunOrdinary(collective, ordinary);
}

}  // namespace muster::dataplane::shm_internal
