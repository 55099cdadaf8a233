// Tensor, a view of an array on the CPU or on a GPU, and the names of its
// element types and devices. Part of the public API: the client exports it as
// muster::Tensor.

#ifndef MUSTER_DATAPLANE_TENSOR_H_
#define MUSTER_DATAPLANE_TENSOR_H_

#include <complex>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "muster/base/export.h"
#include "muster/base/inlined_vector.h"
#include "muster/base/status.h"

namespace MUSTER_EXPORT muster {
namespace dataplane {

// Element types. Not every backend computes with every type: a collective on a
// type that its backend lacks fails with kUnimplemented, naming both. The
// numbers never change (ArgumentsHash).
enum class DataType : uint8_t {
  kUint8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
  kBool,
  kComplex64,
  kComplex128,
  // See float8.h. Every backend moves these two; among the built-in backends
  // only nccl reduces them.
  kFloat8E4m3fn,
  kFloat8E5m2,
  kUint16,
  kUint32,
  kUint64,
  // Plain bytes, whose element has the size that Tensor::Opaque is given. They
  // are moved, and reduced by functions of the user only (reduce_function.h).
  kOpaque,
  // A value and its index: see ValueIndex. They are moved, and reduced by
  // kMinloc, kMaxloc and functions of the user.
  kFloat32Int32,
  kFloat64Int64,
  kInt32Int32,
  kInt64Int64,
};

inline constexpr int kDataTypeCount = 22;

// A pair of a value and an index, the element of reductions by kMinloc and
// kMaxloc. Without gaps, in this order. The pairs of 32 bits have the layout of
// MPI_FLOAT_INT and MPI_2INT.
//
//   std::vector<muster::ValueIndex<float, int32_t>> best = {{loss, rank}};
//   muster::AllReduce(best, {.op = muster::ReduceOp::kMinloc});
template <typename Value, typename Index>
struct ValueIndex {
  Value value;
  Index index;

  friend bool operator==(const ValueIndex&, const ValueIndex&) = default;
};
static_assert(sizeof(ValueIndex<float, int32_t>) == 8);
static_assert(sizeof(ValueIndex<double, int64_t>) == 16);
static_assert(sizeof(ValueIndex<int32_t, int32_t>) == 8);
static_assert(sizeof(ValueIndex<int64_t, int64_t>) == 16);

// "float32", "bfloat16", ...
const std::string& DataTypeName(DataType type);

namespace tensor_internal {
// Outside the function, because inside it the table would be written to the
// stack on every call.
inline constexpr uint8_t kDataTypeBytes[kDataTypeCount] = {
    1, 1, 2, 4, 8, 2, 2, 4, 8, 1, 8, 16, 1, 1, 2, 4, 8, 1, 8, 16, 8, 16};
}  // namespace tensor_internal

// Bytes of one element; 1 for kOpaque (Tensor::element_bytes has the size), and
// if `type` is not a valid DataType.
constexpr size_t DataTypeBytes(DataType type) {
  const auto index = static_cast<size_t>(type);
  return index < kDataTypeCount ? tensor_internal::kDataTypeBytes[index] : 1;
}

// The kind of memory that a tensor is in. The numbers never change.
enum class DeviceType : uint8_t { kCpu, kCuda };

// "cpu" or "cuda".
const std::string& DeviceTypeName(DeviceType type);

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;  // The GPU; 0 for kCpu.

  friend bool operator==(const Device&, const Device&) = default;
};

// "cpu" or "cuda:1".
std::string DeviceName(Device device);

namespace tensor_internal {

template <typename T>
struct DataTypeOfImpl {
  static constexpr bool kKnown = false;
};

template <DataType type>
struct Known {
  static constexpr bool kKnown = true;
  static constexpr DataType kType = type;
};

template <>
struct DataTypeOfImpl<uint8_t> : Known<DataType::kUint8> {};
template <>
struct DataTypeOfImpl<int8_t> : Known<DataType::kInt8> {};
template <>
struct DataTypeOfImpl<int16_t> : Known<DataType::kInt16> {};
template <>
struct DataTypeOfImpl<int32_t> : Known<DataType::kInt32> {};
template <>
struct DataTypeOfImpl<int64_t> : Known<DataType::kInt64> {};
template <>
struct DataTypeOfImpl<long long> : Known<DataType::kInt64> {};  // NOLINT
template <>
struct DataTypeOfImpl<uint16_t> : Known<DataType::kUint16> {};
template <>
struct DataTypeOfImpl<uint32_t> : Known<DataType::kUint32> {};
template <>
struct DataTypeOfImpl<uint64_t> : Known<DataType::kUint64> {};
template <>
struct DataTypeOfImpl<unsigned long long>  // NOLINT
    : Known<DataType::kUint64> {};
template <>
struct DataTypeOfImpl<ValueIndex<float, int32_t>>
    : Known<DataType::kFloat32Int32> {};
template <>
struct DataTypeOfImpl<ValueIndex<double, int64_t>>
    : Known<DataType::kFloat64Int64> {};
template <>
struct DataTypeOfImpl<ValueIndex<int32_t, int32_t>>
    : Known<DataType::kInt32Int32> {};
template <>
struct DataTypeOfImpl<ValueIndex<int64_t, int64_t>>
    : Known<DataType::kInt64Int64> {};
template <>
struct DataTypeOfImpl<float> : Known<DataType::kFloat32> {};
template <>
struct DataTypeOfImpl<double> : Known<DataType::kFloat64> {};
template <>
struct DataTypeOfImpl<bool> : Known<DataType::kBool> {};
template <>
struct DataTypeOfImpl<std::complex<float>> : Known<DataType::kComplex64> {};
template <>
struct DataTypeOfImpl<std::complex<double>> : Known<DataType::kComplex128> {};

}  // namespace tensor_internal

// C++ types that can be elements of a tensor. C++20 has no types for float16,
// bfloat16 and float8: make such tensors from a pointer and a DataType; of
// other C++ types, with Tensor::Opaque.
template <typename T>
concept Element = tensor_internal::DataTypeOfImpl<T>::kKnown;

template <Element T>
inline constexpr DataType kDataTypeOf =
    tensor_internal::DataTypeOfImpl<T>::kType;

// Tensor is a non-owning view of memory: contiguous, row-major elements of one
// type on one device. Copying it copies the view. A collective writes to the
// memory from other threads until its Work is complete: until then the memory
// must live and nothing else may touch it.
//
//   std::vector<float> gradients(1000);
//   Tensor a(gradients);                        // float32[1000]
//   Tensor b(gradients.data(), {10, 100});      // float32[10,100]
//   Tensor c(pointer, DataType::kBfloat16, {8}, {DeviceType::kCuda, 1});
//   auto d = Tensor::Opaque(records, sizeof(Record), {100});
class Tensor {
 public:
  // Most shapes fit without an allocation.
  using Shape = base::InlinedVector<int64_t, 4>;

  // An empty tensor: float32[0].
  Tensor() : shape_({0}) {}

  // One dimension. Implicit, so that a span or a vector can be passed where a
  // tensor is wanted.
  template <Element T>
  Tensor(std::span<T> elements)  // NOLINT(google-explicit-constructor)
      : Tensor(elements.data(), kDataTypeOf<T>,
               {static_cast<int64_t>(elements.size())}) {}
  template <Element T, typename Allocator>
  Tensor(std::vector<T, Allocator>&  // NOLINT(google-explicit-constructor)
             elements)
      : Tensor(std::span<T>(elements)) {}

  // std::vector<bool> stores no array of elements.
  template <typename Allocator>
  Tensor(std::vector<bool, Allocator>&) = delete;

  template <Element T>
  Tensor(T* data, std::initializer_list<int64_t> shape, Device device = {})
      : Tensor(static_cast<void*>(data), kDataTypeOf<T>,
               std::span(shape.begin(), shape.size()), device) {}
  template <Element T>
  Tensor(T* data, std::span<const int64_t> shape, Device device = {})
      : Tensor(static_cast<void*>(data), kDataTypeOf<T>, shape, device) {}

  // An empty `shape` is a scalar: one element.
  Tensor(void* data, DataType type, std::initializer_list<int64_t> shape,
         Device device = {})
      : Tensor(data, type, std::span(shape.begin(), shape.size()), device) {}
  Tensor(void* data, DataType type, std::span<const int64_t> shape,
         Device device = {});

  // Elements of `element_bytes` each, at least 1 and below 4 GiB, of type
  // kOpaque. They may be at any address.
  static Tensor Opaque(void* data, size_t element_bytes,
                       std::initializer_list<int64_t> shape,
                       Device device = {}) {
    return Opaque(data, element_bytes, std::span(shape.begin(), shape.size()),
                  device);
  }
  static Tensor Opaque(void* data, size_t element_bytes,
                       std::span<const int64_t> shape, Device device = {});

  void* data() const { return data_; }
  DataType data_type() const { return data_type_; }
  std::span<const int64_t> shape() const { return shape_; }
  Device device() const { return device_; }

  // Number of elements, the product of the shape. Zero for a tensor that
  // Validate() rejects.
  int64_t element_count() const { return element_count_; }

  // Size of one element.
  size_t element_bytes() const { return element_bytes_; }

  // Size of all elements.
  size_t bytes() const {
    return static_cast<size_t>(element_count_) * element_bytes_;
  }

  // True, or OK, if the view is usable: no negative dimension, a size that fits
  // into 63 bits, no null pointer unless the tensor is empty, an address
  // aligned to the element (unless that is opaque). Otherwise kInvalidArgument
  // with the reason, for instance "negative dimension in float32[8,-1]".
  // Collectives call it; callers need not.
  bool is_valid() const { return is_valid_; }
  Status Validate() const { return is_valid() ? OkStatus() : WhyInvalid(); }

  // "float32[8,128]", "opaque[8] of 12 bytes", followed by the device unless
  // that is the CPU.
  std::string Describe() const;

 private:
  Tensor(void* data, DataType type, size_t element_bytes,
         std::span<const int64_t> shape, Device device);

  Status WhyInvalid() const;

  void* data_ = nullptr;
  DataType data_type_ = DataType::kFloat32;
  Device device_ = {};
  // Zero for a size that Validate() rejects.
  uint32_t element_bytes_ = 4;
  Shape shape_;
  int64_t element_count_ = 0;
  bool shape_valid_ = true;
  bool is_valid_ = true;
};

}  // namespace dataplane
}  // namespace muster

#endif  // MUSTER_DATAPLANE_TENSOR_H_
