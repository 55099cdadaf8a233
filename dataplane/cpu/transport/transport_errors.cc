#include "dataplane/cpu/transport/transport_errors.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "dataplane/culprit.h"

namespace muster::dataplane::cpu {

Status Prefixed(absl::string_view prefix, const Status& status) {
  if (Verdict(status).has_value()) return status;
  Status result(status.code(), absl::StrCat(prefix, ": ", status.message()));
  status.ForEachPayload([&](const std::string& url, const std::string& value) {
    result.SetPayload(url, value);
  });
  return result;
}

}  // namespace muster::dataplane::cpu
