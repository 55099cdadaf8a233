// Formats a barrier's results for people. BarrierResult holds the same facts,
// so no program needs to parse these texts.

#ifndef MUSTER_COORDINATOR_CORE_BARRIER_TEXT_H_
#define MUSTER_COORDINATOR_CORE_BARRIER_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/payload.h"

namespace muster::coordinator::core {

// `barrier "epoch_end" #12 on group "world"`; without the number where
// `instance` is 0, without the group where that has no name.
std::string BarrierTitle(absl::string_view group, absl::string_view barrier,
                         int64_t instance);

// `5 (trainer-5, lost: no heartbeat for 11s (lease 10s))`. A rank that is late
// and was silent for a good part of its `lease` is said to be so.
std::string MissingText(const MissingRank& missing, Duration lease);

// The status that goes with a decision. `conflict` says who disagrees about
// what; `generation` is the one that the barrier belongs to.
Status BarrierStatus(const BarrierResult& result, absl::string_view conflict,
                     Generation generation, Duration lease);

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_BARRIER_TEXT_H_
