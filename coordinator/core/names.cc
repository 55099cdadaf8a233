#include "coordinator/core/names.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace muster::coordinator::core {
namespace {

// Describes what is wrong with the name; empty: nothing.
absl::string_view FindFault(absl::string_view name) {
  while (!name.empty()) {
    const uint32_t character = base::TakeCharacter(name);
    if (character == base::kNoCharacter) return "is not UTF-8";
    if (base::IsControl(character)) return "has a control character";
    if (base::IsDirectionMark(character)) return "has a direction mark";
  }
  return "";
}

}  // namespace

Status CheckName(const Limits& limits, absl::string_view verb,
                 const Offer& offer) {
  Status status = CheckLimit("name_bytes", limits.name_bytes,
                             static_cast<int64_t>(offer.name.size()), offer);
  if (!status.ok()) return status;
  const absl::string_view fault = FindFault(offer.name);
  if (fault.empty()) return OkStatus();
  return InvalidArgumentError(absl::StrCat(
      verb, ": ", offer.kind, " ", base::Quote(offer.name), " ", fault));
}

}  // namespace muster::coordinator::core
