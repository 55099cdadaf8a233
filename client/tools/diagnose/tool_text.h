// Formats musterctl's output for people: every name that a member chose is
// escaped, so that it cannot control the terminal. And its errors as JSON.

#ifndef MUSTER_CLIENT_TOOLS_DIAGNOSE_TOOL_TEXT_H_
#define MUSTER_CLIENT_TOOLS_DIAGNOSE_TOOL_TEXT_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "muster/base/status.h"
#include "muster/v1/admin.pb.h"
#include "muster/v1/store.pb.h"

namespace muster::tools {

// `address` is the address at which the coordinator answered.
std::string StatusText(absl::string_view address,
                       const v1::ListJobsResponse& response);

std::string JobsText(const v1::ListJobsResponse& response);

// A coordinator of the cluster, as it tells itself.
struct CoordinatorReport {
  v1::ClusterCoordinator coordinator;
  Status status;  // of the calls; the rest is set if it is OK
  v1::GetClusterResponse cluster;
  v1::ListJobsResponse jobs;
};

// Whether every coordinator answers and is ready, and all shards of jobs have
// one. `cluster` is one coordinator's answer.
bool IsHealthy(const v1::GetClusterResponse& cluster,
               const std::vector<CoordinatorReport>& reports);

std::string ClusterText(const v1::GetClusterResponse& cluster,
                        const std::vector<CoordinatorReport>& reports);

// An object with the answers, on one line.
std::string ClusterJson(const v1::GetClusterResponse& cluster,
                        const std::vector<CoordinatorReport>& reports);

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
