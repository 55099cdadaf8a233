// The collectives of a group on several hosts: in shared memory within each
// host, and over inter-host groups between hosts.

#ifndef MUSTER_DATAPLANE_CPU_SHM_HIERARCHICAL_H_
#define MUSTER_DATAPLANE_CPU_SHM_HIERARCHICAL_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "dataplane/cpu/engine/engine.h"
#include "dataplane/cpu/shm/inter_host_group.h"
#include "dataplane/cpu/shm/regions.h"
#include "dataplane/cpu/shm/round_buffer.h"
#include "dataplane/cpu/shm/rounds.h"
#include "dataplane/cpu/shm/segment.h"
#include "dataplane/cpu/shm/shm_collectives.h"
#include "dataplane/cpu/shm/topology.h"
#include "dataplane/cpu/transport/subset_transport.h"
#include "dataplane/cpu/transport/transport.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane::shm {

// Called with the error of a collective that has failed but not ended yet; ends
// everything that the collective waits for. Called from any thread.
using TellFailure =
    std::function<void(const Collective& collective, const Status&)>;

// Runs the collectives of a group on several hosts, at least one of which has
// several ranks. The ranks of a host do what they can in the memory that they
// share; the rest goes between hosts over inter-host groups. See README.md.
class Hierarchical : public cpu::Shortcut {
 public:
  // The ranks of this host share `segment`, which has the size
  // RoundBuffer::BytesFor their number and the rings of `traits`, and
  // `regions`, which number them by place. `transport` must live longer.
  Hierarchical(std::shared_ptr<Segment> segment,
               std::shared_ptr<const Regions> regions, const Topology& hosts,
               cpu::Transport& transport, const ShmTraits& traits,
               TellFailure tell_failure);
  ~Hierarchical() override { round_buffer_.Leave(/*has_failed=*/false); }

  bool Takes(const Collective& collective) const override;
  Status Run(const Collective& collective,
             Backend::Prepared* prepared) override;
  void Wake() override { round_buffer_.Wake(); }
  void Leave(bool has_failed) override { round_buffer_.Leave(has_failed); }

 private:
  // The same on all ranks of this host that run the same collective.
  bool LooksForSymmetric(const Collective& collective) const;

  const std::shared_ptr<Segment> segment_;
  const std::shared_ptr<const Regions> regions_;
  const Topology topology_;
  cpu::Transport& transport_;
  // The ranks of this host.
  cpu::SubsetTransport near_;
  // nullopt if this rank's place is in no inter-host group.
  std::optional<InterHostGroup> inter_host_;
  RoundBuffer round_buffer_;
  const ShmTraits traits_;
  const TellFailure tell_failure_;
  ShmContext context_;
  // Accumulators and results of reductions.
  std::vector<std::byte> accumulators_;
  std::vector<std::byte> results_;
};

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_HIERARCHICAL_H_
