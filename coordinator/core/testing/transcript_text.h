// Formats the coordinator's output for golden transcripts.

#ifndef MUSTER_COORDINATOR_CORE_TESTING_TRANSCRIPT_TEXT_H_
#define MUSTER_COORDINATOR_CORE_TESTING_TRANSCRIPT_TEXT_H_

#include <string>
#include <vector>

#include "coordinator/core/ids.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/payload.h"

namespace muster::coordinator::core {

// `reply w1 ok generation=1 running`; ends with a newline, as the next does.
std::string ToText(const Reply& reply);

// `event to a,b: c/1 lost, rank 2 of generation 1 (over), host-c pid 7: ...`.
std::string ToText(const Publication& publication);

// `0,3`, without a newline.
std::string Ranks(const std::vector<MissingRank>& missing);
std::string Ranks(const std::vector<Rank>& ranks);

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_TESTING_TRANSCRIPT_TEXT_H_
