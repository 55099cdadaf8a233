#ifndef MUSTER_CLIENT_PARALLEL_DATA_ORTHOGONALIZATION_H_
#define MUSTER_CLIENT_PARALLEL_DATA_ORTHOGONALIZATION_H_

#include <cstdint>

namespace muster::internal {

// Makes the columns of a row-major matrix orthonormal, by Gram and Schmidt with
// a second pass (L. Giraud et al., "The loss of orthogonality in the
// Gram-Schmidt orthogonalization process", 2005: twice is enough). A column
// that depends on those before it is replaced by one that does not. Requires
// columns <= rows. The result depends on nothing but the matrix. If that has a
// NaN or an infinity, so has the result.
void Orthogonalize(float* matrix, int64_t rows, int64_t columns);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_DATA_ORTHOGONALIZATION_H_
