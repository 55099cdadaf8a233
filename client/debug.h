// For finding out what goes wrong: debug levels, the flight recorder, a
// breakpoint for one rank.

#ifndef MUSTER_CLIENT_DEBUG_H_
#define MUSTER_CLIENT_DEBUG_H_

#include <chrono>
#include <memory>
#include <string>

#include "client/process_group.h"

namespace muster {

enum class DebugLevel {
  kOff,
  // Groups that form and end are in the log, a line each with their ranks.
  kInfo,
  // Besides, before a collective runs, all ranks of the group compare what they
  // are about to run: operation, number, element type, device, shape,
  // reduction, root, splits. When they differ it fails on all of them, with an
  // error that shows what most of them run and who differs; when some do not
  // come, with one that names them, at its timeout. The comparison is made by
  // the coordinator's store and takes a few hundred microseconds. Sends and
  // receives are not compared before they run, since any order of them may be
  // right: a receive itself finds another type or size, and one that times out
  // says in which ones its peer waits by then, and whether any goes with it.
  kDetail,
};

// MUSTER_DEBUG, or else TORCH_DISTRIBUTED_DEBUG, is OFF, INFO or DETAIL, in any
// case; OFF if there is none. Groups that are formed later have the new level;
// all ranks must have the same.
// The variable is read at the first call, and by SetDebugLevelFromEnv. Get
// throws DistError (kInvalidArgument) if it had another value then, as does
// InitProcessGroup.
DebugLevel GetDebugLevel();
void SetDebugLevel(DebugLevel level);
// Reads it again. Throws as GetDebugLevel.
void SetDebugLevelFromEnv();

// The flight recorder: the last collectives, sends and receives of all groups
// of this process, as many as TORCH_FR_BUFFER_SIZE says (2000; 0: none). JSON
// with the fields of c10d's flight recorder, for its tools.
//
// When a group fails it is written by itself, before the running collectives
// fail, to TORCH_FR_DUMP_TEMP_FILE with the rank at its end, if that is set.
std::string FlightRecorderJson();

// The same into a file, which is there as a whole or not at all.
// Throws DistError (kNotFound, kPermissionDenied, kResourceExhausted or what
// else the system says; the text names the file and the cause).
void DumpFlightRecorder(const std::string& path);

struct BreakpointOptions {
  // Null is the default group.
  std::shared_ptr<ProcessGroup> group = nullptr;
  // For the debugger to come, and the others to wait.
  std::chrono::milliseconds timeout = std::chrono::hours(24);
};

// Global rank `rank` waits for a debugger and stops in it; the others wait
// until it has gone on. All ranks of the group make the call. The log of the
// rank says how to attach: in such a way that its other threads go on, or the
// coordinator would take it for lost. If no debugger comes the rank throws, and
// the others go on. Throws DistError (kInvalidArgument: not in the group;
// kDeadlineExceeded: no debugger came, or ranks are missing; both end nothing),
// and what MonitoredBarrier throws.
void Breakpoint(int rank = 0, const BreakpointOptions& options = {});

}  // namespace muster

#endif  // MUSTER_CLIENT_DEBUG_H_
