#ifndef MUSTER_DATAPLANE_EXTENTS_H_
#define MUSTER_DATAPLANE_EXTENTS_H_

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "muster/dataplane/tensor.h"

namespace muster::dataplane {

// Extents holds the address ranges of several tensors and finds overlaps.
// Ignores empty tensors.
class Extents {
 public:
  // `number` identifies the tensor. Must not be called after Clash or Touching.
  void Add(const Tensor& tensor, size_t number) {
    if (tensor.bytes() == 0) return;
    const Extent extent = ToExtent(tensor);
    extents_.push_back({extent.begin, extent.end, number});
  }

  // The numbers of two tensors that overlap, the lower one first.
  std::optional<std::pair<size_t, size_t>> Clash() {
    Sort();
    for (size_t i = 1; i < extents_.size(); ++i) {
      if (extents_[i].begin >= extents_[i - 1].end) continue;
      return std::minmax(extents_[i - 1].number, extents_[i].number);
    }
    return std::nullopt;
  }

  // The first added tensor that overlaps `tensor` and for which `may(number)`
  // is false. Requires that there is no Clash.
  template <typename May>
  std::optional<size_t> Touching(const Tensor& tensor, const May& may) {
    if (tensor.bytes() == 0) return std::nullopt;
    Sort();
    const Extent extent = ToExtent(tensor);
    auto it = std::partition_point(
        extents_.begin(), extents_.end(),
        [&](const Extent& other) { return other.end <= extent.begin; });
    for (; it != extents_.end() && it->begin < extent.end; ++it) {
      if (!may(it->number)) return it->number;
    }
    return std::nullopt;
  }

 private:
  struct Extent {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    size_t number = 0;
  };

  static Extent ToExtent(const Tensor& tensor) {
    const auto* const begin = static_cast<const std::byte*>(tensor.data());
    return {begin, begin + tensor.bytes()};
  }

  void Sort() {
    if (sorted_) return;
    sorted_ = true;
    std::sort(extents_.begin(), extents_.end(),
              [](const Extent& a, const Extent& b) {
                return std::less<>()(a.begin, b.begin);
              });
  }

  absl::InlinedVector<Extent, 8> extents_;
  bool sorted_ = false;
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_EXTENTS_H_
