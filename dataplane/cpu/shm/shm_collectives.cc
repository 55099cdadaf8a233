#include "dataplane/cpu/shm/shm_collectives.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "dataplane/cpu/shm/symmetric_all_reduce.h"
#include "glog/logging.h"
#include "muster/base/status.h"

namespace muster::dataplane::shm {
namespace {

// The size by which the table decides: that of all ranks' parts together. In an
// all_to_all, that of this rank's inputs.
size_t DecisiveBytes(const Collective& collective, int world_size) {
  const CollectiveTraits& traits = GetTraits(collective.kind);
  const auto ranks = static_cast<size_t>(world_size);
  if (traits.outputs == TensorList::kPerRankOnRoot) {
    return collective.inputs[0].bytes() * ranks;
  }
  if (traits.inputs == TensorList::kPerRankOnRoot) {
    return collective.outputs[0].bytes() * ranks;
  }
  return collective.bytes();
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
          [&transport](int rank) { transport.set_waiting_for(rank); },
          [this](size_t offset, size_t bytes) {
            return segment_->Reserve(offset, bytes);
          }),
      traits_(traits),
      context_{.round_buffer = round_buffer_,
               .transport = transport,
               .regions = RegionFinder(*regions_),
               .reads_memory = traits.reads_memory,
               .writes_past_caches = traits.writes_past_caches} {
  CHECK_GT(round_buffer_.world_size(), 1);
  for (size_t i = 0; i < takes_.size(); ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    takes_[i] = IsAllToAll(kind) || FindStaged(kind) != nullptr;
  }
}

inline Status ShmCollectives::RunOrdinary(const Collective& collective,
                                          const Paths& paths) {
  if (paths.staged != nullptr) return paths.staged(context_, collective);
  return RunAnAllToAll(collective, paths);
}

std::unique_ptr<Backend::Prepared> ShmCollectives::Prepare(
    const Collective& collective) {
  const size_t bytes = DecisiveBytes(collective, round_buffer_.world_size());
  return std::make_unique<PreparedPaths>(
      collective,
      MakePaths(
          collective,
          FindAlgorithm(collective.kind, Medium::kSharedMemory, bytes),
          FindAlgorithm(collective.kind, Medium::kSymmetricMemory, bytes)));
}

Status ShmCollectives::Run(const Collective& collective,
                           Backend::Prepared* prepared) {
  context_.Begin(*regions_);
  uint64_t digest = 0;
  Paths paths;
  if (prepared == nullptr) {
    context_.Say(collective);
    digest = History::ComputeDigest(context_.made);
    const size_t bytes = DecisiveBytes(collective, round_buffer_.world_size());
    paths = MakePaths(collective,
                      Select(collective.kind, Medium::kSharedMemory, bytes),
                      Select(collective.kind, Medium::kSymmetricMemory, bytes));
  } else {
    const auto& known = static_cast<const PreparedPaths&>(*prepared);
    context_.Say(known.header, collective.sequence);
    digest = known.digest;
    paths = known.paths;
  }
  const bool is_plain =
      paths.is_plain && (paths.ignores_regions || !context_.has_regions);
  Status done =
      is_plain ? RunOrdinary(collective, paths) : RunOnePath(collective, paths);
  context_.history.Add(*context_.header, context_.sequence, digest);
  // All needed data has come, but another rank may have failed: a collective
  // fails on all ranks or on none.
  const int failed = done.ok() ? round_buffer_.FindFailed() : -1;
  context_.header = nullptr;
  if (failed >= 0) return context_.transport.Gone(failed);
  return done;
}

Status ShmCollectives::RunAnAllToAll(const Collective& collective,
                                     const Paths& paths) {
  std::optional<Scope> origins;
  if (Reads(paths.ordinary)) {
    origins = Scope::kAnywhere;
  } else if (context_.has_regions && !paths.ignores_regions) {
    origins = Scope::kInRegions;
  }
  // All ranks must answer alike, so it must not depend on this rank's inputs.
  const auto reads_rather = [&](size_t bytes) {
    return traits_.algorithm != Algorithm::kSingleCopy &&
           Reads(Select(collective.kind, Medium::kSharedMemory, bytes));
  };
  const StatusOr<bool> done =
      RunAllToAll(context_, collective, origins, reads_rather);
  if (!done.ok() || *done) return done.status();
  return RunAllToAll(context_, collective, Scope::kAnywhere,
                     [](size_t) { return false; })
      .status();
}

// The lookup takes as long as a small collective, and most collectives have the
// size of the last one. So the last result is cached.
Algorithm ShmCollectives::Select(CollectiveKind kind, Medium medium,
                                 size_t bytes) {
  Selected& last = selected_[static_cast<size_t>(kind)]
                            [medium == Medium::kSymmetricMemory ? 1 : 0];
  if (last.bytes != bytes || last.algorithm == Algorithm::kFastest) {
    last = {bytes, FindAlgorithm(kind, medium, bytes)};
  }
  return last.algorithm;
}

Algorithm ShmCollectives::FindAlgorithm(CollectiveKind kind, Medium medium,
                                        size_t bytes) const {
  return cpu::SelectAlgorithm(kind,
                              {.medium = medium,
                               .world_size = round_buffer_.world_size(),
                               .is_crowded = traits_.round_buffer.is_crowded,
                               .reads_are_fast = traits_.reads_are_fast,
                               .bytes = bytes},
                              traits_.algorithm);
}

ShmCollectives::Paths ShmCollectives::MakePaths(const Collective& collective,
                                                Algorithm ordinary,
                                                Algorithm symmetric) {
  return {.ordinary = ordinary,
          .staged = FindStaged(collective, ordinary),
          .ignores_regions = symmetric != Algorithm::kSymmetric,
          .is_plain = !Reads(ordinary)};
}

Status ShmCollectives::RunOnePath(const Collective& collective,
                                  const Paths& paths) {
  const bool searches_regions = context_.has_regions && !paths.ignores_regions;
  StatusOr<bool> done = false;
  if (IsAllToAll(collective.kind)) {
    // Each rank decides for itself, in RunAnAllToAll.
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
  return RunOrdinary(collective, paths);
}

}  // namespace muster::dataplane::shm
