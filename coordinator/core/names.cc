#include "coordinator/core/names.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace muster::coordinator::core {
namespace {

constexpr uint32_t kNoCharacter = 0xFFFFFFFF;

// Takes the first character off `text`, which is not empty; kNoCharacter when
// it does not begin with one.
uint32_t TakeCharacter(absl::string_view& text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  size_t size = 1;
  uint32_t character = lead;
  uint32_t least = 0;  // a character has one encoding, the shortest
  if (lead >= 0xF0) {
    size = lead <= 0xF4 ? 4 : 0;
    character = lead & 0x07;
    least = 0x10000;
  } else if (lead >= 0xE0) {
    size = 3;
    character = lead & 0x0F;
    least = 0x800;
  } else if (lead >= 0x80) {
    size = lead >= 0xC0 ? 2 : 0;
    character = lead & 0x1F;
    least = 0x80;
  }
  if (size == 0 || text.size() < size) return kNoCharacter;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return kNoCharacter;
    character = character << 6 | (byte(i) & 0x3F);
  }
  const bool surrogate = character >= 0xD800 && character <= 0xDFFF;
  if (character < least || character > 0x10FFFF || surrogate) {
    return kNoCharacter;
  }
  text.remove_prefix(size);
  return character;
}

bool IsControl(uint32_t c) { return c < 0x20 || (c >= 0x7F && c <= 0x9F); }

bool IsDirectionMark(uint32_t c) {
  return c == 0x061C || c == 0x200E || c == 0x200F ||
         (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

// What is wrong with the name; empty: nothing.
absl::string_view FaultOf(absl::string_view name) {
  while (!name.empty()) {
    const uint32_t character = TakeCharacter(name);
    if (character == kNoCharacter) return "is not UTF-8";
    if (IsControl(character)) return "has a control character";
    if (IsDirectionMark(character)) return "has a direction mark";
  }
  return "";
}

}  // namespace

absl::Status CheckName(const Limits& limits, absl::string_view verb,
                       const Offer& offer) {
  absl::Status status =
      CheckLimit("name_bytes", limits.name_bytes,
                 static_cast<int64_t>(offer.name.size()), offer);
  if (!status.ok()) return status;
  const absl::string_view fault = FaultOf(offer.name);
  if (fault.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(verb, ": ", offer.kind, " \"",
                                                 absl::CHexEscape(offer.name),
                                                 "\" ", fault));
}

}  // namespace muster::coordinator::core
