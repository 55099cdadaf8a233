// The debug level and the flight recorder, which all groups of a process share.

#ifndef MUSTER_CLIENT_GROUPS_DEBUGGING_H_
#define MUSTER_CLIENT_GROUPS_DEBUGGING_H_

#include <memory>

#include "dataplane/observe/flight_recorder.h"
#include "muster/base/status.h"
#include "muster/debug.h"

namespace muster::internal {

// Reads the environment. Throws DistError (kInvalidArgument) for a bad value.
DebugLevel DebugLevelFromEnv();
DebugLevel CurrentDebugLevel();
void OverrideDebugLevel(DebugLevel level);

// Returns the process's recorder. Throws DistError (kInvalidArgument) if
// TORCH_FR_BUFFER_SIZE is no number.
std::shared_ptr<dataplane::FlightRecorder> Recorder();

// Writes the recorder to the file that the environment names, if any, and logs
// the path.
void DumpAfterFailure(int global_rank);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_DEBUGGING_H_
