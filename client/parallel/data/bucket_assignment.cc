#include "client/parallel/data/bucket_assignment.h"

#include <algorithm>
#include <map>
#include <utility>

namespace muster::internal {

std::vector<std::vector<size_t>> AssignBuckets(
    std::span<const dataplane::Tensor> gradients, std::span<const size_t> order,
    BucketLimits limits) {
  struct Bucket {
    std::vector<size_t> members;
    size_t bytes;
    size_t last_position;
  };
  struct OfType {
    Bucket open = {};
    size_t limit;
  };
  std::vector<Bucket> buckets;
  std::map<dataplane::DataType, OfType> types;
  for (size_t position = 0; position < order.size(); ++position) {
    const dataplane::Tensor& gradient = gradients[order[position]];
    auto [at, is_new] = types.try_emplace(gradient.data_type(),
                                          OfType{.limit = limits.first_bytes});
    OfType& type = at->second;
    type.open.members.push_back(order[position]);
    type.open.bytes += gradient.bytes();
    type.open.last_position = position;
    if (type.open.bytes < type.limit) continue;
    buckets.push_back(std::exchange(type.open, {}));
    type.limit = limits.bytes;
  }
  for (auto& [unused, type] : types) {
    if (!type.open.members.empty()) buckets.push_back(std::move(type.open));
  }
  std::sort(buckets.begin(), buckets.end(),
            [](const Bucket& a, const Bucket& b) {
              return a.last_position < b.last_position;
            });
  std::vector<std::vector<size_t>> result;
  result.reserve(buckets.size());
  for (Bucket& bucket : buckets) result.push_back(std::move(bucket.members));
  return result;
}

}  // namespace muster::internal
