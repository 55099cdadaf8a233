#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_TRANSPORT_ERRORS_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_TRANSPORT_ERRORS_H_

#include "absl/strings/string_view.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {

// `status` with `prefix` in front of its text and its payloads kept. A verdict
// is returned unchanged.
Status Prefixed(absl::string_view prefix, const Status& status);

// The cause with which a transport that is being connected is aborted after an
// interruption because of `why`. kCancelled would tell the peers that this rank
// leaves in peace.
Status ToAbortCause(Status why);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_TRANSPORT_ERRORS_H_
