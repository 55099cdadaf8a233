#include "client/parallel/elements/neutral_element.h"

#include <algorithm>
#include <complex>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace muster::internal {
namespace {

using dataplane::DataType;
using dataplane::ReduceOp;
using dataplane::Tensor;

template <typename T>
bool Fill(const Tensor& tensor, T value) {
  std::fill_n(static_cast<T*>(tensor.data()), tensor.element_count(), value);
  return true;
}

// The neutral elements of a sum and a product, and the limits of a type.
template <typename T>
struct Elements {
  T zero;
  T one;
  T lowest;
  T highest;
};

template <typename T>
bool FillChosen(const Tensor& tensor, ReduceOp op,
                const Elements<T>& elements) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return Fill(tensor, elements.zero);
    case ReduceOp::kProduct:
      return Fill(tensor, elements.one);
    case ReduceOp::kMin:
      return Fill(tensor, elements.highest);
    case ReduceOp::kMax:
      return Fill(tensor, elements.lowest);
    default:
      return false;
  }
}

template <typename T>
bool FillInteger(const Tensor& tensor, ReduceOp op) {
  if (op == ReduceOp::kBand) {
    if constexpr (std::is_same_v<T, bool>) return Fill(tensor, true);
    return Fill(tensor, static_cast<T>(~static_cast<int64_t>(0)));
  }
  if (op == ReduceOp::kBor || op == ReduceOp::kBxor) return Fill(tensor, T{0});
  using Limits = std::numeric_limits<T>;
  return FillChosen<T>(tensor, op,
                       {T{0}, T{1}, Limits::lowest(), Limits::max()});
}

template <typename T>
bool FillFloat(const Tensor& tensor, ReduceOp op) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  return FillChosen<T>(tensor, op, {T(-0.0), 1, -kInfinity, kInfinity});
}

// Complex numbers are added, and nothing else.
template <typename T>
bool FillComplex(const Tensor& tensor, ReduceOp op) {
  if (op != ReduceOp::kSum && op != ReduceOp::kAvg) return false;
  return Fill(tensor, std::complex<T>(T(-0.0), T(-0.0)));
}

}  // namespace

bool FillNeutral(const Tensor& tensor, ReduceOp op) {
  switch (tensor.data_type()) {
    case DataType::kUint8:
      return FillInteger<uint8_t>(tensor, op);
    case DataType::kInt8:
      return FillInteger<int8_t>(tensor, op);
    case DataType::kInt16:
      return FillInteger<int16_t>(tensor, op);
    case DataType::kInt32:
      return FillInteger<int32_t>(tensor, op);
    case DataType::kInt64:
      return FillInteger<int64_t>(tensor, op);
    case DataType::kUint16:
      return FillInteger<uint16_t>(tensor, op);
    case DataType::kUint32:
      return FillInteger<uint32_t>(tensor, op);
    case DataType::kUint64:
      return FillInteger<uint64_t>(tensor, op);
    case DataType::kBool:
      return FillInteger<bool>(tensor, op);
    case DataType::kFloat16:  // -0, 1, -infinity, infinity, as bits.
      return FillChosen<uint16_t>(tensor, op, {0x8000, 0x3c00, 0xfc00, 0x7c00});
    case DataType::kBfloat16:
      return FillChosen<uint16_t>(tensor, op, {0x8000, 0x3f80, 0xff80, 0x7f80});
    case DataType::kFloat32:
      return FillFloat<float>(tensor, op);
    case DataType::kFloat64:
      return FillFloat<double>(tensor, op);
    case DataType::kComplex64:
      return FillComplex<float>(tensor, op);
    case DataType::kComplex128:
      return FillComplex<double>(tensor, op);
    default:
      return false;
  }
}

}  // namespace muster::internal
