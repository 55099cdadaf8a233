#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_ADDRESS_EXCHANGE_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_ADDRESS_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "dataplane/backend.h"

namespace muster::dataplane::cpu {

// A socket address, followed by bytes that are ignored here: Gloo's addresses
// have a sequence number there.
using AddressBytes = std::vector<char>;

// How many bytes of it are the socket address, of which it has the family.
size_t AddressSize(const AddressBytes& address);

// The address on which a rank accepts its peers, and a nonce that identifies
// this very group: the port may have belonged to another group before.
struct RankAddress {
  AddressBytes socket = {};
  uint64_t nonce = 0;
  // What it is a backend of, of up to 8 letters: those that share this one's
  // connections meet under the same keys.
  std::string backend = "gloo";
  // How many network interfaces it uses, each with connections of its own.
  int interfaces = 1;
};

// The one value of a rank of a group of `world_size`.
std::string EncodeAddress(const RankAddress& address, int world_size);

// The inverse. kInvalidArgument if `value` is not that of a group of
// `world_size`.
StatusOr<RankAddress> DecodeAddress(const std::string& value, int world_size);

// Publishes `own` and returns where the peers are, by rank; empty at this one.
// One Set and one Get. Errors name the ranks that did not come, and one that
// has another backend or another number of interfaces.
StatusOr<std::vector<RankAddress>> ExchangeAddresses(
    const RankAddress& own, const BackendOptions& options);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_ADDRESS_EXCHANGE_H_
