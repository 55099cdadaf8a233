#include "dataplane/cpu/transport/transport_errors.h"

#include <string>
#include <vector>

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

Status ToAbortCause(Status why) {
  if (!IsCancelled(why)) return why;
  const std::vector<int> culprits = CulpritRanks(why);
  why = UnavailableError(why.message());
  SetCulpritRanks(why, culprits);
  return why;
}

}  // namespace muster::dataplane::cpu
