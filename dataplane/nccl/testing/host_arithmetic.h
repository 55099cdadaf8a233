// The arithmetic of the fake NCCL (host_nccl.h).

#ifndef MUSTER_DATAPLANE_NCCL_TESTING_HOST_ARITHMETIC_H_
#define MUSTER_DATAPLANE_NCCL_TESTING_HOST_ARITHMETIC_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "dataplane/nccl/api.h"
#include "dataplane/nccl/testing/host_team.h"
#include "muster/dataplane/tensor.h"

namespace muster::dataplane::nccl::testing {

// Empty if `type` is not a type of this library.
std::optional<dataplane::DataType> FindDataType(DataType type);
// 1 if `type` is not a type.
size_t GetElementBytes(DataType type);

// `count` elements of the reduction of all ranks from element `offset` on. For
// one rank with kAvg or a made operation, only those that NCCL's kernel writes.
std::vector<char> Reduced(const std::vector<Call>& calls, DataType type,
                          RedOp op, size_t offset, size_t count);

}  // namespace muster::dataplane::nccl::testing

#endif  // MUSTER_DATAPLANE_NCCL_TESTING_HOST_ARITHMETIC_H_
