#include "base/status.h"
#include "dataplane/cpu/collectives/algorithms.h"

namespace muster::dataplane::cpu {

// Dissemination: in the round with distance d (1, 2, 4, ...) each rank tells
// the one d ahead that it and the d - 1 before it have come, and hears the same
// from the one d behind. After ceil(log2(n)) rounds it has heard of all.
// (Hensgen, Finkel, Manber: Two algorithms for barrier synchronization, 1988.)
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
