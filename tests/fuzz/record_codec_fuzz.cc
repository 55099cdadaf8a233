// Decodes bytes from a storage. The input is a byte for the length of the key,
// the key and the value.

#include <cstdint>
#include <string>

#include "coordinator/storage/record_codec.h"
#include "tests/fuzz/fuzz.h"

namespace muster::fuzz {

void FuzzOne(absl::string_view input) {
  if (input.empty()) return;
  const auto size = static_cast<uint8_t>(input[0]);
  const absl::string_view key = input.substr(1, size);
  const absl::string_view value =
      input.size() > 1u + size ? input.substr(1 + size) : "";
  const auto decoded = coordinator::DecodeRecord(key, value);
  if (!decoded.ok()) {
    Require(IsDataLoss(decoded.status()), "another error than DATA_LOSS");
    return;
  }
  // A record that was decoded must survive encoding and decoding.
  const std::string own_key =
      coordinator::EncodeKey(decoded->job, decoded->record);
  const auto own_value = coordinator::EncodeValue(decoded->record);
  Require(own_value.has_value(), "a stored record that is erased");
  const auto again = coordinator::DecodeRecord(own_key, *own_value);
  Require(again.ok(), "a record that is not read again");
  Require(coordinator::EncodeKey(again->job, again->record) == own_key &&
              coordinator::EncodeValue(again->record) == own_value,
          "a record that changes from reading to reading");
}

}  // namespace muster::fuzz
