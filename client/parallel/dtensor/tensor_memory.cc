#include "client/parallel/dtensor/tensor_memory.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
#include "client/parallel/elements/neutral_element.h"
#include "muster/base/status.h"

namespace muster::internal {
namespace {

constexpr std::align_val_t kAlignment{64};

[[noreturn]] void ThrowNoNeutral(DataType type, ReduceOp op) {
  Throw(ErrorSource::kControl,
        UnimplementedError(absl::StrCat(
            "a tensor of ", dataplane::DataTypeName(type),
            " cannot become Partial(", dataplane::ReduceOpName(op), ")")));
}

}  // namespace

OwnedTensor AllocateTensor(DataType type, const std::vector<int64_t>& shape) {
  OwnedTensor owned;
  // Any address: only the size is read.
  alignas(std::max_align_t) std::byte any[1];
  const Tensor sized(any, type, shape);
  ThrowIfFailed(ErrorSource::kControl, sized.Validate());
  void* const memory = ::operator new(std::max<size_t>(sized.bytes(), 1),
                                      kAlignment, std::nothrow);
  if (memory == nullptr) {
    Throw(ErrorSource::kControl,
          ResourceExhaustedError(absl::StrCat("no memory for ", sized.bytes(),
                                              " bytes of ", sized.Describe())));
  }
  owned.memory = std::shared_ptr<void>(
      memory, [](void* old) { ::operator delete(old, kAlignment); });
  owned.tensor = Tensor(memory, type, shape);
  return owned;
}

ShardBox Intersect(const ShardBox& a, const ShardBox& b) {
  ShardBox both = a;
  for (size_t i = 0; i < a.offsets.size(); ++i) {
    both.offsets[i] = std::max(a.offsets[i], b.offsets[i]);
    const int64_t end =
        std::min(a.offsets[i] + a.lengths[i], b.offsets[i] + b.lengths[i]);
    both.lengths[i] = std::max<int64_t>(end - both.offsets[i], 0);
  }
  return both;
}

std::optional<int64_t> FindContiguous(const ShardBox& whole,
                                      const ShardBox& part) {
  if (part.element_count() == 0) return 0;
  int64_t first = 0;
  // Whether the dimensions so far have one element each.
  bool is_single = true;
  for (size_t i = 0; i < whole.lengths.size(); ++i) {
    if (!is_single && part.lengths[i] != whole.lengths[i]) return std::nullopt;
    is_single = is_single && part.lengths[i] == 1;
    first = first * whole.lengths[i] + part.offsets[i] - whole.offsets[i];
  }
  return first;
}

void CopyBox(const void* from, const ShardBox& from_box, void* to,
             const ShardBox& to_box, const ShardBox& part,
             size_t element_bytes) {
  if (part.element_count() == 0) return;
  const size_t ndim = part.lengths.size();
  // The dimensions from `inner` on are copied as one run.
  size_t inner = ndim;
  int64_t run = 1;
  while (inner > 0) {
    --inner;
    run *= part.lengths[inner];
    if (part.lengths[inner] != from_box.lengths[inner] ||
        part.lengths[inner] != to_box.lengths[inner]) {
      break;
    }
  }
  const auto find_first = [&](const ShardBox& box,
                              const std::vector<int64_t>& at) {
    int64_t first = 0;
    for (size_t i = 0; i < ndim; ++i) {
      first = first * box.lengths[i] + at[i] - box.offsets[i];
    }
    return static_cast<size_t>(first) * element_bytes;
  };
  std::vector<int64_t> at = part.offsets;
  const size_t run_bytes = static_cast<size_t>(run) * element_bytes;
  for (;;) {
    std::memcpy(static_cast<std::byte*>(to) + find_first(to_box, at),
                static_cast<const std::byte*>(from) + find_first(from_box, at),
                run_bytes);
    size_t dim = inner;
    while (dim > 0) {
      --dim;
      if (++at[dim] < part.offsets[dim] + part.lengths[dim]) break;
      at[dim] = part.offsets[dim];
      if (dim == 0) return;
    }
    if (inner == 0) return;
  }
}

void FillPartial(const Tensor& tensor, ReduceOp op) {
  const DataType type = tensor.data_type();
  const bool is_complex =
      type == DataType::kComplex64 || type == DataType::kComplex128;
  if (is_complex || !FillNeutral(tensor, op)) ThrowNoNeutral(type, op);
}

}  // namespace muster::internal
