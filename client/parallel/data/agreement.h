// Comparisons of the ranks of a DataParallel, and errors that all of them get.

#ifndef MUSTER_CLIENT_PARALLEL_DATA_AGREEMENT_H_
#define MUSTER_CLIENT_PARALLEL_DATA_AGREEMENT_H_

#include <memory>
#include <string>
#include <vector>

#include "muster/base/status.h"
#include "muster/process_group.h"

namespace muster::internal {

// A rank's arguments, as texts that must be equal on all ranks, or why they are
// bad.
struct Arguments {
  Status fault = {};
  std::vector<std::string> items = {};
};

// Compares them over the ranks of the group. Throws DistError on all ranks: of
// the first rank whose arguments are bad, the fault; else kInvalidArgument with
// the first item that differs from the first rank's. The text begins with
// `name`.
void CheckArgumentsAgree(const std::shared_ptr<ProcessGroup>& group,
                         const std::string& name, const Arguments& mine);

// Throws DistError (kFailedPrecondition) on all ranks: `text`, followed by what
// each rank whose `what` is not empty says of itself. Those are the culprits.
[[noreturn]] void ThrowOnAllRanks(const std::shared_ptr<ProcessGroup>& group,
                                  const std::string& text,
                                  const std::string& what);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_DATA_AGREEMENT_H_
