#include "worker/bench/pattern.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <type_traits>

#include "Eigen/Core"

namespace muster::worker::bench {
namespace {

// A prime, so that parts with different starts differ.
constexpr size_t kPeriod = 1009;

// Small integers, so that sums are exact in every type.
int64_t InputNumber(ReduceOp op, int rank, size_t index) {
  const auto number = static_cast<int64_t>(index) * 5 + int64_t{rank} * 3;
  // Keeps products of many ranks small enough to be exact.
  if (op == ReduceOp::kProduct) return rank < 4 ? 1 + number % 3 : 1;
  return 1 + number % 7;
}

bool InputFlag(int rank, size_t index) {
  return (index + static_cast<size_t>(rank) * 5) % 11 != 0;
}

template <typename Number>
Number Combine(ReduceOp op, Number a, Number b) {
  if (op == ReduceOp::kProduct) return a * b;
  if (op == ReduceOp::kMin) return std::min(a, b);
  if (op == ReduceOp::kMax) return std::max(a, b);
  if constexpr (std::is_integral_v<Number>) {
    if (op == ReduceOp::kBand) return a & b;
    if (op == ReduceOp::kBor) return a | b;
    if (op == ReduceOp::kBxor) return a ^ b;
  }
  return a + b;
}

bool ReducedFlag(ReduceOp op, int world_size, size_t index) {
  bool result = InputFlag(0, index);
  for (int rank = 1; rank < world_size; ++rank) {
    const bool other = InputFlag(rank, index);
    if (op == ReduceOp::kBxor) {
      result ^= other;
    } else if (op == ReduceOp::kSum || op == ReduceOp::kMax ||
               op == ReduceOp::kBor || op == ReduceOp::kUser) {
      result |= other;
    } else {
      result &= other;
    }
  }
  return result;
}

template <typename Number>
Number ReducedNumber(ReduceOp op, int world_size, size_t index) {
  const auto input = [&](int rank) {
    const auto number = static_cast<Number>(InputNumber(op, rank, index));
    return op == ReduceOp::kPremulSum
               ? static_cast<Number>(static_cast<double>(number) *
                                     GetFactor(rank))
               : number;
  };
  Number result = input(0);
  for (int rank = 1; rank < world_size; ++rank) {
    result = Combine<Number>(op, result, input(rank));
  }
  return result;
}

template <typename T>
T ReducedElement(ReduceOp op, int world_size, size_t index) {
  if constexpr (std::is_integral_v<T>) {
    // The sum wraps before the division.
    const T result =
        static_cast<T>(ReducedNumber<int64_t>(op, world_size, index));
    return op == ReduceOp::kAvg ? static_cast<T>(result / world_size) : result;
  } else {
    double result = ReducedNumber<double>(op, world_size, index);
    if (op == ReduceOp::kAvg) result /= world_size;
    // Narrow types are divided as float32.
    if constexpr (std::is_same_v<T, double>) return result;
    return static_cast<T>(static_cast<float>(result));
  }
}

template <typename T>
void Store(std::vector<std::byte>& bytes, size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(value), &value, sizeof(value));
}

template <DataType type, int digits>
struct Float8 {
  static constexpr int kDigits = digits;
  Float8() = default;
  explicit Float8(float value) : bits(ToFloat8(type, value)) {}
  explicit operator float() const { return FromFloat8(type, bits); }
  uint8_t bits = 0;
};

// The number of significant bits.
template <typename T>
constexpr int CountDigits() {
  if constexpr (std::numeric_limits<T>::is_specialized) {
    return std::numeric_limits<T>::digits;
  } else {
    return T::kDigits;
  }
}

// Calls `body` with a value of `type`'s number type, and whether elements are
// pairs of numbers (complex).
template <typename Body>
void WithNumberType(DataType type, Body&& body) {
  switch (type) {
    case DataType::kUint8:
      return body(uint8_t{}, false);
    case DataType::kInt8:
      return body(int8_t{}, false);
    case DataType::kInt16:
      return body(int16_t{}, false);
    case DataType::kInt32:
      return body(int32_t{}, false);
    case DataType::kInt64:
      return body(int64_t{}, false);
    case DataType::kFloat16:
      return body(Eigen::half{}, false);
    case DataType::kBfloat16:
      return body(Eigen::bfloat16{}, false);
    case DataType::kFloat32:
      return body(float{}, false);
    case DataType::kFloat64:
      return body(double{}, false);
    case DataType::kBool:
      return body(bool{}, false);
    case DataType::kComplex64:
      return body(float{}, true);
    case DataType::kComplex128:
      return body(double{}, true);
    case DataType::kFloat8E4m3fn:
      return body(Float8<DataType::kFloat8E4m3fn, 4>{}, false);
    case DataType::kFloat8E5m2:
      return body(Float8<DataType::kFloat8E5m2, 3>{}, false);
    case DataType::kUint16:
      return body(uint16_t{}, false);
    case DataType::kUint32:
      return body(uint32_t{}, false);
    case DataType::kUint64:
      return body(uint64_t{}, false);
    case DataType::kOpaque:
      return body(uint8_t{}, false);
    case DataType::kFloat32Int32:
    case DataType::kFloat64Int64:
    case DataType::kInt32Int32:
    case DataType::kInt64Int64:
      // WithPairType has these.
      return;
  }
}

// As WithNumberType, for pairs of a value and an index.
template <typename Body>
void WithPairType(DataType type, Body&& body) {
  switch (type) {
    case DataType::kFloat32Int32:
      return body(ValueIndex<float, int32_t>{});
    case DataType::kFloat64Int64:
      return body(ValueIndex<double, int64_t>{});
    case DataType::kInt32Int32:
      return body(ValueIndex<int32_t, int32_t>{});
    case DataType::kInt64Int64:
      return body(ValueIndex<int64_t, int64_t>{});
    default:
      return;
  }
}

// The pair of rank `rank`, whose index is the rank.
template <typename Pair>
Pair InputPair(ReduceOp op, int rank, size_t index) {
  return {static_cast<decltype(Pair::value)>(InputNumber(op, rank, index)),
          rank};
}

// By kUser: the sum of the values, and of the indices.
template <typename Pair>
Pair ReducedPair(ReduceOp op, int world_size, size_t index) {
  Pair result = InputPair<Pair>(op, 0, index);
  for (int rank = 1; rank < world_size; ++rank) {
    const Pair other = InputPair<Pair>(op, rank, index);
    if (op == ReduceOp::kUser) {
      result.value += other.value;
      result.index += other.index;
    } else if (op == ReduceOp::kMinloc ? other.value < result.value
                                       : other.value > result.value) {
      result = other;
    }
  }
  return result;
}

template <typename T>
T Sum(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a || b;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else if constexpr (sizeof(T) < sizeof(float)) {
    return static_cast<T>(static_cast<float>(a) + static_cast<float>(b));
  } else {
    return a + b;
  }
}

double ToNumber(double value) { return value; }

// Narrow types have no conversion to double.
template <typename T>
double ToNumber(T value) {
  return static_cast<double>(static_cast<float>(value));
}

}  // namespace

ReduceFunction MakeSumFunction(DataType type) {
  ReduceFunction function;
  WithNumberType(type, [&](auto zero, bool is_pair) {
    using T = decltype(zero);
    const size_t numbers = is_pair ? 2 : 1;
    function = ReduceFunction(
        [numbers](const void* in, void* inout, size_t count) {
          const T* const a = static_cast<const T*>(in);
          T* const b = static_cast<T*>(inout);
          for (size_t i = 0; i < numbers * count; ++i) b[i] = Sum(a[i], b[i]);
        },
        {.name = "sum"});
  });
  WithPairType(type, [&](auto zero) {
    using Pair = decltype(zero);
    function = ReduceFunction::ForElements<Pair>(
        [](Pair a, Pair b) {
          return Pair{a.value + b.value, a.index + b.index};
        },
        {.name = "sum"});
  });
  return function;
}

double GetFactor(int rank) { return rank % 2 == 0 ? 2 : 0.5; }

Pattern::Pattern(DataType type)
    : type_(type),
      element_bytes_(DataTypeBytes(type)),
      bytes_(kPeriod * element_bytes_) {}

Pattern Pattern::Zero(DataType type) { return Pattern(type); }

Pattern Pattern::Input(DataType type, ReduceOp op, int rank) {
  // One rank's reduction, before the result is scaled.
  Pattern pattern(type);
  WithNumberType(type, [&](auto zero, bool is_pair) {
    using T = decltype(zero);
    for (size_t i = 0; i < kPeriod; ++i) {
      if constexpr (std::is_same_v<T, bool>) {
        Store(pattern.bytes_, i, InputFlag(rank, i));
      } else if (is_pair) {
        Store(pattern.bytes_, 2 * i, static_cast<T>(InputNumber(op, rank, i)));
        // Differs from the real part.
        Store(pattern.bytes_, 2 * i + 1,
              static_cast<T>(InputNumber(op, rank, i + 1)));
      } else if constexpr (std::is_integral_v<T>) {
        Store(pattern.bytes_, i, static_cast<T>(InputNumber(op, rank, i)));
      } else {
        Store(pattern.bytes_, i,
              static_cast<T>(static_cast<float>(InputNumber(op, rank, i))));
      }
    }
  });
  WithPairType(type, [&](auto zero) {
    for (size_t i = 0; i < kPeriod; ++i) {
      Store(pattern.bytes_, i, InputPair<decltype(zero)>(op, rank, i));
    }
  });
  return pattern;
}

Pattern Pattern::Reduced(DataType type, ReduceOp op, int world_size) {
  Pattern pattern(type);
  WithNumberType(type, [&](auto zero, bool is_pair) {
    using T = decltype(zero);
    for (size_t i = 0; i < kPeriod; ++i) {
      if constexpr (std::is_same_v<T, bool>) {
        Store(pattern.bytes_, i, ReducedFlag(op, world_size, i));
      } else if (is_pair) {
        Store(pattern.bytes_, 2 * i, ReducedElement<T>(op, world_size, i));
        Store(pattern.bytes_, 2 * i + 1,
              ReducedElement<T>(op, world_size, i + 1));
      } else {
        Store(pattern.bytes_, i, ReducedElement<T>(op, world_size, i));
      }
    }
  });
  WithPairType(type, [&](auto zero) {
    for (size_t i = 0; i < kPeriod; ++i) {
      Store(pattern.bytes_, i, ReducedPair<decltype(zero)>(op, world_size, i));
    }
  });
  return pattern;
}

void Pattern::Fill(std::byte* to, size_t count, size_t first) const {
  first %= kPeriod;
  while (count > 0) {
    const size_t run = std::min(count, kPeriod - first);
    std::memcpy(to, bytes_.data() + first * element_bytes_,
                run * element_bytes_);
    to += run * element_bytes_;
    count -= run;
    first = 0;
  }
}

bool Pattern::IsNear(const std::byte* got, const std::byte* expected,
                     int ulps) const {
  // Pairs are exact.
  bool near = type_ <= DataType::kOpaque;
  WithNumberType(type_, [&](auto zero, bool is_pair) {
    using T = decltype(zero);
    for (size_t i = 0; i < (is_pair ? 2 : 1); ++i) {
      T a;
      T b;
      std::memcpy(&a, got + i * sizeof(T), sizeof(T));
      std::memcpy(&b, expected + i * sizeof(T), sizeof(T));
      if constexpr (std::is_integral_v<T>) {
        near = near && a == b;
      } else {
        // One unit is at most this part of the value. (Eigen's epsilon() of a
        // half is something else.)
        const double unit = std::ldexp(1, 1 - CountDigits<T>());
        near = near && std::abs(ToNumber(a) - ToNumber(b)) <=
                           ulps * unit * std::abs(ToNumber(b));
      }
    }
  });
  return near;
}

int64_t Pattern::CountWrong(const std::byte* from, size_t count, size_t first,
                            int ulps) const {
  int64_t wrong = 0;
  first %= kPeriod;
  while (count > 0) {
    const size_t run = std::min(count, kPeriod - first);
    const std::byte* const expected = bytes_.data() + first * element_bytes_;
    if (std::memcmp(from, expected, run * element_bytes_) != 0) {
      for (size_t i = 0; i < run; ++i) {
        const std::byte* const got = from + i * element_bytes_;
        const std::byte* const want = expected + i * element_bytes_;
        if (std::memcmp(got, want, element_bytes_) != 0 &&
            (ulps == 0 || !IsNear(got, want, ulps))) {
          ++wrong;
        }
      }
    }
    from += run * element_bytes_;
    count -= run;
    first = 0;
  }
  return wrong;
}

}  // namespace muster::worker::bench
