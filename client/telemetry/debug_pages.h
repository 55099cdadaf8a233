// The pages that every worker process serves below /debug/, except the stacks.

#ifndef MUSTER_CLIENT_TELEMETRY_DEBUG_PAGES_H_
#define MUSTER_CLIENT_TELEMETRY_DEBUG_PAGES_H_

#include <string>

#include "base/status.h"

namespace muster::worker {

// The environment's variables as a JSON object. Those whose names are known to
// say how a job is run have their value, all others "(hidden)": a secret may
// have any name.
std::string EnvironmentJson();

// glog's levels: {"minloglevel": 0, "v": 0}.
std::string LogJson();

// Sets those of LogJson that `json` has.
// Errors: INVALID_ARGUMENT (no JSON object, another name, a value out of range:
//   the text names it).
Status SetLog(const std::string& json);

}  // namespace muster::worker

#endif  // MUSTER_CLIENT_TELEMETRY_DEBUG_PAGES_H_
