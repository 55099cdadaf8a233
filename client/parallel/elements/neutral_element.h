#ifndef MUSTER_CLIENT_PARALLEL_ELEMENTS_NEUTRAL_ELEMENT_H_
#define MUSTER_CLIENT_PARALLEL_ELEMENTS_NEUTRAL_ELEMENT_H_

#include "muster/dataplane/collective.h"
#include "muster/dataplane/tensor.h"

namespace muster::internal {

// Writes the element that does not change a reduction to all elements of a
// tensor on the CPU. Returns false, and writes nothing, if there is none. That
// of a sum of floating-point numbers is -0, because 0 would change -0.
bool FillNeutral(const dataplane::Tensor& tensor, dataplane::ReduceOp op);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_ELEMENTS_NEUTRAL_ELEMENT_H_
