// Finds the host on which muster-run has placed each rank of a job.

#ifndef MUSTER_CLIENT_TOOLS_MUSTERCTL_AGENTS_H_
#define MUSTER_CLIENT_TOOLS_MUSTERCTL_AGENTS_H_

#include <map>
#include <string>

#include "client/control/admin_client.h"

namespace muster::tools {

// The host of each rank, as the agents of `job` have agreed on it at this
// coordinator. Empty where there are none, they are about to agree, or they may
// not be read.
std::map<int, std::string> HostsOfRanks(internal::AdminClient& control,
                                        const std::string& job);

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_MUSTERCTL_AGENTS_H_
