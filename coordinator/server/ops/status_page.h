#ifndef MUSTER_COORDINATOR_SERVER_OPS_STATUS_PAGE_H_
#define MUSTER_COORDINATOR_SERVER_OPS_STATUS_PAGE_H_

#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/instant.h"
#include "coordinator/core/snapshot.h"
#include "coordinator/storage/fleet.h"

namespace muster::coordinator {

// The contents of the status page.
struct StatusPageInput {
  core::Duration uptime{};
  int64_t sessions = 0;
  bool draining = false;
  std::optional<FleetView> fleet;
  struct Job {
    std::string name;
    core::JobSnapshot state;
    double operations_per_second = 0;
  };
  std::vector<Job> jobs;  // by name
};

// Renders the page at "/": plain HTML without scripts. Names that clients chose
// are escaped.
std::string RenderStatusPage(const StatusPageInput& input);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_OPS_STATUS_PAGE_H_
