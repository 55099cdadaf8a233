#ifndef MUSTER_CLIENT_PARALLEL_DATA_BUCKET_ASSIGNMENT_H_
#define MUSTER_CLIENT_PARALLEL_DATA_BUCKET_ASSIGNMENT_H_

#include <cstddef>
#include <span>
#include <vector>

#include "muster/dataplane/tensor.h"

namespace muster::internal {

struct BucketLimits {
  // The limit of the first bucket of each type, and of the others.
  size_t first_bytes;
  size_t bytes;
};

// Returns the buckets, each a list of indices of `gradients`. Goes through the
// gradients in `order` and puts each into the open bucket of its type, which is
// closed when it has as many bytes as its limit. The order of the buckets is
// that in which they are complete if gradients come in `order`.
std::vector<std::vector<size_t>> AssignBuckets(
    std::span<const dataplane::Tensor> gradients, std::span<const size_t> order,
    BucketLimits limits);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_DATA_BUCKET_ASSIGNMENT_H_
