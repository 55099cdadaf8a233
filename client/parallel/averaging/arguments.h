#ifndef MUSTER_CLIENT_PARALLEL_AVERAGING_ARGUMENTS_H_
#define MUSTER_CLIENT_PARALLEL_AVERAGING_ARGUMENTS_H_

#include <string>
#include <vector>

#include "client/parallel/agreement/agreement.h"
#include "muster/process_group.h"

namespace muster::internal {

// Adds an argument that is a list of tensors of the types that are averaged,
// which may be on other devices on other ranks. With `cpu_only` they must be on
// the CPU.
void AddTensors(const std::string& argument, const std::vector<Tensor>& tensors,
                bool cpu_only, Agreement& agreement);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_AVERAGING_ARGUMENTS_H_
