#ifndef MUSTER_DATAPLANE_BACKENDS_GLOO_RENDEZVOUS_H_
#define MUSTER_DATAPLANE_BACKENDS_GLOO_RENDEZVOUS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/backend.h"

namespace muster::dataplane::gloo_internal {

// One pair's listening address as Gloo's bytes: a socket address with its port
// at bytes 2 and 3, then a sequence number.
using AddressBytes = std::vector<char>;

// What a rank publishes.
struct Published {
  // `addresses[r]` is where it waits for rank r; at its own rank where its
  // lines are, or empty.
  std::vector<AddressBytes> addresses = {};
  // See LineAddress.
  uint64_t nonce = 0;
};

// Where a rank waits for lines, and a number by which it knows those who mean
// this very group: a port may have been another group's before.
struct LineAddress {
  AddressBytes socket = {};
  uint64_t nonce = 0;
};

// The one value of a rank: the nonce, its host's address once, and a port per
// pair. Fails if they are not on one host.
absl::StatusOr<std::string> EncodeAddresses(const Published& published);

// The inverse. kInvalidArgument if `value` is not that of a group of
// `world_size`.
absl::StatusOr<Published> DecodeAddresses(const std::string& value,
                                          int world_size);

// Where peers are, by rank; empty at this rank.
struct PeerAddresses {
  // Where rank r waits for this one.
  std::vector<AddressBytes> pairs;
  // Where it waits for lines.
  std::vector<LineAddress> lines;
};

// Publishes `published` and returns where the peers are. One Set and one Get.
// Errors name the ranks that did not come.
absl::StatusOr<PeerAddresses> ExchangeAddresses(const Published& published,
                                                const BackendOptions& options);

// "rank 3", "ranks 3, 5", at most 8 of them and then "and 120 more".
std::string DescribeRanks(const std::vector<int>& ranks);

}  // namespace muster::dataplane::gloo_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_GLOO_RENDEZVOUS_H_
