// The collectives of a group on one host.

#ifndef MUSTER_DATAPLANE_CPU_SHM_SHM_COLLECTIVES_H_
#define MUSTER_DATAPLANE_CPU_SHM_SHM_COLLECTIVES_H_

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "dataplane/collective.h"
#include "dataplane/cpu/engine/engine.h"
#include "dataplane/cpu/shm/all_to_all.h"
#include "dataplane/cpu/shm/direct.h"
#include "dataplane/cpu/shm/path_trials.h"
#include "dataplane/cpu/shm/regions.h"
#include "dataplane/cpu/shm/round_buffer.h"
#include "dataplane/cpu/shm/rounds.h"
#include "dataplane/cpu/shm/segment.h"
#include "dataplane/cpu/shm/selection.h"
#include "dataplane/cpu/shm/staged.h"
#include "dataplane/cpu/transport/transport.h"
#include "dataplane/releasable_lock.h"

namespace muster::dataplane::shm {

// The same on all ranks of a group.
struct ShmTraits {
  RoundBufferTraits round_buffer = {};
  // Each reads the others' memory.
  bool reads_memory = false;
  // Goes before the table.
  Algorithm algorithm = Algorithm::kFastest;
};

// Runs the collectives of a group whose ranks share a Segment: through data
// that they publish there, or from tensor to tensor in symmetric memory.
//
// Reductions combine the ranks' tensors in rank order, so the results are
// bitwise the same on all ranks.
class ShmCollectives : public cpu::Shortcut {
 public:
  // `segment` has RoundBuffer::BytesFor the transport's ranks, two at least,
  // with rings as `traits` say. `transport` lives longer.
  ShmCollectives(std::shared_ptr<Segment> segment,
                 std::shared_ptr<const Regions> regions,
                 cpu::Transport& transport, const ShmTraits& traits);
  ~ShmCollectives() override { round_buffer_.Leave(/*has_failed=*/false); }

  // Kinds that it has no algorithm for take the connections.
  bool Takes(const Collective& collective) const override {
    return takes_[static_cast<size_t>(collective.kind)];
  }
  Status Run(const Collective& collective, ReleasableLock* order) override;
  void Wake() override { round_buffer_.Wake(); }
  void Leave(bool has_failed) override { round_buffer_.Leave(has_failed); }

 private:
  // What the table said last for so many bytes; at first kFastest.
  struct Selected {
    size_t bytes = 0;
    Algorithm algorithm = Algorithm::kFastest;
  };

  static constexpr size_t kSizeClasses = 5;
  // Of those of which no table knows which way is faster.
  struct Choices {
    // The first rank's, which all others go by.
    TrialsBySize trials;
    // By class of sizes, how the next one goes: the system reads it; else it is
    // staged.
    std::array<bool, kSizeClasses> reads = {};
  };

  // Which way one goes, which all ranks decide alike.
  struct Paths {
    // If it does not go from tensor to tensor in symmetric memory.
    Algorithm ordinary = Algorithm::kFastest;
    // What runs it if it is not read; null of an all_to_all.
    StagedRun staged = nullptr;
    // It does not if there is some, either.
    bool ignores_regions = false;
    // Null: the table knows, which says `ordinary`.
    Choices* choices = nullptr;
    // It goes as RunOrdinary has it if it ignores regions or there are none.
    bool is_plain = false;
  };

  // What a plan keeps.
  struct Memo : Plan::Memo {
    Memo(const Collective& collective, const Paths& paths)
        : header(MessageHeader::Of(collective)),
          digest(History::DigestOf(header)),
          paths(paths) {}
    // But for the number.
    MessageHeader header;
    const uint64_t digest;
    const Paths paths;
  };

  // Null: it has no plan, or there is no memory for one.
  inline Memo* MemoOf(const Collective& collective);
  Paths FindPaths(const Collective& collective);
  Status RunOnePath(const Collective& collective, const Paths& paths);
  bool Reads(Algorithm algorithm) const {
    return algorithm == Algorithm::kSingleCopy && traits_.reads_memory;
  }
  // As `ordinary` says, which nothing in symmetric memory goes before.
  inline Status RunOrdinary(const Collective& collective, const Paths& paths);
  // Where this rank shows, in an all_to_all, what it gives; `reads`: also where
  // only the system reads that.
  std::optional<Scope> OriginsOf(const Paths& paths, bool reads) const;
  StatusOr<AllToAllOutcome> RunAnAllToAll(const Collective& collective,
                                          const Paths& paths,
                                          const AllToAllOptions& options);
  // Null: there is none to be made.
  Choices* FindChoices(const Collective& collective, Algorithm ordinary);
  Status RunByChoice(const Collective& collective, const Paths& paths);
  // Staged or, if this rank `reads`, read by the system. False: neither.
  StatusOr<bool> RunEitherPath(const Collective& collective, const Paths& paths,
                               bool reads);
  Algorithm Select(CollectiveKind kind, Memory memory, size_t bytes);

  const std::shared_ptr<Segment> segment_;
  const std::shared_ptr<const Regions> regions_;
  RoundBuffer round_buffer_;
  const ShmTraits traits_;
  ShmContext context_;
  // By kind; of ordinary memory, and of symmetric memory.
  std::array<std::array<Selected, 2>, kCollectiveKindCount> selected_ = {};
  // By kind.
  std::array<bool, kCollectiveKindCount> takes_ = {};
  Choices gather_choices_;
  Choices reduce_scatter_choices_;
  Choices all_to_all_choices_;
};

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_SHM_COLLECTIVES_H_
