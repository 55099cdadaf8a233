// Tools for debugging: debug levels, the flight recorder, and a breakpoint for
// one rank.

#ifndef MUSTER_DEBUG_H_
#define MUSTER_DEBUG_H_

#include <chrono>
#include <memory>
#include <string>

#include "muster/base/export.h"
#include "muster/process_group.h"

namespace MUSTER_EXPORT muster {

enum class DebugLevel {
  kOff,
  // Logs one line, with the ranks, when a group forms or ends.
  kInfo,
  // Does what kInfo does, and compares each collective on all ranks of the
  // group before it runs: operation, number, element type, device, shape,
  // reduction, root, splits. If they differ, the collective fails on all ranks
  // with an error that shows what most ranks run and which ranks differ. If
  // some ranks do not come, it fails at its timeout with an error that names
  // them. The comparison goes through the coordinator's store and takes a few
  // hundred microseconds.
  //
  // Sends and receives are not compared before they run, since any order of
  // them may be right. A receive itself detects another type or size. A send or
  // receive that times out says in which sends and receives its peer waits by
  // then, and whether one of them matches.
  kDetail,
};

// The level is the value of MUSTER_DEBUG, else of TORCH_DISTRIBUTED_DEBUG: OFF,
// INFO or DETAIL, in any case; OFF if neither is set. A new level applies to
// groups that are formed later. All ranks must have the same level.
// The variables are read by the first call and by SetDebugLevelFromEnv. If the
// value is another one, GetDebugLevel and InitProcessGroup throw DistError
// (kInvalidArgument).
DebugLevel GetDebugLevel();
void SetDebugLevel(DebugLevel level);
// Reads the variables again. Throws as GetDebugLevel.
void SetDebugLevelFromEnv();

// Returns the content of the flight recorder as JSON, with the fields of c10d's
// flight recorder, for its tools. The recorder holds the last collectives,
// sends and receives of all groups of this process, at most
// TORCH_FR_BUFFER_SIZE of them (default 2000; 0: none).
//
// If TORCH_FR_DUMP_TEMP_FILE is set, a group that fails writes the recorder to
// that path with the rank appended, before its running collectives fail.
std::string FlightRecorderJson();

// Writes FlightRecorderJson() to a file, completely or not at all.
// Throws DistError: kNotFound, kPermissionDenied, kResourceExhausted or the
// code of another system error; the text names the file and the cause.
void DumpFlightRecorder(const std::string& path);

struct BreakpointOptions {
  // Null is the default group.
  std::shared_ptr<ProcessGroup> group = nullptr;
  // How long the rank waits for a debugger, and how long the other ranks wait
  // until it goes on.
  std::chrono::milliseconds timeout = std::chrono::hours(24);
};

// Makes global rank `rank` wait for a debugger and stop in it. The other ranks
// wait until it goes on. All ranks of the group make the call. The log of
// `rank` says how to attach a debugger such that the other threads of the
// process go on; otherwise the coordinator would take the rank for lost. If no
// debugger comes, `rank` throws, and the others go on.
// Throws DistError: kInvalidArgument (`rank` is not in the group),
// kDeadlineExceeded (no debugger came, or ranks are missing; the group goes
// on), and what MonitoredBarrier throws.
void Breakpoint(int rank = 0, const BreakpointOptions& options = {});

}  // namespace muster

#endif  // MUSTER_DEBUG_H_
