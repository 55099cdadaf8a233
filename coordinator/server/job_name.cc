#include "coordinator/server/job_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace muster::coordinator {
namespace {

constexpr size_t kJobNameBytesMax = 128;

bool IsJobNameByte(char c) {
  return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
}

}  // namespace

absl::Status CheckJobName(absl::string_view name) {
  if (!name.empty() && name.size() <= kJobNameBytesMax &&
      std::all_of(name.begin(), name.end(), IsJobNameByte)) {
    return absl::OkStatus();
  }
  const absl::string_view shown = name.substr(0, kJobNameBytesMax);
  return absl::InvalidArgumentError(absl::StrCat(
      "job name \"", absl::CHexEscape(shown),
      shown.size() < name.size() ? "...\" is malformed" : "\" is malformed",
      ": 1 to 128 of A-Z a-z 0-9 . _ - are allowed"));
}

}  // namespace muster::coordinator
