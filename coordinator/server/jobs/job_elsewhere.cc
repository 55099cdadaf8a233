#include "coordinator/server/jobs/job_elsewhere.h"

#include "absl/strings/str_cat.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {

Status JobElsewhereError(const std::string& owner) {
  Status status = UnavailableError(
      owner.empty() ? "the job has no coordinator at the moment; call again"
                    : absl::StrCat("the job is at the coordinator ", owner,
                                   "; call that one"));
  v1::JobOwner payload;
  payload.set_address(owner);
  v1::SetJobOwner(payload, &status);
  return status;
}

}  // namespace muster::coordinator
