// Decodes the value that another rank published. The input is a byte for the
// size of the world, and the value.

#include <cstdint>
#include <string>

#include "dataplane/cpu/transport/address_exchange.h"
#include "tests/fuzz/fuzz.h"

namespace muster::fuzz {

void FuzzOne(absl::string_view input) {
  if (input.empty()) return;
  const int world_size = 1 + static_cast<uint8_t>(input[0]);
  const auto address =
      dataplane::cpu::DecodeAddress(std::string(input.substr(1)), world_size);
  if (!address.ok()) {
    Require(IsInvalidArgument(address.status()), address.status().ToString());
    return;
  }
  const std::string value = dataplane::cpu::EncodeAddress(*address, world_size);
  const auto again = dataplane::cpu::DecodeAddress(value, world_size);
  Require(again.ok(), "an address that is not read again");
  // Meaningless bytes are dropped the first time.
  Require(dataplane::cpu::EncodeAddress(*again, world_size) == value,
          "an address that changes from reading to reading");
}

}  // namespace muster::fuzz
