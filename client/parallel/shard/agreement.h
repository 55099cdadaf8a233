// Checks that all ranks pass the same.

#ifndef MUSTER_CLIENT_PARALLEL_SHARD_AGREEMENT_H_
#define MUSTER_CLIENT_PARALLEL_SHARD_AGREEMENT_H_

#include <memory>
#include <string>
#include <vector>

#include "muster/process_group.h"

namespace muster::internal {

// The ranks of a program: the lines of a mesh of one or two dimensions.
struct ShardRanks {
  std::shared_ptr<ProcessGroup> group;
  // Null: there are no replicas.
  std::shared_ptr<ProcessGroup> replicate_group = nullptr;
};

// Throws DistError (kInvalidArgument) on all ranks if `lines` differ or a rank
// has an `error` (its arguments are bad): the first difference, with the global
// ranks and both lines. `what` begins the text. All ranks make the call. Throws
// what a collective throws.
void CheckAgreement(const std::string& what, const ShardRanks& ranks,
                    const std::string& error,
                    const std::vector<std::string>& lines);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_SHARD_AGREEMENT_H_
