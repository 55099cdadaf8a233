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
// pair. `addresses[r]` is where it waits for rank r; empty at its own rank.
// Fails if they are not on one host.
absl::StatusOr<std::string> EncodeAddresses(
    const std::vector<AddressBytes>& addresses);

// The inverse. kInvalidArgument if `value` is not that of a group of
// `world_size`.
absl::StatusOr<std::vector<AddressBytes>> DecodeAddresses(
    const std::string& value, int world_size);

// Publishes `addresses` and returns where every peer waits for this rank:
// result[r] is rank r's address for this one, empty at this rank. One Set and
// one Get. Errors name the ranks that did not come.
absl::StatusOr<std::vector<AddressBytes>> ExchangeAddresses(
    const std::vector<AddressBytes>& addresses, const BackendOptions& options);

// "rank 3", "ranks 3, 5", at most 8 of them and then "and 120 more".
std::string DescribeRanks(const std::vector<int>& ranks);

}  // namespace muster::dataplane::gloo_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_GLOO_RENDEZVOUS_H_
