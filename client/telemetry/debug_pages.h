// The pages that every worker process serves below /debug/, except the stacks.

#ifndef MUSTER_CLIENT_TELEMETRY_DEBUG_PAGES_H_
#define MUSTER_CLIENT_TELEMETRY_DEBUG_PAGES_H_

#include <string>

#include "muster/base/status.h"

namespace muster::worker {

// Returns the environment's variables as a JSON object. Shows the values of
// variables that are known to configure a job, and "(hidden)" for all others: a
// secret may have any name.
std::string EnvironmentJson();

// Returns glog's levels: {"minloglevel": 0, "v": 0}.
std::string LogJson();

// Sets the levels that `json` has.
// Errors: INVALID_ARGUMENT (no JSON object, another name, a value out of range:
//   the text names it).
Status SetLog(const std::string& json);

}  // namespace muster::worker

#endif  // MUSTER_CLIENT_TELEMETRY_DEBUG_PAGES_H_
