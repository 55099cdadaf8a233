#include "muster/dataplane/tensor.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::dataplane {
namespace {

// Also maps numbers that are not a DataType, which Tensor::Validate refuses.
constexpr size_t ToIndex(DataType type) {
  return std::min<size_t>(static_cast<size_t>(type), kDataTypeCount);
}

// A complex number and a pair have the alignment of their parts.
constexpr std::array<size_t, kDataTypeCount + 1> kAlignments = {
    1, 1, 2, 4, 8, 2, 2, 4, 8, 1, 4, 8, 1, 1, 2, 4, 8, 1, 4, 8, 4, 8, 1};

bool IsAligned(const void* data, DataType type) {
  return reinterpret_cast<uintptr_t>(data) % kAlignments[ToIndex(type)] == 0;
}

}  // namespace

const std::string& DataTypeName(DataType type) {
  // Never destroyed: threads may use the names while the process ends.
  static const auto& kNames = *new std::array<std::string, kDataTypeCount + 1>{
      "uint8",         "int8",        "int16",         "int32",
      "int64",         "float16",     "bfloat16",      "float32",
      "float64",       "bool",        "complex64",     "complex128",
      "float8_e4m3fn", "float8_e5m2", "uint16",        "uint32",
      "uint64",        "opaque",      "float32_int32", "float64_int64",
      "int32_int32",   "int64_int64", "no DataType"};
  return kNames[ToIndex(type)];
}

const std::string& DeviceTypeName(DeviceType type) {
  static const auto& kNames = *new std::array<std::string, 2>{"cpu", "cuda"};
  return kNames[type == DeviceType::kCpu ? 0 : 1];
}

std::string DeviceName(Device device) {
  if (device.type == DeviceType::kCpu) return "cpu";
  if (device.type == DeviceType::kCuda) {
    return absl::StrCat("cuda:", device.index);
  }
  return absl::StrCat("device type ", static_cast<int>(device.type));
}

Tensor::Tensor(void* data, DataType type, std::span<const int64_t> shape,
               Device device)
    : Tensor(data, type, DataTypeBytes(type), shape, device) {}

Tensor Tensor::Opaque(void* data, size_t element_bytes,
                      std::span<const int64_t> shape, Device device) {
  return Tensor(data, DataType::kOpaque,
                element_bytes > UINT32_MAX ? 0 : element_bytes, shape, device);
}

Tensor::Tensor(void* data, DataType type, size_t element_bytes,
               std::span<const int64_t> shape, Device device)
    : data_(data),
      data_type_(type),
      device_(device),
      element_bytes_(static_cast<uint32_t>(element_bytes)),
      shape_(shape.begin(), shape.end()) {
  int64_t count = 1;
  int64_t bytes = 0;
  for (const int64_t dimension : shape) {
    shape_valid_ = shape_valid_ && dimension >= 0 &&
                   !__builtin_mul_overflow(count, dimension, &count);
  }
  shape_valid_ =
      shape_valid_ && !__builtin_mul_overflow(
                          count, static_cast<int64_t>(element_bytes), &bytes);
  if (shape_valid_) element_count_ = count;
  is_valid_ = shape_valid_ && element_bytes > 0 &&
              static_cast<size_t>(type) < size_t{kDataTypeCount} &&
              (count == 0 || (data != nullptr && IsAligned(data, type)));
}

Status Tensor::WhyInvalid() const {
  if (static_cast<size_t>(data_type()) >= size_t{kDataTypeCount}) {
    return InvalidArgumentError(absl::StrCat("a tensor's data type is ",
                                             static_cast<int>(data_type()),
                                             ", which is no DataType"));
  }
  if (element_bytes_ == 0) {
    return InvalidArgumentError(
        "the size of a tensor's opaque element must be from 1 to 4294967295 "
        "bytes");
  }
  if (!shape_valid_) {
    for (const int64_t dimension : shape_) {
      if (dimension < 0) {
        return InvalidArgumentError(
            absl::StrCat("negative dimension in ", Describe()));
      }
    }
    return InvalidArgumentError(
        absl::StrCat("size of ", Describe(), " does not fit into 63 bits"));
  }
  if (data_ == nullptr) {
    return InvalidArgumentError(
        absl::StrCat("null data pointer of ", Describe()));
  }
  return InvalidArgumentError(
      absl::StrCat("data pointer of ", Describe(), " is not aligned to ",
                   kAlignments[ToIndex(data_type())], " bytes"));
}

std::string Tensor::Describe() const {
  std::string text = absl::StrCat(DataTypeName(data_type()), "[",
                                  absl::StrJoin(shape_, ","), "]");
  if (data_type() == DataType::kOpaque && element_bytes_ > 1) {
    absl::StrAppend(&text, " of ", element_bytes_, " bytes");
  }
  if (device().type != DeviceType::kCpu) {
    absl::StrAppend(&text, " on ", DeviceName(device()));
  }
  return text;
}

}  // namespace muster::dataplane
