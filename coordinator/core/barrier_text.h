// Formats a barrier's results for people. BarrierResult holds the same facts,
// so no program needs to parse these texts.

#ifndef MUSTER_COORDINATOR_CORE_BARRIER_TEXT_H_
#define MUSTER_COORDINATOR_CORE_BARRIER_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/payload.h"
#include "muster/base/status.h"

namespace muster::coordinator::core {

// `barrier "epoch_end" #12 on group "world"`. Without the number if `instance`
// is 0; without the group if `group` is empty.
std::string BarrierTitle(absl::string_view group, absl::string_view barrier,
                         int64_t instance);

// `5 (trainer-5, lost: no heartbeat for 11s (lease 10s))`. Also names the
// silence of a late rank if that is a good part of its `lease`.
std::string MissingText(const MissingRank& missing, Duration lease);

// The status for a decision. `conflict` describes a disagreement between
// callers; `generation` is the barrier's.
Status BarrierStatus(const BarrierResult& result, absl::string_view conflict,
                     Generation generation, Duration lease);

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_BARRIER_TEXT_H_
