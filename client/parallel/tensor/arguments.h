// Checks of arguments for the functions of tensor_parallel.h.

#ifndef MUSTER_CLIENT_PARALLEL_TENSOR_ARGUMENTS_H_
#define MUSTER_CLIENT_PARALLEL_TENSOR_ARGUMENTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/parallel/agreement/agreement.h"
#include "muster/dataplane/collective_kind.h"
#include "muster/process_group.h"
#include "muster/tensor_parallel.h"

namespace muster::internal {

// The group of the options; null, after a warning, if this process is not in
// it.
std::shared_ptr<ProcessGroup> FindGroup(const TensorParallelOptions& options,
                                        const char* function);

// Calls `check`, which throws DistError if this rank's arguments are bad, and
// adds those that must be the same on all ranks. If ranks compare, a bad
// argument and a difference are DistErrors of all ranks, and the group goes on.
// Otherwise a bad argument uses up a number of the group, as one of a
// collective of `kind` does. All ranks make the call.
void CheckOnAllRanks(const std::shared_ptr<ProcessGroup>& group,
                     const char* function, dataplane::CollectiveKind kind,
                     const TensorParallelOptions& options,
                     const std::function<void(Agreement&)>& check);

// The type, the shape and the kind of device, but not its index: "float32[4]".
std::string DescribeForAllRanks(const Tensor& tensor);

// Throw DistError with the argument's name: kInvalidArgument unless the tensor
// is valid; kUnimplemented unless it is on the CPU; kInvalidArgument unless it
// is of floating point.
void CheckValid(const char* name, const Tensor& tensor);
void CheckHost(const char* name, const Tensor& tensor);
void CheckFloats(const char* name, const Tensor& tensor);

// Checks that `tensor` has the shape `leading` followed by `trailing`.
void CheckShape(const char* name, const Tensor& tensor,
                std::span<const int64_t> leading,
                const std::vector<int64_t>& trailing);

// Checks that both have one type.
void CheckSameType(const char* name, const Tensor& tensor,
                   const char* other_name, const Tensor& other);

// Numbers of rows of the vocabulary: int64, on the CPU, each from 0 to
// `vocabulary` - 1.
std::span<const int64_t> CheckIds(const char* name, const Tensor& ids,
                                  int64_t vocabulary);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_TENSOR_ARGUMENTS_H_
