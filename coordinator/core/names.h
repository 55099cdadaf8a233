// Checks the names of members, hosts, groups and barriers.

#ifndef MUSTER_COORDINATOR_CORE_NAMES_H_
#define MUSTER_COORDINATOR_CORE_NAMES_H_

#include "absl/strings/string_view.h"
#include "coordinator/core/limits.h"
#include "muster/base/status.h"

namespace muster::coordinator::core {

// Checks a name given to `verb`. Names appear in logs, on terminals and on
// pages, so they must be UTF-8 without characters that act there: control
// characters (U+0000 to U+001F, U+007F to U+009F) and marks that change the
// direction of the surrounding text.
// Errors: RESOURCE_EXHAUSTED (name_bytes), INVALID_ARGUMENT (`register: host
//   "a\\n" has a control character`).
Status CheckName(const Limits& limits, absl::string_view verb,
                 const Offer& offer);

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_NAMES_H_
