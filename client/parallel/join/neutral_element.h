// Neutral elements of reductions.

#ifndef MUSTER_CLIENT_PARALLEL_JOIN_NEUTRAL_ELEMENT_H_
#define MUSTER_CLIENT_PARALLEL_JOIN_NEUTRAL_ELEMENT_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "muster/dataplane/collective.h"
#include "muster/dataplane/tensor.h"

namespace muster::internal {

// Returns the bytes of the element that does not change a reduction; nothing if
// there is none.
std::optional<std::vector<std::byte>> FindNeutralElement(
    dataplane::DataType type, dataplane::ReduceOp op);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_JOIN_NEUTRAL_ELEMENT_H_
