#ifndef MUSTER_CLIENT_PARALLEL_DATA_PARAMETER_CHECKS_H_
#define MUSTER_CLIENT_PARALLEL_DATA_PARAMETER_CHECKS_H_

#include <vector>

#include "client/parallel/agreement/agreement.h"
#include "muster/communication_hooks.h"
#include "muster/data_parallel.h"

namespace muster::internal {

// Checks what a program gives DataParallel, and describes it for a comparison
// over the ranks.
Agreement MakeAgreement(const std::vector<Parameter>& parameters,
                        const DataParallelOptions& options,
                        const CommunicationHook& hook);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_DATA_PARAMETER_CHECKS_H_
