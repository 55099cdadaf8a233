// Merges the flight recorders of a job's ranks.

#ifndef MUSTER_CLIENT_TOOLS_DIAGNOSE_RECORDERS_H_
#define MUSTER_CLIENT_TOOLS_DIAGNOSE_RECORDERS_H_

#include <cstddef>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "muster/base/status.h"
#include "muster/v1/admin.pb.h"

namespace muster::tools {

// The result of collecting recorders: the JSON of each rank that answered, and
// the reason for each other rank.
struct Recorders {
  std::map<int, std::string> by_rank;
  std::map<int, std::string> missing;
  // By rank. Ranks of one host share a clock.
  std::map<int, std::string> hosts;
};

// {"job": ..., "ranks": {"0": FLIGHT RECORDER, ...}, "missing": {"2": WHY}}.
// A recorder that is no JSON counts as missing.
std::string MergedJson(absl::string_view job, const Recorders& recorders);

// Returns a trace in Chrome's format, for Perfetto and chrome://tracing: a
// process for each rank, a track for each group, further tracks for its sends
// and receives, and an event for each call that has begun, by time. Times are
// in the lowest rank's clock since its first call. The clocks of other hosts
// are shifted so that synchronising collectives end together in the median.
std::string TraceJson(absl::string_view job, const Recorders& recorders);

// Writes a trace for each rank in its own clock: `folder`/rank-3.json. Creates
// the folder.
// Errors: kUnavailable (a file cannot be written).
Status WriteTraces(const std::string& folder, absl::string_view job,
                   const Recorders& recorders);

// Returns the prefix of the files to which processes write their recorders when
// a group fails, from one process's /debug environment; empty if they write
// none.
std::string DumpPrefixIn(const std::string& environment_json);

// Says for people why there is no recorder of `member`: it is gone, or else
// `why`. Adds the file with its recorder, if it may have written one; on
// `this_host` checks that the file exists. `dump_prefix` is DumpPrefixIn's.
std::string WhyNoRecorder(const v1::MemberInfo& member, absl::string_view why,
                          const std::string& dump_prefix,
                          const std::string& this_host);

// A sentence about `missing`, out of `ranks` ranks; empty if none is missing.
std::string MissingText(const std::map<int, std::string>& missing,
                        size_t ranks);

// Errors: kUnavailable.
Status WriteFile(const std::string& path, const std::string& text);

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_DIAGNOSE_RECORDERS_H_
