#ifndef MUSTER_CLIENT_EXAMPLES_DISTRIBUTED_SAMPLER_H_
#define MUSTER_CLIENT_EXAMPLES_DISTRIBUTED_SAMPLER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace muster::examples {

// DistributedSampler divides a data set among the ranks, anew for every epoch.
// All ranks shuffle the same way, and rank r takes every world_size-th item
// from the r-th on. So the items of a step, over all ranks, do not depend on
// the world size: 4 ranks do the same work as 1.
class DistributedSampler {
 public:
  // `global_batch` items make a step of all ranks together. Items that do not
  // fill the last step are left out.
  // Throws std::invalid_argument.
  DistributedSampler(size_t items, size_t global_batch, uint64_t seed, int rank,
                     int world_size);

  size_t steps_per_epoch() const { return items_ / global_batch_; }

  // Shuffles for `epoch`.
  void SetEpoch(int epoch);

  // This rank's items of step `step`. If world_size does not divide
  // global_batch, the first ranks have one item more; if there are more ranks
  // than items, the last ranks have none.
  std::vector<size_t> Batch(size_t step) const;

 private:
  const size_t items_;
  const size_t global_batch_;
  const uint64_t seed_;
  const size_t rank_;
  const size_t world_size_;
  std::vector<size_t> order_;
};

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_DISTRIBUTED_SAMPLER_H_
