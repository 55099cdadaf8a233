#include "coordinator/server/auth/job_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace muster::coordinator {
namespace {

constexpr size_t kJobNameBytesMax = 128;

bool IsJobNameByte(char c) {
  return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
}

}  // namespace

Status CheckJobName(absl::string_view name) {
  if (!name.empty() && name.size() <= kJobNameBytesMax &&
      std::all_of(name.begin(), name.end(), IsJobNameByte)) {
    return OkStatus();
  }
  return InvalidArgumentError(absl::StrCat(
      "job name ", base::Quote(name, kJobNameBytesMax), " is malformed",
      ": 1 to 128 of A-Z a-z 0-9 . _ - are allowed"));
}

}  // namespace muster::coordinator
