// The arithmetic of the fake NCCL (host_nccl.h).

#ifndef MUSTER_DATAPLANE_NCCL_TESTING_HOST_ARITHMETIC_H_
#define MUSTER_DATAPLANE_NCCL_TESTING_HOST_ARITHMETIC_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "dataplane/nccl/api.h"
#include "dataplane/nccl/testing/host_team.h"
#include "dataplane/tensor.h"

namespace muster::dataplane::nccl::testing {

// Nothing: NCCL has no such type.
std::optional<dataplane::DataType> TypeOf(DataType type);
// 1 of what is no type.
size_t BytesOf(DataType type);

// Of all ranks' elements from `offset` on, as many as fit into `count`; of one
// rank those that its kernel writes.
std::vector<char> Reduced(const std::vector<Call>& calls, DataType type,
                          RedOp op, size_t offset, size_t count);

}  // namespace muster::dataplane::nccl::testing

#endif  // MUSTER_DATAPLANE_NCCL_TESTING_HOST_ARITHMETIC_H_
