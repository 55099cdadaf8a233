// The value that another rank published. The input is a byte for the size of
// the world, and the value.

#include <cstdint>
#include <string>

#include "dataplane/backends/gloo/rendezvous.h"
#include "tests/fuzz/fuzz.h"

namespace muster::fuzz {

void FuzzOne(absl::string_view input) {
  if (input.empty()) return;
  const int world_size = 1 + static_cast<uint8_t>(input[0]);
  const auto addresses = dataplane::gloo_internal::DecodeAddresses(
      std::string(input.substr(1)), world_size);
  if (!addresses.ok()) {
    Require(absl::IsInvalidArgument(addresses.status()),
            addresses.status().ToString());
    return;
  }
  Require(static_cast<int>(addresses->addresses.size()) == world_size,
          "addresses of another world");
  const auto value = dataplane::gloo_internal::EncodeAddresses(*addresses);
  if (!value.ok()) return;
  const auto again =
      dataplane::gloo_internal::DecodeAddresses(*value, world_size);
  Require(again.ok(), "addresses that are not read again");
  // Bytes without a meaning are gone after the first time.
  Require(*dataplane::gloo_internal::EncodeAddresses(*again) == *value,
          "addresses that change from reading to reading");
}

}  // namespace muster::fuzz
