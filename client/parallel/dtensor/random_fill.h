#ifndef MUSTER_CLIENT_PARALLEL_DTENSOR_RANDOM_FILL_H_
#define MUSTER_CLIENT_PARALLEL_DTENSOR_RANDOM_FILL_H_

#include <cstdint>
#include <vector>

#include "client/parallel/dtensor/tensor_memory.h"
#include "muster/placement.h"

namespace muster::internal {

// Write random numbers to `local`, of a floating-point type, which has the
// elements of `box` of a tensor of `shape`. See DTensor::FillUniform.
void FillUniform(const Tensor& local, const ShardBox& box,
                 const std::vector<int64_t>& shape, uint64_t seed, double low,
                 double high);
void FillNormal(const Tensor& local, const ShardBox& box,
                const std::vector<int64_t>& shape, uint64_t seed, double mean,
                double stddev);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_DTENSOR_RANDOM_FILL_H_
