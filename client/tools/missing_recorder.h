// Flight recorders that cannot be asked for.

#ifndef MUSTER_CLIENT_TOOLS_MISSING_RECORDER_H_
#define MUSTER_CLIENT_TOOLS_MISSING_RECORDER_H_

#include <cstddef>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "muster/v1/admin.pb.h"

namespace muster::tools {

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

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_MISSING_RECORDER_H_
