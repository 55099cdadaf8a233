// What members, hosts, groups and barriers may be called.

#ifndef MUSTER_COORDINATOR_CORE_NAMES_H_
#define MUSTER_COORDINATOR_CORE_NAMES_H_

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "coordinator/core/limits.h"

namespace muster::coordinator::core {

// Whether `verb` may use the name. Names are shown in logs, on terminals and on
// pages, so they are UTF-8 without what would act there: control characters
// (U+0000 to U+001F, U+007F to U+009F) and marks that turn the direction of
// the text around them.
// RESOURCE_EXHAUSTED (name_bytes), INVALID_ARGUMENT (`register: host "a\\n" has
// a control character`).
Status CheckName(const Limits& limits, absl::string_view verb,
                 const Offer& offer);

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_NAMES_H_
