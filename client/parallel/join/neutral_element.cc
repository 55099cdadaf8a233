#include "client/parallel/join/neutral_element.h"

#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace muster::internal {
namespace {

using dataplane::DataType;
using dataplane::ReduceOp;
using Bytes = std::optional<std::vector<std::byte>>;

template <typename T>
Bytes ToBytes(T value) {
  std::vector<std::byte> bytes(sizeof(T));
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

// The elements that a type has.
template <typename T>
struct Elements {
  T zero;
  T one;
  T smallest;
  T largest;
};

template <typename T>
Bytes Choose(ReduceOp op, const Elements<T>& elements) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return ToBytes(elements.zero);
    case ReduceOp::kProduct:
      return ToBytes(elements.one);
    case ReduceOp::kMin:
      return ToBytes(elements.largest);
    case ReduceOp::kMax:
      return ToBytes(elements.smallest);
    default:
      return std::nullopt;
  }
}

template <typename T>
Bytes FindInteger(ReduceOp op) {
  if (op == ReduceOp::kBand) {
    if constexpr (std::is_same_v<T, bool>) return ToBytes(true);
    return ToBytes(static_cast<T>(~static_cast<int64_t>(0)));
  }
  if (op == ReduceOp::kBor || op == ReduceOp::kBxor) return ToBytes(T{0});
  using Limits = std::numeric_limits<T>;
  return Choose<T>(op, {T{0}, T{1}, Limits::lowest(), Limits::max()});
}

template <typename T>
Bytes FindFloat(ReduceOp op) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  return Choose<T>(op, {0, 1, -kInfinity, kInfinity});
}

// Complex numbers are added, and nothing else.
template <typename T>
Bytes FindComplex(ReduceOp op) {
  if (op != ReduceOp::kSum && op != ReduceOp::kAvg) return std::nullopt;
  return ToBytes(std::complex<T>(0));
}

}  // namespace

Bytes FindNeutralElement(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kUint8:
      return FindInteger<uint8_t>(op);
    case DataType::kInt8:
      return FindInteger<int8_t>(op);
    case DataType::kInt16:
      return FindInteger<int16_t>(op);
    case DataType::kInt32:
      return FindInteger<int32_t>(op);
    case DataType::kInt64:
      return FindInteger<int64_t>(op);
    case DataType::kUint16:
      return FindInteger<uint16_t>(op);
    case DataType::kUint32:
      return FindInteger<uint32_t>(op);
    case DataType::kUint64:
      return FindInteger<uint64_t>(op);
    case DataType::kBool:
      return FindInteger<bool>(op);
    case DataType::kFloat16:  // 0, 1, -infinity, infinity, as bits.
      return Choose<uint16_t>(op, {0, 0x3c00, 0xfc00, 0x7c00});
    case DataType::kBfloat16:
      return Choose<uint16_t>(op, {0, 0x3f80, 0xff80, 0x7f80});
    case DataType::kFloat32:
      return FindFloat<float>(op);
    case DataType::kFloat64:
      return FindFloat<double>(op);
    case DataType::kComplex64:
      return FindComplex<float>(op);
    case DataType::kComplex128:
      return FindComplex<double>(op);
    default:
      return std::nullopt;
  }
}

}  // namespace muster::internal
