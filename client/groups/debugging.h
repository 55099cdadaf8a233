// The debug level and the flight recorder, which all groups of a process share.

#ifndef MUSTER_CLIENT_GROUPS_DEBUGGING_H_
#define MUSTER_CLIENT_GROUPS_DEBUGGING_H_

#include <memory>

#include "base/status.h"
#include "client/debug.h"
#include "dataplane/observe/flight_recorder.h"

namespace muster::internal {

// Of the environment. Throws DistError (kInvalidArgument): what is wrong there.
DebugLevel DebugLevelFromEnv();
DebugLevel CurrentDebugLevel();
void OverrideDebugLevel(DebugLevel level);

// The process's. Throws DistError (kInvalidArgument): TORCH_FR_BUFFER_SIZE is
// no number.
std::shared_ptr<dataplane::FlightRecorder> Recorder();

// Writes it to where the environment says, if it does, and to the log that it
// has.
void DumpAfterFailure(int global_rank);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_DEBUGGING_H_
