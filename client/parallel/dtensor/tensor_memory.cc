#include "client/parallel/dtensor/tensor_memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
#include "dataplane/reduction.h"
#include "muster/base/status.h"

namespace muster::internal {
namespace {

constexpr std::align_val_t kAlignment{64};

template <typename T>
void FillWith(const Tensor& tensor, T value) {
  std::fill_n(static_cast<T*>(tensor.data()), tensor.element_count(), value);
}

template <typename T>
void FillElements(const Tensor& tensor, ReduceOp op) {
  using Limits = std::numeric_limits<T>;
  T highest = Limits::max();
  T lowest = Limits::lowest();
  T zero = T(0);
  if constexpr (Limits::has_infinity) {
    highest = Limits::infinity();
    lowest = -Limits::infinity();
    // -0 + x is x, also for x = -0.
    zero = T(-0.0);
  }
  switch (op) {
    case ReduceOp::kSum:
      return FillWith(tensor, zero);
    case ReduceOp::kProduct:
      return FillWith(tensor, T(1));
    case ReduceOp::kMin:
      return FillWith(tensor, highest);
    default:
      return FillWith(tensor, lowest);
  }
}

// float16 and bfloat16.
void FillNarrowElements(const Tensor& tensor, ReduceOp op) {
  float value = -0.0F;
  const Tensor one(&value, {1});
  FillElements<float>(one, op);
  const auto wide = static_cast<double>(value);
  std::array<std::byte, 2> narrow;
  FromDoubles(tensor.data_type(), &wide, 1, narrow.data());
  uint16_t bits = 0;
  std::memcpy(&bits, narrow.data(), sizeof(bits));
  FillWith(tensor, bits);
}

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

void FillNeutral(const Tensor& tensor, ReduceOp op) {
  switch (tensor.data_type()) {
    case DataType::kUint8:
      return FillElements<uint8_t>(tensor, op);
    case DataType::kInt8:
      return FillElements<int8_t>(tensor, op);
    case DataType::kInt16:
      return FillElements<int16_t>(tensor, op);
    case DataType::kInt32:
      return FillElements<int32_t>(tensor, op);
    case DataType::kInt64:
      return FillElements<int64_t>(tensor, op);
    case DataType::kUint16:
      return FillElements<uint16_t>(tensor, op);
    case DataType::kUint32:
      return FillElements<uint32_t>(tensor, op);
    case DataType::kUint64:
      return FillElements<uint64_t>(tensor, op);
    case DataType::kBool:
      return FillElements<bool>(tensor, op);
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return FillNarrowElements(tensor, op);
    case DataType::kFloat32:
      return FillElements<float>(tensor, op);
    case DataType::kFloat64:
      return FillElements<double>(tensor, op);
    default:
      ThrowNoNeutral(tensor.data_type(), op);
  }
}

bool IsFloatingPoint(DataType type) {
  return type == DataType::kFloat16 || type == DataType::kBfloat16 ||
         type == DataType::kFloat32 || type == DataType::kFloat64;
}

void ToDoubles(DataType type, const void* elements, int64_t count,
               double* doubles) {
  if (type == DataType::kFloat64) {
    std::copy_n(static_cast<const double*>(elements), count, doubles);
    return;
  }
  // Accumulators of these types are float32.
  const auto& reduction = dataplane::Reduction::Of(type, ReduceOp::kSum);
  constexpr int64_t kAtOnce = 256;
  std::array<float, kAtOnce> floats;
  const size_t element_bytes = dataplane::DataTypeBytes(type);
  for (int64_t done = 0; done < count; done += kAtOnce) {
    const int64_t some = std::min(kAtOnce, count - done);
    reduction.Load(floats.data(),
                   static_cast<const std::byte*>(elements) +
                       static_cast<size_t>(done) * element_bytes,
                   static_cast<size_t>(some), 1);
    std::copy_n(floats.data(), some, doubles + done);
  }
}

void FromDoubles(DataType type, const double* doubles, int64_t count,
                 void* elements) {
  if (type == DataType::kFloat64) {
    std::copy_n(doubles, count, static_cast<double*>(elements));
    return;
  }
  const auto& reduction = dataplane::Reduction::Of(type, ReduceOp::kSum);
  constexpr int64_t kAtOnce = 256;
  std::array<float, kAtOnce> floats;
  const size_t element_bytes = dataplane::DataTypeBytes(type);
  for (int64_t done = 0; done < count; done += kAtOnce) {
    const int64_t some = std::min(kAtOnce, count - done);
    for (int64_t i = 0; i < some; ++i) {
      floats[static_cast<size_t>(i)] = static_cast<float>(doubles[done + i]);
    }
    reduction.Store(static_cast<std::byte*>(elements) +
                        static_cast<size_t>(done) * element_bytes,
                    floats.data(), static_cast<size_t>(some));
  }
}

}  // namespace muster::internal
