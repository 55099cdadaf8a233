#ifndef MUSTER_CLIENT_PARALLEL_DATA_BUCKET_STATES_H_
#define MUSTER_CLIENT_PARALLEL_DATA_BUCKET_STATES_H_

#include <cmath>
#include <cstddef>
#include <memory>
#include <vector>

#include "client/parallel/elements/float_conversion.h"
#include "muster/communication_hooks.h"

namespace muster::internal {

// The state that a hook keeps for each bucket. Each stays where it is until
// Clear, because collectives use its memory.
template <typename State>
class BucketStates {
 public:
  // The state of a bucket, at first what `make` returns.
  template <typename Make>
  State& Get(const GradBucket& bucket, Make make) {
    if (bucket.index >= states_.size()) states_.resize(bucket.index + 1);
    auto& state = states_[bucket.index];
    if (state == nullptr) state = std::make_unique<State>(make());
    return *state;
  }

  // Null if there is none.
  State* Find(const GradBucket& bucket) {
    return bucket.index < states_.size() ? states_[bucket.index].get()
                                         : nullptr;
  }

  void Clear() { states_.clear(); }

 private:
  std::vector<std::unique_ptr<State>> states_;
};

// Takes the average of gradient `index` of the bucket back into `errors`, which
// has what the hook keeps of each element of the bucket. Of what is no number,
// nothing is kept.
inline void KeepAverage(const GradBucket& bucket, size_t index,
                        std::vector<float>& errors) {
  const Tensor& gradient = bucket.gradients[index];
  std::vector<float> average(static_cast<size_t>(gradient.element_count()));
  ToFloats(gradient, average.data());
  size_t at = 0;
  for (size_t i = 0; i < index; ++i) {
    at += static_cast<size_t>(bucket.gradients[i].element_count());
  }
  for (const float each : average) {
    if (std::isfinite(each)) errors[at] += each;
    ++at;
  }
}

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_DATA_BUCKET_STATES_H_
