#include "dataplane/cpu/collectives/algorithms.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {

// Dissemination: in the round with distance d (1, 2, 4, ...) each rank tells
// the rank d ahead that it and the d - 1 ranks behind it have come, and
// receives the same from the rank d behind. After ceil(log2(n)) rounds it knows
// this of all. (Hensgen, Finkel, Manber: Two algorithms for barrier
// synchronization, 1988.)
Status Barrier(const Collective& collective, Exchange& exchange) {
  exchange.set_algorithm("dissemination");
  const int world_size = exchange.world_size();
  for (int distance = 1; distance < world_size; distance *= 2) {
    const int ahead = (exchange.rank() + distance) % world_size;
    const int behind = (exchange.rank() - distance + world_size) % world_size;
    Status sent = exchange.SendNote(ahead, nullptr, 0);
    if (!sent.ok()) return sent;
    Status received = exchange.ReceiveNote(behind).status();
    if (!received.ok()) return received;
  }
  return OkStatus();
}

}  // namespace muster::dataplane::cpu
