#include "client/examples/distributed_sampler.h"

#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::examples {

DistributedSampler::DistributedSampler(size_t items, size_t global_batch,
                                       uint64_t seed, int rank, int world_size)
    : items_(items),
      global_batch_(global_batch),
      seed_(seed),
      rank_(static_cast<size_t>(rank)),
      world_size_(static_cast<size_t>(world_size)),
      order_(items) {
  if (global_batch == 0 || global_batch > items) {
    throw std::invalid_argument(
        absl::StrCat("the global batch must be 1 to ", items,
                     " (the size of the data set), got ", global_batch));
  }
  SetEpoch(0);
}

void DistributedSampler::SetEpoch(int epoch) {
  // Fisher-Yates by hand: the result of std::shuffle depends on the library.
  std::mt19937_64 random(seed_ * 1'000'003 + static_cast<uint64_t>(epoch));
  std::iota(order_.begin(), order_.end(), size_t{0});
  for (size_t i = items_ - 1; i > 0; --i) {
    std::swap(order_[i], order_[random() % (i + 1)]);
  }
}

std::vector<size_t> DistributedSampler::Batch(size_t step) const {
  std::vector<size_t> batch;
  const size_t begin = step * global_batch_;
  for (size_t i = begin + rank_; i < begin + global_batch_; i += world_size_) {
    batch.push_back(order_[i]);
  }
  return batch;
}

}  // namespace muster::examples
