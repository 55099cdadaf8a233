#ifndef MUSTER_COORDINATOR_SERVER_AUTH_JOB_NAME_H_
#define MUSTER_COORDINATOR_SERVER_AUTH_JOB_NAME_H_

#include "absl/strings/string_view.h"
#include "muster/base/status.h"

namespace muster::coordinator {

// Checks that `name` consists of 1 to 128 characters of [A-Za-z0-9._-].
// Errors: INVALID_ARGUMENT.
Status CheckJobName(absl::string_view name);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_AUTH_JOB_NAME_H_
