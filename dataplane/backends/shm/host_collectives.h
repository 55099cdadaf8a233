#ifndef MUSTER_DATAPLANE_BACKENDS_SHM_HOST_COLLECTIVES_H_
#define MUSTER_DATAPLANE_BACKENDS_SHM_HOST_COLLECTIVES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/backends/gloo/engine.h"
#include "dataplane/backends/gloo/exchange.h"
#include "dataplane/backends/gloo/mesh.h"
#include "dataplane/backends/shm/board.h"
#include "dataplane/backends/shm/segment.h"
#include "dataplane/collective.h"

namespace muster::dataplane::shm_internal {

// What a rank has run, by which others see whether they ran the same.
struct History {
  uint64_t hash = 0;
  // The last one.
  gloo_internal::NoteHeader last = {};
};

// The collectives of a group whose ranks share a Segment: all of them begin
// with a round of its Board, in which the ranks see that they run the same, and
// those that are not too large go on there to their end.
//
// A tensor of a reduction is combined in the order of the ranks, so the results
// are bitwise the same everywhere.
class HostCollectives : public gloo_internal::Shortcut {
 public:
  // `segment` has Board::BytesFor(the mesh's world size); see Board for
  // `is_crowded`. `mesh` lives longer.
  HostCollectives(std::unique_ptr<Segment> segment, gloo_internal::Mesh& mesh,
                  bool is_crowded);
  ~HostCollectives() override { board_.Leave(); }

  absl::StatusOr<bool> Run(const Collective& collective) override;
  void Wake() override { board_.Wake(); }
  void Leave() override { board_.Leave(); }

 private:
  const std::unique_ptr<Segment> segment_;
  gloo_internal::Mesh& mesh_;
  Board board_;
  // Of accumulators that are no elements; kept for the next collective.
  std::vector<std::byte> scratch_;
  History history_;
};

}  // namespace muster::dataplane::shm_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_SHM_HOST_COLLECTIVES_H_
