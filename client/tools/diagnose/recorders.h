// Merges the flight recorders of a job's ranks.

#ifndef MUSTER_CLIENT_TOOLS_DIAGNOSE_RECORDERS_H_
#define MUSTER_CLIENT_TOOLS_DIAGNOSE_RECORDERS_H_

#include <cstddef>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "muster/v1/admin.pb.h"

namespace muster::tools {

// What came of collecting them: the JSON of each rank that answered, and why
// there is none of each other one.
struct Recorders {
  std::map<int, std::string> by_rank;
  std::map<int, std::string> missing;
  // By rank; ranks of one host have one clock.
  std::map<int, std::string> hosts;
};

// {"job": ..., "ranks": {"0": FLIGHT RECORDER, ...}, "missing": {"2": WHY}}.
// One that is no JSON counts as missing.
std::string MergedJson(absl::string_view job, const Recorders& recorders);

// A trace in Chrome's format, for Perfetto and chrome://tracing: a process for
// each rank, a track for each group and more for its sends and receives, an
// event for each call that has begun, in the order of time. Times are those of
// the lowest rank's clock since the first of them began: the others' are
// shifted so that the collectives that synchronise ranks end together in the
// median; those of one host by the same, the median of theirs.
std::string TraceJson(absl::string_view job, const Recorders& recorders);

// The same of each rank alone, in its own clock: `folder`/rank-3.json. Makes
// the folder. Errors: kUnavailable (a file cannot be written).
Status WriteTraces(const std::string& folder, absl::string_view job,
                   const Recorders& recorders);

// Where processes write their recorders when their group fails, of what one of
// them shows as its environment; empty: they do not.
std::string DumpPrefixIn(const std::string& environment_json);

// Why there is no recorder of `member`, for people: that it is gone, or else
// `why`. And where a file with one is, if it has written any: that can be seen
// where it was on `this_host`. `dump_prefix`: as of DumpPrefixIn.
std::string WhyNoRecorder(const v1::MemberInfo& member, absl::string_view why,
                          const std::string& dump_prefix,
                          const std::string& this_host);

// What to say of `missing`, of so many ranks, by rank why; empty: nobody is.
std::string MissingText(const std::map<int, std::string>& missing,
                        size_t ranks);

// Errors: kUnavailable.
Status WriteFile(const std::string& path, const std::string& text);

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_DIAGNOSE_RECORDERS_H_
