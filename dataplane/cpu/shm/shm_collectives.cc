#include "dataplane/cpu/shm/shm_collectives.h"

#include <time.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

#include "base/status.h"
#include "dataplane/cpu/shm/path_trials.h"
#include "dataplane/cpu/shm/symmetric_all_reduce.h"
#include "dataplane/releasable_lock.h"
#include "glog/logging.h"

namespace muster::dataplane::shm {
namespace {

// The size of all ranks' parts together if all ranks know it, else 0.
size_t KnownBytes(const Collective& collective, int world_size) {
  const CollectiveTraits& traits = GetTraits(collective.kind);
  if (IsAllToAll(collective.kind)) return 0;
  const auto ranks = static_cast<size_t>(world_size);
  if (traits.outputs == TensorList::kPerRankOnRoot) {
    return collective.inputs[0].bytes() * ranks;
  }
  if (traits.inputs == TensorList::kPerRankOnRoot) {
    return collective.outputs[0].bytes() * ranks;
  }
  return collective.bytes();
}

// Reading takes one copy instead of staging's two, but the system must find the
// pages. It takes from half to twice as long. That depends on the machine, if
// all ranks give and take alike, and on the program: tensors that were not
// written since are in their readers' caches. After a change of path the first
// collectives find the caches as the other path has left them. While the path
// stays, trials are in the end a hundredth of all collectives.
constexpr PathTrials::Terms kReadingTerms = {.first = 8,
                                             .period = 800,
                                             .length = 8,
                                             .settling = 4,
                                             .remembered = 4,
                                             .slower_percent = 115};
constexpr PathTrials::Path kReading = PathTrials::Path::kAlternative;

constexpr size_t kChoiceBytesMin = ShmContext::kHintBytesMin;

// The size class of `bytes`: each class is four times as large as the one
// before, and the last one has all larger sizes.
size_t ComputeSizeClass(size_t bytes, size_t classes) {
  const size_t quadruplings = (std::bit_width(bytes / kChoiceBytesMin) - 1) / 2;
  return std::min(quadruplings, classes - 1);
}

// The first rank's hint: the path of the next collective of a size class.
constexpr uint8_t ToWord(size_t size_class, bool reads) {
  return static_cast<uint8_t>(2 * size_class + (reads ? 1 : 0));
}
constexpr size_t SizeClassIn(uint8_t word) { return word / 2; }
constexpr bool SaysToRead(uint8_t word) { return word % 2 == 1; }

// The clock for trials. It is processor time if ranks share processors: by the
// wall clock, a rank that comes last, when all others have published, seems
// fast although it has taken nothing yet.
std::chrono::nanoseconds ReadClock(bool is_crowded) {
  timespec now = {};
  clock_gettime(is_crowded ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return std::chrono::seconds(now.tv_sec) +
         std::chrono::nanoseconds(now.tv_nsec);
}

}  // namespace

ShmCollectives::ShmCollectives(std::shared_ptr<Segment> segment,
                               std::shared_ptr<const Regions> regions,
                               cpu::Transport& transport,
                               const ShmTraits& traits)
    : segment_(std::move(segment)),
      regions_(std::move(regions)),
      round_buffer_(
          segment_->memory(), transport.rank(), transport.world_size(),
          traits.round_buffer,
          [this, &transport](int rank) {
            context_.LetOthersStart();
            transport.set_waiting_for(rank);
          },
          [this](size_t offset, size_t bytes) {
            return segment_->Reserve(offset, bytes);
          }),
      traits_(traits),
      context_{.round_buffer = round_buffer_,
               .transport = transport,
               .regions = RegionFinder(*regions_),
               .reads_memory = traits.reads_memory},
      gather_choices_{.trials = TrialsBySize(kReadingTerms, kSizeClasses)},
      reduce_scatter_choices_(gather_choices_),
      all_to_all_choices_(gather_choices_) {
  CHECK_GT(round_buffer_.world_size(), 1);
  for (size_t i = 0; i < takes_.size(); ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    takes_[i] = IsAllToAll(kind) || FindStaged(kind) != nullptr;
  }
}

inline ShmCollectives::Memo* ShmCollectives::GetMemo(
    const Collective& collective) {
  if (collective.plan == nullptr) return nullptr;
  std::unique_ptr<Plan::Memo>& memo = collective.plan->of_backend;
  if (memo == nullptr) {
    memo.reset(new (std::nothrow) Memo(collective, FindPaths(collective)));
  }
  return static_cast<Memo*>(memo.get());
}

inline Status ShmCollectives::RunOrdinary(const Collective& collective,
                                          const Paths& paths) {
  if (paths.staged != nullptr) return paths.staged(context_, collective);
  return RunAnAllToAll(collective, paths,
                       {.origins = FindScope(paths, Reads(paths.ordinary))})
      .status();
}

Status ShmCollectives::Run(const Collective& collective,
                           ReleasableLock* order) {
  context_.order = order;
  context_.Begin(*regions_);
  const uint64_t waits = round_buffer_.waits();
  const Memo* const memo = GetMemo(collective);
  uint64_t digest = 0;
  Paths found;
  if (memo == nullptr) {
    context_.Say(collective);
    digest = History::ComputeDigest(context_.made);
    found = FindPaths(collective);
  } else {
    context_.Say(memo->header, collective.sequence);
    digest = memo->digest;
  }
  const Paths& paths = memo == nullptr ? found : memo->paths;
  const bool is_plain =
      paths.is_plain && (paths.ignores_regions || !context_.has_regions);
  Status done =
      is_plain ? RunOrdinary(collective, paths) : RunOnePath(collective, paths);
  context_.history.Add(*context_.header, context_.sequence, digest);
  // All needed data has come, but another rank may have failed: a collective
  // fails on all ranks or on none.
  const int failed = done.ok() ? round_buffer_.FindFailed() : -1;
  // Reading the goodbye of the failed rank may take a moment.
  if (failed >= 0) context_.LetOthersStart();
  // Also call it for waits before this rank's last round.
  if (round_buffer_.waits() != waits) context_.TellOfWait();
  context_.order = nullptr;
  context_.header = nullptr;
  if (failed >= 0) return context_.transport.Gone(failed);
  return done;
}

std::optional<Scope> ShmCollectives::FindScope(const Paths& paths,
                                               bool reads) const {
  if (reads) return Scope::kAnywhere;
  if (context_.has_regions && !paths.ignores_regions) return Scope::kInRegions;
  return std::nullopt;
}

StatusOr<AllToAllOutcome> ShmCollectives::RunAnAllToAll(
    const Collective& collective, const Paths& paths,
    const AllToAllOptions& options) {
  // All ranks must answer alike, so it must not depend on this rank's inputs.
  const auto reads_rather = [&](size_t bytes) {
    return !Reads(paths.ordinary) &&
           Reads(Select(collective.kind, Memory::kOrdinary, bytes));
  };
  StatusOr<AllToAllOutcome> outcome =
      RunAllToAll(context_, collective, options, reads_rather);
  if (!outcome.ok() || outcome->is_done) return outcome;
  return RunAllToAll(context_, collective, {.origins = Scope::kAnywhere},
                     [](size_t) { return false; });
}

// The lookup takes as long as a small collective, and most collectives have the
// size of the last one. So the last result is cached.
Algorithm ShmCollectives::Select(CollectiveKind kind, Memory memory,
                                 size_t bytes) {
  Selected& last = selected_[static_cast<size_t>(kind)]
                            [memory == Memory::kSymmetric ? 1 : 0];
  if (last.bytes != bytes || last.algorithm == Algorithm::kFastest) {
    last = {bytes,
            SelectAlgorithm(kind,
                            {.memory = memory,
                             .world_size = round_buffer_.world_size(),
                             .is_crowded = traits_.round_buffer.is_crowded,
                             .bytes = bytes},
                            traits_.algorithm)};
  }
  return last.algorithm;
}

ShmCollectives::Paths ShmCollectives::FindPaths(const Collective& collective) {
  const size_t bytes = KnownBytes(collective, round_buffer_.world_size());
  const Algorithm ordinary = Select(collective.kind, Memory::kOrdinary, bytes);
  Choices* const choices = FindChoices(collective, ordinary);
  return {.ordinary = ordinary,
          .staged = FindStaged(collective, ordinary),
          .ignores_regions = Select(collective.kind, Memory::kSymmetric,
                                    bytes) != Algorithm::kSymmetric,
          .choices = choices,
          .is_plain = choices == nullptr && !Reads(ordinary)};
}

Status ShmCollectives::RunOnePath(const Collective& collective,
                                  const Paths& paths) {
  const bool searches_regions = context_.has_regions && !paths.ignores_regions;
  StatusOr<bool> done = false;
  if (IsAllToAll(collective.kind)) {
    // Each rank decides for itself, in RunOrdinary or RunByChoice.
  } else if (searches_regions &&
             collective.kind == CollectiveKind::kAllReduce) {
    done = RunSymmetricAllReduce(context_, collective);
  } else if (searches_regions && !Reads(paths.ordinary)) {
    done = RunSingleCopy(context_, collective, Scope::kInRegions);
  }
  if (done.ok() && !*done && Reads(paths.ordinary) &&
      !IsAllToAll(collective.kind)) {
    done = RunSingleCopy(context_, collective, Scope::kAnywhere);
  }
  if (!done.ok() || *done) return done.status();
  return paths.choices != nullptr ? RunByChoice(collective, paths)
                                  : RunOrdinary(collective, paths);
}

ShmCollectives::Choices* ShmCollectives::FindChoices(
    const Collective& collective, Algorithm ordinary) {
  if (ordinary != Algorithm::kStaged || !traits_.reads_memory ||
      traits_.algorithm != Algorithm::kFastest ||
      collective.bytes() < kChoiceBytesMin) {
    return nullptr;
  }
  if (IsAllToAll(collective.kind)) return &all_to_all_choices_;
  if (traits_.round_buffer.is_crowded) return nullptr;
  switch (GetTraits(collective.kind).list_form) {
    case CollectiveKind::kAllGather:
      return &gather_choices_;
    case CollectiveKind::kReduceScatter:
      return &reduce_scatter_choices_;
    default:
      return nullptr;
  }
}

StatusOr<bool> ShmCollectives::RunEitherPath(const Collective& collective,
                                             const Paths& paths, bool reads) {
  if (IsAllToAll(collective.kind)) {
    const StatusOr<AllToAllOutcome> outcome = RunAnAllToAll(
        collective, paths, {.origins = FindScope(paths, reads), .hears = true});
    if (!outcome.ok()) return outcome.status();
    return !outcome->is_mapped;
  }
  if (reads) {
    StatusOr<bool> done = RunSingleCopy(context_, collective, Scope::kAnywhere);
    if (!done.ok() || *done) return done;
  }
  Status status = paths.staged(context_, collective);
  if (!status.ok()) return status;
  return true;
}

// The first rank publishes the path of the next collective of a size class, and
// the others read it before they end this one. In an all_to_all each rank has
// its own size and may choose any path: without a hint for its class, the next
// one is staged. In the other kinds all ranks know the size, so all choose
// alike.
Status ShmCollectives::RunByChoice(const Collective& collective,
                                   const Paths& paths) {
  Choices& choices = *paths.choices;
  const size_t bytes = collective.bytes();
  const size_t size_class = ComputeSizeClass(bytes, kSizeClasses);
  const bool says = round_buffer_.rank() == 0;
  context_.hint.reset();
  if (says) {
    const PathTrials::Path next = choices.trials.Of(size_class).Next(1);
    context_.SetHint(ToWord(size_class, next == kReading));
  }
  const bool reads = std::exchange(choices.reads[size_class], false);
  const bool is_crowded = traits_.round_buffer.is_crowded;
  const std::chrono::nanoseconds began = ReadClock(is_crowded);
  const StatusOr<bool> went = RunEitherPath(collective, paths, reads);
  if (!went.ok()) return went.status();
  if (says && *went) {
    choices.trials.Of(size_class)
        .Took(reads ? kReading : PathTrials::Path::kDefault, bytes,
              ReadClock(is_crowded) - began);
  }
  if (context_.hint.has_value() && SizeClassIn(*context_.hint) < kSizeClasses) {
    choices.reads[SizeClassIn(*context_.hint)] = SaysToRead(*context_.hint);
  }
  return OkStatus();
}

}  // namespace muster::dataplane::shm
