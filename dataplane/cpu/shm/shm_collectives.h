// The collectives of a group on one host.

#ifndef MUSTER_DATAPLANE_CPU_SHM_SHM_COLLECTIVES_H_
#define MUSTER_DATAPLANE_CPU_SHM_SHM_COLLECTIVES_H_

#include <array>
#include <cstddef>
#include <memory>
#include <optional>

#include "dataplane/cpu/engine/engine.h"
#include "dataplane/cpu/shm/all_to_all.h"
#include "dataplane/cpu/shm/direct.h"
#include "dataplane/cpu/shm/regions.h"
#include "dataplane/cpu/shm/round_buffer.h"
#include "dataplane/cpu/shm/rounds.h"
#include "dataplane/cpu/shm/segment.h"
#include "dataplane/cpu/shm/staged.h"
#include "dataplane/cpu/transport/transport.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane::shm {

// Properties of a group, the same on all ranks.
struct ShmTraits {
  RoundBufferTraits round_buffer = {};
  // Every rank reads the others' memory.
  bool reads_memory = false;
  // See Calibration.
  bool writes_past_caches = false;
  bool reads_are_fast = false;
  // Overrides the table unless it is kFastest.
  Algorithm algorithm = Algorithm::kFastest;
};

// Runs the collectives of a group whose ranks share a Segment: they publish
// data there, or copy from tensor to tensor.
//
// Reductions combine the ranks' tensors in rank order, so the results are
// bitwise the same on all ranks.
class ShmCollectives : public cpu::Shortcut {
 public:
  // `segment` has the size RoundBuffer::BytesFor the transport's ranks (at
  // least two) and the rings of `traits`. `transport` must live longer.
  ShmCollectives(std::shared_ptr<Segment> segment,
                 std::shared_ptr<const Regions> regions,
                 cpu::Transport& transport, const ShmTraits& traits);
  ~ShmCollectives() override { round_buffer_.Leave(/*has_failed=*/false); }

  // False for kinds without an algorithm here; they use the connections.
  bool Takes(const Collective& collective) const override {
    return takes_[static_cast<size_t>(collective.kind)];
  }
  std::unique_ptr<Backend::Prepared> Prepare(
      const Collective& collective) override;
  Status Run(const Collective& collective,
             Backend::Prepared* prepared) override;
  void Wake() override { round_buffer_.Wake(); }
  void Leave(bool has_failed) override { round_buffer_.Leave(has_failed); }

 private:
  // The table's last answer, and the size it is for; kFastest before the first.
  struct Selected {
    size_t bytes = 0;
    Algorithm algorithm = Algorithm::kFastest;
  };

  // The path of a collective. All ranks decide alike, apart from `ordinary` of
  // an all_to_all.
  struct Paths {
    // The algorithm if the collective does not use symmetric memory. In an
    // all_to_all each rank may publish elements or addresses.
    Algorithm ordinary = Algorithm::kFastest;
    // Runs the collective staged; null for an all_to_all.
    StagedRun staged = nullptr;
    // Does not use symmetric memory even if there is some.
    bool ignores_regions = false;
    // RunOrdinary runs it if it ignores regions or there are none.
    bool is_plain = false;
  };

  struct PreparedPaths : Backend::Prepared {
    PreparedPaths(const Collective& collective, const Paths& paths)
        : header(MessageHeader::Of(collective)),
          digest(History::ComputeDigest(header)),
          paths(paths) {}
    // Without the sequence number.
    const MessageHeader header;
    const uint64_t digest;
    const Paths paths;
  };

  // `ordinary` and `symmetric`: the table's answers for its tensors.
  Paths MakePaths(const Collective& collective, Algorithm ordinary,
                  Algorithm symmetric);
  Status RunOnePath(const Collective& collective, const Paths& paths);
  bool Reads(Algorithm algorithm) const {
    return algorithm == Algorithm::kSingleCopy && traits_.reads_memory;
  }
  // Runs `paths.ordinary`, without a check for symmetric memory.
  inline Status RunOrdinary(const Collective& collective, const Paths& paths);
  Status RunAnAllToAll(const Collective& collective, const Paths& paths);
  // The table's answer. Select remembers the last one of each kind, and is
  // called only by the thread that runs a collective.
  Algorithm FindAlgorithm(CollectiveKind kind, Medium medium,
                          size_t bytes) const;
  Algorithm Select(CollectiveKind kind, Medium medium, size_t bytes);

  const std::shared_ptr<Segment> segment_;
  const std::shared_ptr<const Regions> regions_;
  RoundBuffer round_buffer_;
  const ShmTraits traits_;
  ShmContext context_;
  // By kind, for ordinary and for symmetric memory.
  std::array<std::array<Selected, 2>, kCollectiveKindCount> selected_ = {};
  // By kind.
  std::array<bool, kCollectiveKindCount> takes_ = {};
};

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_SHM_COLLECTIVES_H_
