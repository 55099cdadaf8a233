// Finds the host on which muster-run has placed each rank of a job.

#ifndef MUSTER_CLIENT_TOOLS_MUSTERCTL_AGENTS_H_
#define MUSTER_CLIENT_TOOLS_MUSTERCTL_AGENTS_H_

#include <map>
#include <string>

#include "client/control/admin_client.h"

namespace muster::tools {

// The host of each rank, as the agents of `job` have agreed at this
// coordinator. Empty if there are no agents, they have not agreed yet, or the
// caller may not read it.
std::map<int, std::string> HostsOfRanks(internal::AdminClient& control,
                                        const std::string& job);

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_MUSTERCTL_AGENTS_H_
