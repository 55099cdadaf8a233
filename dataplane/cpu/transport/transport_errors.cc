#include "dataplane/cpu/transport/transport_errors.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "dataplane/culprit.h"

namespace muster::dataplane::cpu {

std::string WithoutSourcePosition(absl::string_view text) {
  const size_t end = text.find("] ");
  if (text.empty() || text[0] != '[' || end == absl::string_view::npos) {
    return std::string(text);
  }
  return std::string(text.substr(end + 2));
}

Status Prefixed(absl::string_view prefix, const Status& status) {
  if (Verdict(status).has_value()) return status;
  Status result(status.code(), absl::StrCat(prefix, ": ", status.message()));
  status.ForEachPayload([&](const std::string& url, const std::string& value) {
    result.SetPayload(url, value);
  });
  return result;
}

}  // namespace muster::dataplane::cpu
