#include "dataplane/tensor.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::dataplane {
namespace {

struct DataTypeFacts {
  absl::string_view name;
  // Of a complex number, that of its parts.
  size_t alignment;
};

constexpr std::array<DataTypeFacts, kDataTypeCount> kFacts = {{
    {"uint8", 1},
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"float32", 4},
    {"float64", 8},
    {"bool", 1},
    {"complex64", 4},
    {"complex128", 8},
    {"float8_e4m3fn", 1},
    {"float8_e5m2", 1},
}};

// Of a number that is no DataType, too: Tensor::Validate refuses it.
const DataTypeFacts& FactsOf(DataType type) {
  static constexpr DataTypeFacts kNone = {"no DataType", 1};
  const auto index = static_cast<size_t>(type);
  return index < kFacts.size() ? kFacts[index] : kNone;
}

bool IsAligned(const void* data, DataType type) {
  return reinterpret_cast<uintptr_t>(data) % FactsOf(type).alignment == 0;
}

}  // namespace

absl::string_view DataTypeName(DataType type) { return FactsOf(type).name; }

absl::string_view DeviceTypeName(DeviceType type) {
  return type == DeviceType::kCpu ? "cpu" : "cuda";
}

std::string DeviceName(Device device) {
  if (device.type == DeviceType::kCpu) return "cpu";
  if (device.type == DeviceType::kCuda) {
    return absl::StrCat("cuda:", device.index);
  }
  return absl::StrCat("device type ", static_cast<int>(device.type));
}

Tensor::Tensor(void* data, DataType type, absl::Span<const int64_t> shape,
               Device device)
    : data_(data), shape_(shape.begin(), shape.end()) {
  int64_t count = 1;
  int64_t bytes = 0;
  for (const int64_t dimension : shape) {
    shape_valid_ = shape_valid_ && dimension >= 0 &&
                   !__builtin_mul_overflow(count, dimension, &count);
  }
  shape_valid_ = shape_valid_ &&
                 !__builtin_mul_overflow(
                     count, static_cast<int64_t>(DataTypeBytes(type)), &bytes);
  if (shape_valid_) element_count_ = count;
  const bool is_valid =
      shape_valid_ && static_cast<size_t>(type) < kFacts.size() &&
      (count == 0 || (data != nullptr && IsAligned(data, type)));
  traits_ = Traits(type, device, shape.size() == 1, is_valid);
}

bool Tensor::HasShapeOf(const Tensor& other) const {
  return std::ranges::equal(shape_, other.shape_);
}

Status Tensor::WhyInvalid() const {
  if (static_cast<size_t>(data_type()) >= kFacts.size()) {
    return InvalidArgumentError(absl::StrCat("a tensor's data type is ",
                                             static_cast<int>(data_type()),
                                             ", which is no DataType"));
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
                   FactsOf(data_type()).alignment, " bytes"));
}

std::string Tensor::Describe() const {
  std::string text = absl::StrCat(DataTypeName(data_type()), "[",
                                  absl::StrJoin(shape_, ","), "]");
  if (device().type != DeviceType::kCpu) {
    absl::StrAppend(&text, " on ", DeviceName(device()));
  }
  return text;
}

}  // namespace muster::dataplane
