// The flight recorders of a job's ranks, together.

#ifndef MUSTER_CLIENT_TOOLS_RECORDERS_H_
#define MUSTER_CLIENT_TOOLS_RECORDERS_H_

#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace muster::tools {

// What came of collecting them: the JSON of each rank that answered, and why
// there is none of each other one.
struct Recorders {
  std::map<int, std::string> by_rank;
  std::map<int, std::string> missing;
};

// {"job": ..., "ranks": {"0": FLIGHT RECORDER, ...}, "missing": {"2": WHY}}.
// One that is no JSON counts as missing.
std::string MergedJson(absl::string_view job, const Recorders& recorders);

// A trace in Chrome's format, for Perfetto and chrome://tracing: a process for
// each rank, a track for each group, an event for each collective that has
// begun. Times are those of the lowest rank's clock: the others' are shifted so
// that the collectives that synchronise all ranks end together in the median.
std::string TraceJson(absl::string_view job, const Recorders& recorders);

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_RECORDERS_H_
