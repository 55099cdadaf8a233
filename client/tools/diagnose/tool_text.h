// Formats musterctl's output for people: every name that a member chose is
// escaped, so that it cannot control the terminal. And its errors as JSON.

#ifndef MUSTER_CLIENT_TOOLS_DIAGNOSE_TOOL_TEXT_H_
#define MUSTER_CLIENT_TOOLS_DIAGNOSE_TOOL_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"
#include "muster/v1/admin.pb.h"
#include "muster/v1/store.pb.h"

namespace muster::tools {

// `address` is the address at which the coordinator answered.
std::string StatusText(absl::string_view address,
                       const v1::ListJobsResponse& response);

std::string JobsText(const v1::ListJobsResponse& response);

// The members, then the ranks that the rendezvous waits for.
std::string MembersText(const v1::GetJobResponse& response);

// The registered groups with their ranks and the missing ranks.
std::string GroupsText(const v1::GetJobResponse& response);

std::string BarriersText(const v1::GetJobResponse& response);

// One line for each change: `put 17 "key" "value"`.
std::string ChangesText(const v1::WatchResponse& response);

// `{"error":"..."}` and a line break, in ASCII; bytes that are not UTF-8 become
// U+FFFD.
std::string ErrorJson(absl::string_view error);

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_DIAGNOSE_TOOL_TEXT_H_
