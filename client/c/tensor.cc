#include "muster/dataplane/tensor.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/c/convert.h"
#include "client/c/error.h"
#include "client/c/handles.h"
#include "muster/muster.h"

namespace muster::c {
namespace {

// The numbers of both are the same.
static_assert(MUSTER_UINT8 == static_cast<int>(DataType::kUint8));
static_assert(MUSTER_INT8 == static_cast<int>(DataType::kInt8));
static_assert(MUSTER_INT16 == static_cast<int>(DataType::kInt16));
static_assert(MUSTER_INT32 == static_cast<int>(DataType::kInt32));
static_assert(MUSTER_INT64 == static_cast<int>(DataType::kInt64));
static_assert(MUSTER_FLOAT16 == static_cast<int>(DataType::kFloat16));
static_assert(MUSTER_BFLOAT16 == static_cast<int>(DataType::kBfloat16));
static_assert(MUSTER_FLOAT32 == static_cast<int>(DataType::kFloat32));
static_assert(MUSTER_FLOAT64 == static_cast<int>(DataType::kFloat64));
static_assert(MUSTER_BOOL == static_cast<int>(DataType::kBool));
static_assert(MUSTER_COMPLEX64 == static_cast<int>(DataType::kComplex64));
static_assert(MUSTER_COMPLEX128 == static_cast<int>(DataType::kComplex128));
static_assert(MUSTER_FLOAT8_E4M3FN ==
              static_cast<int>(DataType::kFloat8E4m3fn));
static_assert(MUSTER_FLOAT8_E5M2 == static_cast<int>(DataType::kFloat8E5m2));
static_assert(MUSTER_UINT16 == static_cast<int>(DataType::kUint16));
static_assert(MUSTER_UINT32 == static_cast<int>(DataType::kUint32));
static_assert(MUSTER_UINT64 == static_cast<int>(DataType::kUint64));
static_assert(MUSTER_OPAQUE == static_cast<int>(DataType::kOpaque));
static_assert(MUSTER_FLOAT32_INT32 ==
              static_cast<int>(DataType::kFloat32Int32));
static_assert(MUSTER_FLOAT64_INT64 ==
              static_cast<int>(DataType::kFloat64Int64));
static_assert(MUSTER_INT32_INT32 == static_cast<int>(DataType::kInt32Int32));
static_assert(MUSTER_INT64_INT64 == static_cast<int>(DataType::kInt64Int64));
static_assert(MUSTER_CPU == static_cast<int>(DeviceType::kCpu));
static_assert(MUSTER_CUDA == static_cast<int>(DeviceType::kCuda));

bool IsDataType(muster_dtype dtype) {
  return dtype >= 0 && dtype < dataplane::kDataTypeCount;
}

}  // namespace

DataType ToDataType(muster_dtype dtype, const char* name) {
  if (!IsDataType(dtype)) [[unlikely]] {
    ThrowArgument(name, "dtype " + std::to_string(dtype) + " does not exist");
  }
  return static_cast<DataType>(dtype);
}

DeviceType ToDeviceType(muster_device_type type, const char* name) {
  if (type != MUSTER_CPU && type != MUSTER_CUDA) [[unlikely]] {
    ThrowArgument(name,
                  "device_type " + std::to_string(type) + " does not exist");
  }
  return static_cast<DeviceType>(type);
}

Tensor ToTensor(const muster_tensor* tensor, const char* name) {
  const muster_tensor& from = Need(tensor, name);
  const DataType type = ToDataType(from.dtype, name);
  const Device device = {ToDeviceType(from.device_type, name),
                         from.device_index};
  if (from.shape == nullptr ? from.ndim != 0 : from.ndim < 0) [[unlikely]] {
    ThrowArgument(name,
                  "ndim is " + std::to_string(from.ndim) +
                      (from.shape == nullptr ? ", but shape is NULL" : ""));
  }
  const std::span<const int64_t> shape =
      from.shape == nullptr
          ? std::span(&from.count, 1)
          : std::span(from.shape, static_cast<size_t>(from.ndim));
  if (type == DataType::kOpaque) [[unlikely]] {
    return Tensor::Opaque(from.data, from.element_size, shape, device);
  }
  if (from.element_size != 0) [[unlikely]] {
    ThrowArgument(name, "element_size is for MUSTER_OPAQUE");
  }
  return Tensor(from.data, type, shape, device);
}

std::vector<Tensor> ToTensors(const muster_tensor* tensors, size_t count,
                              const char* name) {
  std::vector<Tensor> list;
  list.reserve(count);
  for (const muster_tensor& tensor : ToSpan(tensors, count, name)) {
    list.push_back(ToTensor(&tensor, name));
  }
  return list;
}

muster_tensor FromTensor(const Tensor& tensor) {
  muster_tensor to = {};
  to.data = tensor.data();
  to.dtype = static_cast<muster_dtype>(tensor.data_type());
  to.device_type = static_cast<muster_device_type>(tensor.device().type);
  to.device_index = tensor.device().index;
  to.ndim = static_cast<int32_t>(tensor.shape().size());
  to.shape = tensor.shape().data();
  to.count = tensor.element_count();
  if (tensor.data_type() == DataType::kOpaque) {
    to.element_size = tensor.element_bytes();
  }
  return to;
}

}  // namespace muster::c

const char* muster_dtype_name(muster_dtype dtype) {
  if (!muster::c::IsDataType(dtype)) return "";
  return muster::dataplane::DataTypeName(static_cast<muster::DataType>(dtype))
      .c_str();
}

size_t muster_dtype_size(muster_dtype dtype) {
  if (!muster::c::IsDataType(dtype) || dtype == MUSTER_OPAQUE) return 0;
  return muster::dataplane::DataTypeBytes(static_cast<muster::DataType>(dtype));
}
