#ifndef MUSTER_DATAPLANE_BACKENDS_SHM_HOST_COLLECTIVES_H_
#define MUSTER_DATAPLANE_BACKENDS_SHM_HOST_COLLECTIVES_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "dataplane/backends/gloo/engine.h"
#include "dataplane/backends/gloo/mesh.h"
#include "dataplane/backends/shm/board.h"
#include "dataplane/backends/shm/rounds.h"
#include "dataplane/backends/shm/segment.h"
#include "dataplane/backends/shm/staged.h"
#include "dataplane/collective.h"

namespace muster::dataplane::shm_internal {

// The same on all ranks of a group.
struct HostTraits {
  // There are more ranks than processors; see Board.
  bool is_crowded = false;
  // What takes more rounds than this is read from the other ranks' memory, in
  // one copy. kAnyRounds: nothing is, it need not be possible.
  size_t staged_rounds_max = kAnyRounds;
};

// The collectives of a group whose ranks share a Segment: small ones by what
// they show in it, large ones from tensor to tensor.
//
// A tensor of a reduction is combined in the order of the ranks, so the results
// are bitwise the same everywhere.
class HostCollectives : public gloo_internal::Shortcut {
 public:
  // `segment` has Board::BytesFor(the mesh's world size). `mesh` lives longer.
  HostCollectives(std::unique_ptr<Segment> segment, gloo_internal::Mesh& mesh,
                  const HostTraits& traits);
  ~HostCollectives() override { board_.Leave(); }

  absl::Status Run(const Collective& collective) override;
  void Wake() override { board_.Wake(); }
  void Leave() override { board_.Leave(); }

 private:
  const std::unique_ptr<Segment> segment_;
  Board board_;
  const size_t staged_rounds_max_;
  Workshop shop_;
};

}  // namespace muster::dataplane::shm_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_SHM_HOST_COLLECTIVES_H_
