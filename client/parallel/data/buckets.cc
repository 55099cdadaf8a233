#include "client/parallel/data/buckets.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "muster/errors.h"

namespace muster::internal {

BucketMemory::BucketMemory(const std::shared_ptr<ProcessGroup>& group,
                           DataType type, int64_t elements) {
  try {
    symmetric_ = AllocateSymmetric(group, type, {elements},
                                   {.device = DeviceType::kCpu});
    tensor_ = symmetric_.tensor();
  } catch (const DistError& error) {
    // All ranks get these errors, and the group goes on.
    if (!IsUnimplemented(error.status()) &&
        !IsResourceExhausted(error.status())) {
      throw;
    }
    const size_t bytes = static_cast<size_t>(elements) * DataTypeBytes(type);
    ordinary_.reset(new std::max_align_t[bytes / sizeof(std::max_align_t) + 1]);
    tensor_ = Tensor(ordinary_.get(), type, {elements});
  }
  std::memset(tensor_.data(), 0, tensor_.bytes());
}

Buckets::Buckets(std::shared_ptr<ProcessGroup> group,
                 std::vector<Tensor> values, BucketLimits limits)
    : group_(std::move(group)), values_(std::move(values)), limits_(limits) {}

bool Buckets::Build(const std::vector<size_t>& order,
                    const std::function<bool(size_t)>& keeps) {
  const auto assigned = AssignBuckets(values_, order, limits_);
  bool is_same = assigned.size() == buckets_.size();
  for (size_t i = 0; is_same && i < assigned.size(); ++i) {
    is_same = assigned[i] == buckets_[i].gradients.parameters;
  }
  if (is_same) return false;
  // How many gradients each old bucket has that are not yet copied.
  std::vector<std::optional<Bucket>> old;
  std::vector<size_t> left;
  for (Bucket& bucket : buckets_) {
    const std::vector<size_t>& members = bucket.gradients.parameters;
    left.push_back(static_cast<size_t>(
        std::count_if(members.begin(), members.end(), keeps)));
    old.emplace_back(std::move(bucket));
    if (left.back() == 0) old.back().reset();
  }
  buckets_.clear();
  const std::vector<GradientView> old_views =
      std::exchange(views_, std::vector<GradientView>(values_.size()));
  for (size_t i = 0; i < assigned.size(); ++i) {
    buckets_.push_back(
        MakeBucket(assigned[i], i, /*is_last=*/i + 1 == assigned.size()));
    for (size_t k = 0; k < assigned[i].size(); ++k) {
      const size_t gradient = assigned[i][k];
      views_[gradient] = {i, buckets_[i].gradients.gradients[k]};
      if (old_views.empty() || !keeps(gradient)) continue;
      const auto& [bucket, from] = old_views[gradient];
      std::memcpy(views_[gradient].tensor.data(), from.data(), from.bytes());
      if (--left[bucket] == 0) old[bucket].reset();
    }
  }
  return true;
}

Bucket Buckets::MakeBucket(const std::vector<size_t>& members, size_t index,
                           bool is_last) const {
  const DataType type = values_[members[0]].data_type();
  int64_t elements = 0;
  for (const size_t i : members) elements += values_[i].element_count();
  Bucket bucket{.memory = BucketMemory(group_, type, elements),
                .gradients = {.group = group_,
                              .index = index,
                              .is_last = is_last,
                              .parameters = members}};
  bucket.gradients.buffer = bucket.memory.tensor();
  auto* at = static_cast<std::byte*>(bucket.gradients.buffer.data());
  for (const size_t i : members) {
    bucket.gradients.gradients.emplace_back(at, type, values_[i].shape());
    at += values_[i].bytes();
  }
  return bucket;
}

}  // namespace muster::internal
