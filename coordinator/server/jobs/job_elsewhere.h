#ifndef MUSTER_COORDINATOR_SERVER_JOBS_JOB_ELSEWHERE_H_
#define MUSTER_COORDINATOR_SERVER_JOBS_JOB_ELSEWHERE_H_

#include <string>

#include "muster/base/status.h"

namespace muster::coordinator {

// The error of a call for a job that another coordinator has, with the payload
// JobOwner. `owner` is an address, or empty if there is none now.
Status JobElsewhereError(const std::string& owner);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_JOBS_JOB_ELSEWHERE_H_
