#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_ADDRESS_EXCHANGE_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_ADDRESS_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "muster/base/status.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane::cpu {

// A socket address, followed by bytes that are ignored.
using AddressBytes = std::vector<char>;

// The size of the socket address at the start of `address`, by its family.
size_t AddressSize(const AddressBytes& address);

// The address on which a rank accepts its peers, and a nonce that identifies
// this very group: the port may have belonged to another group before.
struct RankAddress {
  AddressBytes socket = {};
  uint64_t nonce = 0;
  // The backend's name, at most 8 letters. All backends that use these
  // connections publish under the same keys, so each rank compares the names.
  std::string backend = "gloo";
  // The name of the transport, at most 8 letters: "tcp", "gloo".
  std::string transport = "tcp";
  // The number of network interfaces that the rank uses. Each has its own
  // connections.
  int interfaces = 1;
  // Tuning::digest of the rank's table.
  uint64_t tuning = 0;
};

// The value that a rank of a group of `world_size` publishes.
std::string EncodeAddress(const RankAddress& address, int world_size);

// The inverse. kInvalidArgument if `value` is not from a group of `world_size`.
StatusOr<RankAddress> DecodeAddress(const std::string& value, int world_size);

// Publishes `own` and returns the peers' addresses by rank; this rank's entry
// is empty. Makes one Set and one Get. Errors name the ranks that did not come,
// or a rank with another backend, transport or number of interfaces.
StatusOr<std::vector<RankAddress>> ExchangeAddresses(
    const RankAddress& own, const BackendOptions& options);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_ADDRESS_EXCHANGE_H_
