#include "dataplane/backends/shm/host_collectives.h"

#include <time.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/backends/shm/all_to_all.h"
#include "dataplane/backends/shm/single_copy.h"
#include "dataplane/backends/shm/staged.h"
#include "dataplane/backends/shm/symmetric_all_reduce.h"
#include "dataplane/backends/shm/way_trials.h"
#include "glog/logging.h"

namespace muster::dataplane::shm_internal {
namespace {

bool IsAllToAll(CollectiveKind kind) {
  return kind == CollectiveKind::kAllToAll ||
         kind == CollectiveKind::kAllToAllSingle;
}

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
// are in their readers' caches. The first ones that go one way after the other
// find caches as that has left them. Trials, which may be of the slower way,
// are a hundredth of all in the end.
constexpr WayTrials::Terms kReadingTerms = {.first = 8,
                                            .period = 800,
                                            .length = 8,
                                            .settling = 4,
                                            .remembered = 4,
                                            .slower_percent = 115};
constexpr WayTrials::Way kReading = WayTrials::Way::kOther;

// From so many bytes on, and up to four times as many each, the last one for
// all beyond.
constexpr size_t kChoiceBytesMin = 256 << 10;
constexpr size_t kChoicesOfKind = 5;

// What the first rank says beside one: which choice it has made anew, and how
// that goes. Nothing: it has made none.
constexpr uint8_t WordOf(size_t choice, bool reads) {
  return static_cast<uint8_t>(2 * (choice + 1) + (reads ? 1 : 0));
}
constexpr size_t ChoiceOf(uint8_t word) { return word / 2 - 1; }
constexpr bool SaysToRead(uint8_t word) { return word % 2 == 1; }

// Two of these are apart by what one has taken. Where ranks take turns on a
// processor, in processor time: by the clock a rank that comes when all others
// have shown theirs has not taken what they have.
std::chrono::nanoseconds TimeSpent(bool is_crowded) {
  timespec now = {};
  clock_gettime(is_crowded ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return std::chrono::seconds(now.tv_sec) +
         std::chrono::nanoseconds(now.tv_nsec);
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
      shop_{.board = board_,
            .mesh = mesh,
            .regions = RegionFinder(*regions_),
            .reads_memory = traits.reads_memory},
      choices_(2 * kChoicesOfKind, {.trials = WayTrials(kReadingTerms)}) {
  CHECK_GT(board_.world_size(), 1);
}

inline HostCollectives::Memo* HostCollectives::MemoOf(
    const Collective& collective) {
  if (collective.plan == nullptr) return nullptr;
  std::unique_ptr<Plan::Memo>& memo = collective.plan->of_backend;
  if (memo == nullptr) {
    memo.reset(new (std::nothrow) Memo(collective, FindWays(collective)));
  }
  return static_cast<Memo*>(memo.get());
}

inline absl::Status HostCollectives::RunOrdinary(const Collective& collective,
                                                 Algorithm ordinary) {
  return IsAllToAll(collective.kind)
             ? RunAnAllToAll(collective, ordinary, /*shows_origins=*/false)
             : RunStaged(shop_, collective, ordinary);
}

absl::Status HostCollectives::Run(const Collective& collective,
                                  ReleasableLock* order) {
  shop_.order = order;
  shop_.Begin(*regions_);
  const uint64_t waits = board_.waits();
  const Memo* const memo = MemoOf(collective);
  uint64_t digest = 0;
  Ways found;
  if (memo == nullptr) {
    shop_.Say(collective);
    digest = History::DigestOf(shop_.made);
    found = FindWays(collective);
  } else {
    shop_.Say(memo->header, collective.sequence);
    digest = memo->digest;
  }
  const Ways& ways = memo == nullptr ? found : memo->ways;
  const bool is_plain = !Reads(ways.ordinary) && ways.choice == nullptr &&
                        (ways.ignores_regions || !shop_.has_regions);
  absl::Status done = is_plain ? RunOrdinary(collective, ways.ordinary)
                               : RunOneWay(collective, ways);
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

absl::Status HostCollectives::RunAnAllToAll(const Collective& collective,
                                            Algorithm ordinary,
                                            bool shows_origins) {
  // That was tried, then.
  const bool stays = Reads(ordinary);
  const auto reads_rather = [&](size_t bytes) {
    return !stays && Reads(Select(collective.kind, Memory::kOrdinary, bytes));
  };
  absl::StatusOr<bool> done =
      RunAllToAll(shop_, collective, shows_origins, reads_rather);
  if (!done.ok() || *done) return done.status();
  done = RunSingleCopy(shop_, collective, Where::kAnywhere);
  if (!done.ok() || *done) return done.status();
  return RunAllToAll(shop_, collective, /*shows_origins=*/false,
                     [](size_t) { return false; })
      .status();
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

HostCollectives::Ways HostCollectives::FindWays(const Collective& collective) {
  const size_t bytes = KnownBytes(collective, board_.world_size());
  const Algorithm ordinary = Select(collective.kind, Memory::kOrdinary, bytes);
  return {.ordinary = ordinary,
          .ignores_regions = Select(collective.kind, Memory::kSymmetric,
                                    bytes) != Algorithm::kSymmetric,
          .choice = FindChoice(collective, ordinary)};
}

absl::Status HostCollectives::RunOneWay(const Collective& collective,
                                        const Ways& ways) {
  const bool looks_in_regions = shop_.has_regions && !ways.ignores_regions;
  const bool reduces_all = collective.kind == CollectiveKind::kAllReduce;
  absl::StatusOr<bool> done = false;
  if (looks_in_regions && reduces_all) {
    done = RunSymmetricAllReduce(shop_, collective);
    if (!done.ok() || *done) return done.status();
  }
  if (Reads(ways.ordinary)) {
    done = RunSingleCopy(shop_, collective, Where::kAnywhere);
  } else if (looks_in_regions && !reduces_all) {
    done = RunSingleCopy(shop_, collective, Where::kInRegions);
  }
  if (!done.ok() || *done) return done.status();
  return ways.choice != nullptr ? RunByChoice(collective, *ways.choice)
                                : RunOrdinary(collective, ways.ordinary);
}

HostCollectives::Choice* HostCollectives::FindChoice(
    const Collective& collective, Algorithm ordinary) {
  const CollectiveKind kind = collective.kind;
  const bool gathers = kind == CollectiveKind::kAllGather ||
                       kind == CollectiveKind::kAllGatherIntoTensor;
  if ((!gathers && !IsAllToAll(kind)) || ordinary != Algorithm::kStaged ||
      !traits_.reads_memory || (gathers && traits_.board.is_crowded) ||
      traits_.algorithm != Algorithm::kFastest ||
      collective.bytes() < kChoiceBytesMin) {
    return nullptr;
  }
  const size_t quadruplings =
      (std::bit_width(collective.bytes() / kChoiceBytesMin) - 1) / 2;
  return &choices_[(gathers ? 0 : kChoicesOfKind) +
                   std::min(quadruplings, kChoicesOfKind - 1)];
}

// Of an all_gather all know the size, so nobody goes another way than the
// others. Of an all_to_all each goes by its own: there any may.
absl::Status HostCollectives::RunEitherWay(const Collective& collective,
                                           bool reads) {
  if (IsAllToAll(collective.kind)) {
    return RunAnAllToAll(collective, Algorithm::kStaged,
                         /*shows_origins=*/reads);
  }
  if (reads) {
    const absl::StatusOr<bool> done =
        RunSingleCopy(shop_, collective, Where::kAnywhere);
    if (!done.ok() || *done) return done.status();
  }
  return RunStaged(shop_, collective, Algorithm::kStaged);
}

// The first rank says how the next one of its size goes, and all others hear it
// before they end this one.
absl::Status HostCollectives::RunByChoice(const Collective& collective,
                                          Choice& choice) {
  const bool says = board_.rank() == 0;
  shop_.heard = 0;
  if (says) {
    shop_.SayBeside(WordOf(static_cast<size_t>(&choice - choices_.data()),
                           choice.trials.Next(1) == kReading));
  }
  const bool is_crowded = traits_.board.is_crowded;
  const std::chrono::nanoseconds began = TimeSpent(is_crowded);
  absl::Status status = RunEitherWay(collective, choice.reads);
  if (!status.ok()) return status;
  if (says) {
    choice.trials.Took(choice.reads ? kReading : WayTrials::Way::kUsual,
                       collective.bytes(), TimeSpent(is_crowded) - began);
  }
  const uint8_t word = shop_.heard;
  if (word != 0 && ChoiceOf(word) < choices_.size()) {
    choices_[ChoiceOf(word)].reads = SaysToRead(word);
  }
  return absl::OkStatus();
}

}  // namespace muster::dataplane::shm_internal
