#ifndef MUSTER_CLIENT_PARALLEL_DATA_BUCKETS_H_
#define MUSTER_CLIENT_PARALLEL_DATA_BUCKETS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "client/parallel/data/bucket_assignment.h"
#include "muster/base/clock.h"
#include "muster/communication_hooks.h"
#include "muster/process_group.h"
#include "muster/symmetric.h"

namespace muster::internal {

// BucketMemory is a tensor of zeros, in symmetric memory if the group has it.
// All ranks make the same ones in the same order.
class BucketMemory {
 public:
  BucketMemory(const std::shared_ptr<ProcessGroup>& group, DataType type,
               int64_t elements);

  const Tensor& tensor() const { return tensor_; }
  bool is_symmetric() const { return ordinary_ == nullptr; }

 private:
  SymmetricTensor symmetric_;
  std::unique_ptr<std::max_align_t[]> ordinary_;
  Tensor tensor_;
};

// A time in which a bucket is reduced. `end` is 0 until it is known, and may be
// written by a thread of the group.
struct ReductionTime {
  base::Instant begin;
  std::shared_ptr<std::atomic<base::Instant>> end =
      std::make_shared<std::atomic<base::Instant>>(base::Instant());
};

struct Bucket {
  BucketMemory memory;
  GradBucket gradients;
  // The number of gradients that are not complete in this step.
  size_t pending = 0;
  // One for each function of the hook in this step.
  std::vector<ReductionTime> times = {};
  // Ends before the memory does.
  HookStage stage = {};
};

// Buckets are the memory of all gradients.
class Buckets {
 public:
  // The gradients have the types and shapes of `values`.
  Buckets(std::shared_ptr<ProcessGroup> group, std::vector<Tensor> values,
          BucketLimits limits);

  // Makes the buckets for gradients that come in `order`. Returns false if
  // these are those that exist. The gradients of which `keeps` is true keep
  // their numbers, which then lie elsewhere. An old bucket is freed as soon as
  // none that it has is needed. All ranks make the call.
  bool Build(const std::vector<size_t>& order,
             const std::function<bool(size_t gradient)>& keeps);

  std::vector<Bucket>& all() { return buckets_; }
  const std::vector<Bucket>& all() const { return buckets_; }

  // The bucket in which a gradient lies, and where.
  Bucket& Find(size_t gradient) { return buckets_[views_[gradient].bucket]; }
  const Tensor& View(size_t gradient) const { return views_[gradient].tensor; }

 private:
  struct GradientView {
    size_t bucket;
    Tensor tensor;
  };

  Bucket MakeBucket(const std::vector<size_t>& members, size_t index,
                    bool is_last) const;

  const std::shared_ptr<ProcessGroup> group_;
  const std::vector<Tensor> values_;
  const BucketLimits limits_;
  std::vector<Bucket> buckets_;
  std::vector<GradientView> views_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_DATA_BUCKETS_H_
