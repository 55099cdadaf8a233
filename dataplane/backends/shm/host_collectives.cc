#include "dataplane/backends/shm/host_collectives.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/backends/shm/single_copy.h"
#include "dataplane/backends/shm/staged.h"
#include "dataplane/backends/shm/symmetric_all_reduce.h"
#include "dataplane/backends/shm/way_trials.h"
#include "dataplane/instant.h"
#include "glog/logging.h"

namespace muster::dataplane::shm_internal {
namespace {

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

// Reading takes one copy where staging takes two, and has the system find the
// pages. It takes from half to twice as long, which differs from one kind of
// machine to another where each rank gives and takes as much as all others, and
// with what the program does in between: tensors that nobody has written since
// are in their readers' caches. A trial, which may be the slower way, is a
// hundredth of all.
constexpr WayTrials::Terms kReadingTerms = {
    .first = 8, .period = 400, .length = 4, .slower_percent = 115};
constexpr WayTrials::Way kReading = WayTrials::Way::kOther;

// From so many bytes on, and up to four times as many each, the last one for
// all beyond.
constexpr size_t kChoiceBytesMin = 256 << 10;
constexpr size_t kChoices = 5;

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
      shop_{.board = board_,
            .mesh = mesh,
            .regions = RegionFinder(*regions_),
            .reads_memory = traits.reads_memory,
            .reads_rather =
                [this](CollectiveKind kind, size_t bytes) {
                  return Reads(Select(kind, Memory::kOrdinary, bytes));
                }},
      choices_(kChoices, {.trials = WayTrials(kReadingTerms)}) {
  CHECK_GT(board_.world_size(), 1);
}

inline HostCollectives::Memo* HostCollectives::MemoOf(
    const Collective& collective) {
  if (collective.plan == nullptr) return nullptr;
  std::unique_ptr<Plan::Memo>& memo = collective.plan->of_backend;
  if (memo == nullptr) memo.reset(new (std::nothrow) Memo(collective));
  return static_cast<Memo*>(memo.get());
}

inline absl::Status HostCollectives::RunOrdinary(const Collective& collective,
                                                 Algorithm ordinary) {
  bool has_stopped = false;
  absl::Status status = RunStaged(shop_, collective, ordinary,
                                  Reads(ordinary) ? nullptr : &has_stopped);
  return has_stopped ? RunAfterAll(collective, ordinary) : status;
}

absl::Status HostCollectives::Run(const Collective& collective,
                                  ReleasableLock* order) {
  shop_.order = order;
  shop_.Begin(*regions_);
  const uint64_t waits = board_.waits();
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
                        (memo->ignores_regions || !shop_.has_regions);
  absl::Status done = is_known ? RunOrdinary(collective, *memo->staged_by)
                               : RunOneWay(collective, memo);
  shop_.history.Add(*shop_.header, shop_.sequence, digest);
  // All that was needed had come, but the collective has failed elsewhere: a
  // group ends on all ranks or on none.
  const int failed = done.ok() ? board_.FindFailed() : -1;
  // Who has gone says why, which may take a moment.
  if (failed >= 0) shop_.LetOthersStart();
  // Also for those who have not shown their last round, before its own.
  if (board_.waits() != waits) shop_.CallLast();
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
  return RunStaged(shop_, collective, ordinary, /*has_stopped=*/nullptr);
}

// The table takes as long as a small collective does, and those mostly have the
// size of the last one.
Algorithm HostCollectives::Select(CollectiveKind kind, Memory memory,
                                  size_t bytes) {
  Selected& last = selected_[static_cast<size_t>(kind)]
                            [memory == Memory::kSymmetric ? 1 : 0];
  if (last.bytes != bytes || last.algorithm == Algorithm::kFastest) {
    last = {bytes, SelectAlgorithm(kind,
                                   {.memory = memory,
                                    .world_size = board_.world_size(),
                                    .is_crowded = traits_.board.is_crowded,
                                    .bytes = bytes},
                                   traits_.algorithm)};
  }
  return last.algorithm;
}

// Every rank comes to the same decisions.
absl::Status HostCollectives::RunOneWay(const Collective& collective,
                                        Memo* memo) {
  const size_t bytes = KnownBytes(collective, board_.world_size());
  const Algorithm ordinary = Select(collective.kind, Memory::kOrdinary, bytes);
  const bool ignores_regions = Select(collective.kind, Memory::kSymmetric,
                                      bytes) != Algorithm::kSymmetric;
  Choice* const choice = FindChoice(collective.kind, ordinary, bytes);
  if (memo != nullptr && !Reads(ordinary) && choice == nullptr) {
    memo->staged_by = ordinary;
    memo->ignores_regions = ignores_regions;
  }
  const bool looks_in_regions = shop_.has_regions && !ignores_regions;
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
  return choice != nullptr ? RunByChoice(collective, *choice)
                           : RunOrdinary(collective, ordinary);
}

HostCollectives::Choice* HostCollectives::FindChoice(CollectiveKind kind,
                                                     Algorithm ordinary,
                                                     size_t bytes) {
  const bool gathers = kind == CollectiveKind::kAllGather ||
                       kind == CollectiveKind::kAllGatherIntoTensor;
  if (!gathers || ordinary != Algorithm::kStaged || !traits_.reads_memory ||
      traits_.board.is_crowded || traits_.algorithm != Algorithm::kFastest ||
      bytes < kChoiceBytesMin) {
    return nullptr;
  }
  const size_t doublings = std::bit_width(bytes / kChoiceBytesMin) - 1;
  return &choices_[std::min(doublings / 2, kChoices - 1)];
}

// The first rank says how the next one goes, and all others hear it before they
// end this one: nobody goes another way than the others.
absl::Status HostCollectives::RunByChoice(const Collective& collective,
                                          Choice& choice) {
  const bool says = board_.rank() == 0;
  if (says) shop_.SayBeside(choice.trials.Next(1) == kReading ? 1 : 0);
  const Instant began = Clock::now();
  bool is_done = false;
  if (choice.reads) {
    const absl::StatusOr<bool> done =
        RunSingleCopy(shop_, collective, Where::kAnywhere);
    if (!done.ok()) return done.status();
    is_done = *done;
  }
  if (!is_done) {
    absl::Status status = RunStaged(shop_, collective, Algorithm::kStaged,
                                    /*has_stopped=*/nullptr);
    if (!status.ok()) return status;
  }
  if (says) {
    choice.trials.Took(choice.reads ? kReading : WayTrials::Way::kUsual, 1,
                       Clock::now() - began);
  }
  choice.reads = shop_.heard != 0;
  return absl::OkStatus();
}

}  // namespace muster::dataplane::shm_internal
