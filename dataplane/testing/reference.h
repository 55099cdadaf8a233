#ifndef MUSTER_DATAPLANE_TESTING_REFERENCE_H_
#define MUSTER_DATAPLANE_TESTING_REFERENCE_H_

#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/float8.h"
#include "muster/dataplane/tensor.h"

namespace muster::dataplane::testing {

// A bool of which std::vector makes an array.
struct Flag {
  bool value = false;
  friend bool operator==(Flag, Flag) = default;
};

// An element of a float8 type.
template <DataType type>
struct Float8 {
  uint8_t bits = 0;
  Float8() = default;
  explicit Float8(float value) : bits(ToFloat8(type, value)) {}
  explicit operator float() const { return FromFloat8(type, bits); }
  friend bool operator==(Float8, Float8) = default;
};
using Float8E4m3fn = Float8<DataType::kFloat8E4m3fn>;
using Float8E5m2 = Float8<DataType::kFloat8E5m2>;

// Calls `body` with a value of the C++ type of `type`.
template <typename Body>
void WithElementType(DataType type, Body&& body) {
  switch (type) {
    case DataType::kUint8:
      return body(uint8_t{});
    case DataType::kInt8:
      return body(int8_t{});
    case DataType::kInt16:
      return body(int16_t{});
    case DataType::kInt32:
      return body(int32_t{});
    case DataType::kInt64:
      return body(int64_t{});
    case DataType::kFloat16:
      return body(Eigen::half{});
    case DataType::kBfloat16:
      return body(Eigen::bfloat16{});
    case DataType::kFloat32:
      return body(float{});
    case DataType::kFloat64:
      return body(double{});
    case DataType::kBool:
      return body(Flag{});
    case DataType::kComplex64:
      return body(std::complex<float>{});
    case DataType::kComplex128:
      return body(std::complex<double>{});
    case DataType::kFloat8E4m3fn:
      return body(Float8E4m3fn{});
    case DataType::kFloat8E5m2:
      return body(Float8E5m2{});
    case DataType::kUint16:
      return body(uint16_t{});
    case DataType::kUint32:
      return body(uint32_t{});
    case DataType::kUint64:
      return body(uint64_t{});
    case DataType::kOpaque:
    case DataType::kFloat32Int32:
    case DataType::kFloat64Int64:
    case DataType::kInt32Int32:
    case DataType::kInt64Int64:
      // See user_reduction_conformance.cc.
      return;
  }
}

// The significant bits of a type that is reduced as float32; 0 for other types.
template <typename T>
inline constexpr int kNarrowDigits = 0;
template <>
inline constexpr int kNarrowDigits<Eigen::half> = 11;
template <>
inline constexpr int kNarrowDigits<Eigen::bfloat16> = 8;
template <>
inline constexpr int kNarrowDigits<Float8E4m3fn> = 4;
template <>
inline constexpr int kNarrowDigits<Float8E5m2> = 3;
template <typename T>
inline constexpr bool kIsNarrow = kNarrowDigits<T> != 0;

template <typename T>
inline constexpr bool kIsComplex = false;
template <typename T>
inline constexpr bool kIsComplex<std::complex<T>> = true;

// The kPremulSum factor of rank `rank`: exact in every type.
inline double GetFactor(int rank) { return 1 + rank * 0.5; }

// Element `index` of rank `rank`'s input. It differs between ranks and elements
// and has both signs. No reduction of floating-point numbers overflows, and
// sums of 16 bit ones are exact in float32.
template <typename T>
T InputElement(ReduceOp op, int world_size, int rank, size_t index) {
  const auto number = static_cast<int64_t>(index) * world_size + rank;
  if constexpr (std::is_same_v<T, Flag>) {
    // Mostly true, except for XOR, so that an AND can be true.
    return {op == ReduceOp::kBxor ? number % 3 == 0 : number % 13 != 0};
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(number - 1001);
  } else if constexpr (kIsComplex<T>) {
    using Part = typename T::value_type;
    return {static_cast<Part>(number) / 4 - 77,
            30 - static_cast<Part>(number) / 8};
  } else if (op == ReduceOp::kProduct) {
    const float magnitude = 0.75f + static_cast<float>(number % 1021) / 2048;
    return static_cast<T>(number % 3 == 0 ? -magnitude : magnitude);
  } else if constexpr (kIsNarrow<T>) {
    // As many significant bits as the type has; positive, so that sums do not
    // cancel; for the larger types a prime number of values.
    constexpr int kDigits = kNarrowDigits<T>;
    constexpr int numbers = kDigits == 11  ? 2039
                            : kDigits == 8 ? 251
                                           : (1 << kDigits) - 1;
    return static_cast<T>(static_cast<float>(number % numbers + 1) / 8);
  } else {
    return static_cast<T>(number) / T{4} - T{77};
  }
}

template <typename T>
struct WideType {
  using Type = std::conditional_t<std::is_integral_v<T>, __int128, long double>;
};
template <typename T>
struct WideType<std::complex<T>> {
  using Type = std::complex<long double>;
};

// Converts to a type that converts to a wider one.
template <typename T>
auto Exact(T value) {
  if constexpr (kIsNarrow<T>) {
    return static_cast<float>(value);
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    return value;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<int64_t>(value);
  } else {
    return value;
  }
}

inline bool ExpectedFlag(ReduceOp op, bool a, bool b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBor:
      return a || b;
    case ReduceOp::kBxor:
      return a != b;
    default:
      return a && b;
  }
}

template <typename Wide>
Wide ExpectedPair(ReduceOp op, Wide a, Wide b) {
  if (op == ReduceOp::kSum || op == ReduceOp::kAvg ||
      op == ReduceOp::kPremulSum) {
    return a + b;
  }
  if (op == ReduceOp::kProduct) return a * b;
  if constexpr (std::is_same_v<Wide, __int128>) {
    if (op == ReduceOp::kBand) return a & b;
    if (op == ReduceOp::kBor) return a | b;
    if (op == ReduceOp::kBxor) return a ^ b;
  }
  if constexpr (!std::is_same_v<Wide, std::complex<long double>>) {
    return (op == ReduceOp::kMin ? b < a : b > a) ? b : a;
  }
  return a;
}

// The reduction of element `index` over all ranks, computed without the
// kernels: integers in 128 bits, cut to T at the end; floating point in long
// double, rounded to T at the end.
template <typename T>
T ExpectedElement(ReduceOp op, int world_size, size_t index) {
  if constexpr (std::is_same_v<T, Flag>) {
    bool result = InputElement<T>(op, world_size, 0, index).value;
    for (int rank = 1; rank < world_size; ++rank) {
      result = ExpectedFlag(op, result,
                            InputElement<T>(op, world_size, rank, index).value);
    }
    return {result};
  } else {
    using Wide = typename WideType<T>::Type;
    Wide result = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      auto value = static_cast<Wide>(
          Exact(InputElement<T>(op, world_size, rank, index)));
      if constexpr (!std::is_integral_v<T>) {
        if (op == ReduceOp::kPremulSum) {
          value *= static_cast<long double>(GetFactor(rank));
        }
      }
      result = rank == 0 ? value : ExpectedPair<Wide>(op, result, value);
      // Keeps the low bits of products that 128 bits cannot hold. Sums wrap
      // before the division.
      if constexpr (std::is_integral_v<T>)
        result = static_cast<T>(result) + T{};
    }
    if (op == ReduceOp::kAvg) result /= static_cast<Wide>(world_size);
    if constexpr (kIsNarrow<T>) {
      return static_cast<T>(static_cast<float>(result));
    } else {
      return static_cast<T>(result);
    }
  }
}

// Whether `actual` equals `expected` except for the order of floating-point
// additions and multiplications. 16 bit numbers, which are rounded once, must
// be equal unless float32 rounded, too.
template <typename T>
bool IsClose(ReduceOp op, T actual, T expected) {
  if constexpr (std::is_integral_v<T> || std::is_same_v<T, Flag>) {
    return actual == expected;
  } else if constexpr (kIsNarrow<T>) {
    if (op != ReduceOp::kAvg && op != ReduceOp::kProduct) {
      return actual == expected;
    }
    const auto a = static_cast<float>(actual);
    const auto b = static_cast<float>(expected);
    const float digit = std::ldexp(1.0F, 1 - kNarrowDigits<T>);
    return std::abs(a - b) <= digit * std::abs(b);
  } else {
    using Real = decltype(std::abs(expected));
    // Allows eight roundings. The inputs' sums do not cancel to almost zero.
    const Real epsilon = std::is_same_v<Real, float> ? Real(1e-6) : Real(2e-15);
    return std::abs(actual - expected) <= epsilon * std::abs(expected);
  }
}

// How often a backend rounds the 8 and 16 bit numbers that it reduces.
enum class Rounding { kOnce, kAtEachRank };

// The largest relative error of one rounding.
template <typename T>
float GetUnit() {
  return std::ldexp(1.0F, -kNarrowDigits<T>);
}

// As IsClose, if each rank rounds the values that it passes on: its product
// with a factor, and each sum or product of two. All summands are positive, so
// no sum is wrong by more than one unit of the last sum per rounding.
// `expected` is rounded, too. With at most one rounding, the result must be the
// nearest number.
template <typename T>
bool IsCloseEnough(ReduceOp op, int world_size, T actual, T expected) {
  int roundings = world_size - 1;
  if (op == ReduceOp::kMin || op == ReduceOp::kMax) roundings = 0;
  if (op == ReduceOp::kPremulSum) roundings = world_size;
  // The factor 1 / world_size is rounded, too.
  if (op == ReduceOp::kAvg) roundings = world_size + 1;
  if (world_size == 1 || roundings <= 1) return IsClose(op, actual, expected);
  const auto a = static_cast<float>(actual);
  const auto b = static_cast<float>(expected);
  const float bound =
      std::pow(1 + GetUnit<T>(), static_cast<float>(roundings + 1)) - 1;
  return std::abs(a - b) <= bound * std::abs(b);
}

// Returns element(0), element(1), ..., at least `count` of them, and caches
// them by T, `op`, `world_size` and `rank`: they are asked for often and take
// long to compute. Does not cache very long lists, and drops those of earlier
// world sizes, to save memory.
template <typename T, typename Element>
std::shared_ptr<const std::vector<T>> Remembered(ReduceOp op, int world_size,
                                                 int rank, size_t count,
                                                 const Element& element) {
  // Every collective of eight ranks needs up to a MiB of 1-byte elements.
  constexpr size_t kVeryMany = size_t{5} << 18;
  const auto extended = [&](std::vector<T> values) {
    values.reserve(count);
    while (values.size() < count) values.push_back(element(values.size()));
    return std::make_shared<const std::vector<T>>(std::move(values));
  };
  if (count > kVeryMany) return extended({});
  struct Known {
    std::mutex mutex;
    int world_size = 0;
    std::map<std::pair<ReduceOp, int>, std::shared_ptr<const std::vector<T>>>
        by_op_and_rank;
  };
  static auto* const known = new Known;
  const std::lock_guard lock(known->mutex);
  if (known->world_size != world_size) known->by_op_and_rank.clear();
  known->world_size = world_size;
  auto& found = known->by_op_and_rank[{op, rank}];
  if (found == nullptr) found = extended({});
  if (found->size() < count) found = extended(*found);
  return found;
}

template <typename T>
std::vector<T> Inputs(ReduceOp op, int world_size, int rank, size_t count) {
  const auto values = Remembered<T>(op, world_size, rank, count, [&](size_t i) {
    return InputElement<T>(op, world_size, rank, i);
  });
  return {values->begin(), values->begin() + static_cast<ptrdiff_t>(count)};
}

// The first `count` or more ExpectedElements.
template <typename T>
std::shared_ptr<const std::vector<T>> Expected(ReduceOp op, int world_size,
                                               size_t count) {
  return Remembered<T>(op, world_size, /*rank=*/-1, count, [&](size_t i) {
    return ExpectedElement<T>(op, world_size, i);
  });
}

template <typename T>
Tensor MakeTensor(DataType type, std::vector<T>& values) {
  return Tensor(values.data(), type, {static_cast<int64_t>(values.size())});
}

// Checks the mean error of many sums that were rounded often; returns the
// difference, or "". Roundings go both ways, while a missing or duplicate rank
// shifts all sums one way. Products with a factor that has few bits are less
// even.
template <typename T>
std::string MeanWrong(const std::vector<T>& actual, ReduceOp op, int world_size,
                      size_t first) {
  constexpr size_t kMany = 1000;
  const double units_max = op == ReduceOp::kPremulSum ? 1.25 : 0.75;
  const bool sums = op == ReduceOp::kSum || op == ReduceOp::kAvg ||
                    op == ReduceOp::kPremulSum;
  if (!sums || actual.size() < kMany) return "";
  const auto expected = Expected<T>(op, world_size, first + actual.size());
  double got = 0;
  double wanted = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    got += static_cast<float>(actual[i]);
    wanted += static_cast<float>((*expected)[first + i]);
  }
  const double off = std::abs(got - wanted) / wanted;
  if (off <= units_max * GetUnit<T>()) return "";
  std::ostringstream text;
  text << "the elements are off by " << 100 * off << " % on average";
  return text.str();
}

// Describes the first wrong element of `actual`, the reduction's elements from
// `first` on, or returns "".
template <typename T>
std::string FirstWrong(const std::vector<T>& actual, ReduceOp op,
                       int world_size, size_t first = 0,
                       Rounding rounding = Rounding::kOnce) {
  const auto all = Expected<T>(op, world_size, first + actual.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const T expected = (*all)[first + i];
    if constexpr (kIsNarrow<T>) {
      if (rounding == Rounding::kAtEachRank &&
          IsCloseEnough(op, world_size, actual[i], expected)) {
        continue;
      }
    }
    if (IsClose(op, actual[i], expected)) continue;
    std::ostringstream text;
    if constexpr (std::is_same_v<T, Flag>) {
      text << "element " << i << " is " << actual[i].value;
    } else {
      text << "element " << i << " is " << Exact(actual[i]) << ", expected "
           << Exact(expected);
    }
    return text.str();
  }
  if constexpr (kIsNarrow<T>) {
    if (rounding == Rounding::kAtEachRank) {
      return MeanWrong(actual, op, world_size, first);
    }
  }
  return "";
}

}  // namespace muster::dataplane::testing

#endif  // MUSTER_DATAPLANE_TESTING_REFERENCE_H_
