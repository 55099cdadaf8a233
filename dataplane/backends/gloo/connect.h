#ifndef MUSTER_DATAPLANE_BACKENDS_GLOO_CONNECT_H_
#define MUSTER_DATAPLANE_BACKENDS_GLOO_CONNECT_H_

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "dataplane/backends/gloo/rendezvous.h"
#include "dataplane/instant.h"

namespace gloo::transport {
class Context;
}

namespace muster::dataplane::gloo_internal {

// Connects every pair of `context`, which listen at `own`, to its counterpart
// at `remote`, by `deadline`. Calls spin(true) while it makes connections, of
// which each waits for a turn of Gloo's event loop, and spin(false) when it
// only waits for others. Errors: kDeadlineExceeded, naming the ranks that did
// not connect; kUnavailable, naming the one to which it cannot connect.
absl::Status ConnectPairs(::gloo::transport::Context& context,
                          const std::vector<AddressBytes>& own,
                          const std::vector<AddressBytes>& remote,
                          Instant deadline,
                          const std::function<void(bool)>& spin);

// The sockets of the pairs that are connected. Gloo does not give them away:
// they are found by their addresses among the descriptors of this process.
std::vector<int> FindSockets(const std::vector<AddressBytes>& own,
                             const std::vector<AddressBytes>& remote);

}  // namespace muster::dataplane::gloo_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_GLOO_CONNECT_H_
