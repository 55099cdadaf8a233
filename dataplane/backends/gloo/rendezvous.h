#ifndef MUSTER_DATAPLANE_BACKENDS_GLOO_RENDEZVOUS_H_
#define MUSTER_DATAPLANE_BACKENDS_GLOO_RENDEZVOUS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/backend.h"

namespace muster::dataplane::gloo_internal {

// One pair's listening address as Gloo's bytes: a socket address with its port
// at bytes 2 and 3, then a sequence number.
using AddressBytes = std::vector<char>;

// The one value that a rank publishes: its host's address once, and a port per
// pair. `addresses[r]` is where it waits for rank r; at its own rank where its
// lines are, or empty. Fails if they are not on one host.
absl::StatusOr<std::string> EncodeAddresses(
    const std::vector<AddressBytes>& addresses);

// The inverse. kInvalidArgument if `value` is not that of a group of
// `world_size`.
absl::StatusOr<std::vector<AddressBytes>> DecodeAddresses(
    const std::string& value, int world_size);

// Where peers are, by rank; empty at this rank.
struct PeerAddresses {
  // Where rank r waits for this one.
  std::vector<AddressBytes> pairs;
  // Where it waits for lines.
  std::vector<AddressBytes> lines;
};

// Publishes `addresses` (see EncodeAddresses) and returns those of the peers.
// One Set and one Get. Errors name the ranks that did not come.
absl::StatusOr<PeerAddresses> ExchangeAddresses(
    const std::vector<AddressBytes>& addresses, const BackendOptions& options);

// "rank 3", "ranks 3, 5", at most 8 of them and then "and 120 more".
std::string DescribeRanks(const std::vector<int>& ranks);

}  // namespace muster::dataplane::gloo_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_GLOO_RENDEZVOUS_H_
