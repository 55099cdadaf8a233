#include "dataplane/reduction.h"

#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};
constexpr ReduceOp kBitOps[] = {ReduceOp::kBand, ReduceOp::kBor,
                                ReduceOp::kBxor};

template <typename T>
T Expected(ReduceOp op, T a, T b) {
  using Wide = std::conditional_t<std::is_integral_v<T>, __int128, long double>;
  const Wide wide_a = a + T{};
  const Wide wide_b = b + T{};
  switch (op) {
    case ReduceOp::kSum:
      return static_cast<T>(wide_a + wide_b);
    case ReduceOp::kProduct:
      return static_cast<T>(wide_a * wide_b);
    case ReduceOp::kMin:
      return wide_a < wide_b ? a : b;
    default:
      return wide_a > wide_b ? a : b;
  }
}

template <typename T>
class ReductionTest : public ::testing::Test {
 protected:
  // Values of both signs, at an address that is not aligned for vector loads.
  static std::vector<T> Values(size_t count, int seed) {
    std::vector<T> values(count);
    for (size_t i = 0; i < count; ++i) {
      const auto number =
          (static_cast<int64_t>(i) * 7919 + int64_t{seed} * 104729) % 20011 -
          10005;
      values[i] = std::is_integral_v<T> ? static_cast<T>(number * 300'007)
                                        : static_cast<T>(number) / T{16};
    }
    return values;
  }
};

using Types =
    ::testing::Types<uint8_t, int8_t, int16_t, int32_t, int64_t, float, double>;
TYPED_TEST_SUITE(ReductionTest, Types);

TYPED_TEST(ReductionTest, EveryInstructionSetGivesTheReference) {
  for (const absl::string_view set : InstructionSets()) {
    for (const ReduceOp op : kOps) {
      const Reduction reduction(kDataTypeOf<TypeParam>, op, set);
      for (const size_t count : {0, 1, 3, 15, 16, 17, 63, 64, 65, 1000}) {
        SCOPED_TRACE(absl::StrCat(set, " ", ReduceOpName(op), " ", count));
        const auto a = this->Values(count + 1, 1);
        const auto b = this->Values(count + 1, 2);
        std::vector<TypeParam> out(count + 2, TypeParam{42});
        reduction.Combine(out.data() + 1, a.data() + 1, b.data() + 1, count);
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(out[i + 1], Expected(op, a[i + 1], b[i + 1])) << i;
        }
        EXPECT_EQ(out[0], TypeParam{42});
        EXPECT_EQ(out[count + 1], TypeParam{42});
      }
    }
  }
}

TYPED_TEST(ReductionTest, BitsOfIntegersAreCombined) {
  if constexpr (std::is_integral_v<TypeParam>) {
    for (const absl::string_view set : InstructionSets()) {
      for (const ReduceOp op : kBitOps) {
        const Reduction reduction(kDataTypeOf<TypeParam>, op, set);
        const auto a = this->Values(131, 1);
        const auto b = this->Values(131, 2);
        std::vector<TypeParam> out(131);
        reduction.Combine(out.data(), a.data(), b.data(), out.size());
        for (size_t i = 0; i < out.size(); ++i) {
          const auto expected = op == ReduceOp::kBand  ? a[i] & b[i]
                                : op == ReduceOp::kBor ? a[i] | b[i]
                                                       : a[i] ^ b[i];
          ASSERT_EQ(out[i], static_cast<TypeParam>(expected))
              << set << " " << ReduceOpName(op) << " " << i;
        }
      }
    }
  }
}

TYPED_TEST(ReductionTest, PremultipliedSumScalesWhatIsLoadedAndAdded) {
  if constexpr (std::is_floating_point_v<TypeParam>) {
    for (const absl::string_view set : InstructionSets()) {
      const Reduction reduction(kDataTypeOf<TypeParam>, ReduceOp::kPremulSum,
                                set);
      const auto a = this->Values(37, 1);
      const auto b = this->Values(37, 2);
      std::vector<TypeParam> out(37);
      reduction.Load(out.data(), a.data(), 37, 0.25);
      reduction.Add(out.data(), b.data(), 37, -3);
      for (size_t i = 0; i < out.size(); ++i) {
        EXPECT_EQ(out[i], a[i] / 4 - 3 * b[i]);
      }
    }
  }
}

TYPED_TEST(ReductionTest, ResultMayReplaceEitherOperand) {
  const auto a = this->Values(100, 1);
  const auto b = this->Values(100, 2);
  const Reduction& sum = Reduction::Of(kDataTypeOf<TypeParam>, ReduceOp::kSum);
  auto left = a;
  sum.Combine(left.data(), left.data(), b.data(), 100);
  auto right = b;
  sum.Combine(right.data(), a.data(), right.data(), 100);
  EXPECT_EQ(left, right);
  EXPECT_EQ(left[99], Expected(ReduceOp::kSum, a[99], b[99]));
}

TYPED_TEST(ReductionTest, AverageDividesAtTheEndAndTruncatesTowardZero) {
  for (const absl::string_view set : InstructionSets()) {
    const Reduction average(kDataTypeOf<TypeParam>, ReduceOp::kAvg, set);
    const bool has_sign = std::is_signed_v<TypeParam>;
    std::vector<TypeParam> values = {0, 1, 6, 7, 8, 9};
    if (has_sign) values[0] = static_cast<TypeParam>(-7);
    const std::vector<TypeParam> before = values;
    average.Finish(values.data(), values.size(), 3);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i], static_cast<TypeParam>(before[i] / TypeParam{3}));
    }
    if (has_sign && std::is_integral_v<TypeParam>) {
      EXPECT_EQ(values[0], static_cast<TypeParam>(-2));
    }
  }
  const Reduction& sum = Reduction::Of(kDataTypeOf<TypeParam>, ReduceOp::kSum);
  TypeParam value = 9;
  sum.Finish(&value, 1, 3);
  EXPECT_EQ(value, TypeParam{9});
}

TEST(ReductionAverageTest, WorldMayBeLargerThanAnElement) {
  for (const absl::string_view set : InstructionSets()) {
    const Reduction average(DataType::kInt8, ReduceOp::kAvg, set);
    std::vector<int8_t> values(33, -100);
    average.Finish(values.data(), values.size(), 256 + 3);
    EXPECT_EQ(values, std::vector<int8_t>(33, 0));
  }
}

template <typename T>
class FloatReductionTest : public ::testing::Test {};
using FloatTypes = ::testing::Types<float, double>;
TYPED_TEST_SUITE(FloatReductionTest, FloatTypes);

TYPED_TEST(FloatReductionTest, MinAndMaxKeepNanFromEitherSide) {
  constexpr TypeParam kNan = std::numeric_limits<TypeParam>::quiet_NaN();
  for (const absl::string_view set : InstructionSets()) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      // Enough for full vectors and a rest.
      std::vector<TypeParam> a(37, 1);
      std::vector<TypeParam> b(37, 2);
      a[5] = b[6] = a[36] = kNan;
      a[7] = b[7] = kNan;
      std::vector<TypeParam> out(37);
      const Reduction reduction(kDataTypeOf<TypeParam>, op, set);
      reduction.Combine(out.data(), a.data(), b.data(), out.size());
      for (const int i : {5, 6, 7, 36}) EXPECT_TRUE(std::isnan(out[i])) << i;
      EXPECT_EQ(out[4], op == ReduceOp::kMin ? 1 : 2);
    }
  }
}

TYPED_TEST(FloatReductionTest, OfTwoZerosMinAndMaxGiveTheFirst) {
  for (const absl::string_view set : InstructionSets()) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      const std::vector<TypeParam> a(33, TypeParam{-0.0});
      const std::vector<TypeParam> b(33, TypeParam{0.0});
      std::vector<TypeParam> out(33);
      const Reduction reduction(kDataTypeOf<TypeParam>, op, set);
      reduction.Combine(out.data(), a.data(), b.data(), out.size());
      for (const TypeParam value : out) EXPECT_TRUE(std::signbit(value));
    }
  }
}

TEST(ReductionOfBoolTest, IsLogicalWhateverBytesAreTrue) {
  struct Case {
    ReduceOp op;
    uint8_t expected[4];
  };
  constexpr Case kCases[] = {
      {ReduceOp::kSum, {0, 1, 1, 1}},  {ReduceOp::kMax, {0, 1, 1, 1}},
      {ReduceOp::kBor, {0, 1, 1, 1}},  {ReduceOp::kProduct, {0, 0, 0, 1}},
      {ReduceOp::kMin, {0, 0, 0, 1}},  {ReduceOp::kBand, {0, 0, 0, 1}},
      {ReduceOp::kBxor, {0, 1, 1, 0}},
  };
  const uint8_t a[] = {0, 0, 2, 4};
  const uint8_t b[] = {0, 1, 0, 1};
  for (const absl::string_view set : InstructionSets()) {
    for (const Case& c : kCases) {
      uint8_t out[4] = {};
      Reduction(DataType::kBool, c.op, set).Combine(out, a, b, 4);
      for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(out[i], c.expected[i]) << ReduceOpName(c.op) << " " << i;
      }
    }
  }
}

TEST(ReductionOfComplexTest, SumsAveragesAndScalesBothParts) {
  using Complex = std::complex<double>;
  for (const absl::string_view set : InstructionSets()) {
    const std::vector<Complex> a(5, {1, -2});
    const std::vector<Complex> b(5, {5, 10});
    std::vector<Complex> out(5);
    const Reduction average(DataType::kComplex128, ReduceOp::kAvg, set);
    average.Combine(out.data(), a.data(), b.data(), 5);
    average.Finish(out.data(), 5, 2);
    EXPECT_EQ(out, std::vector<Complex>(5, {3, 4}));
    const Reduction scaled(DataType::kComplex128, ReduceOp::kPremulSum, set);
    scaled.Load(out.data(), a.data(), 5, 2);
    scaled.Add(out.data(), b.data(), 5, -1);
    EXPECT_EQ(out, std::vector<Complex>(5, {-3, -14}));
  }
}

// The value of a 16-bit number, computed without the kernels.
double ToValue(DataType type, uint16_t bits) {
  const int fraction_bits = type == DataType::kFloat16 ? 10 : 7;
  const int exponent_max = type == DataType::kFloat16 ? 31 : 255;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const int exponent = (bits & 0x7fff) >> fraction_bits;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == exponent_max) {
    return fraction != 0 ? std::nan("") : sign * HUGE_VAL;
  }
  const int bias = exponent_max / 2;
  const int scale = (exponent == 0 ? 1 : exponent) - bias - fraction_bits;
  const int whole = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
  return sign * std::ldexp(whole, scale);
}

class NarrowFloatTest : public ::testing::TestWithParam<DataType> {
 protected:
  std::vector<uint16_t> EveryNumber() const {
    std::vector<uint16_t> all(1 << 16);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    return all;
  }
};

TEST_P(NarrowFloatTest, EveryNumberIsWidenedExactlyAndComesBack) {
  const std::vector<uint16_t> all = EveryNumber();
  for (const absl::string_view set : InstructionSets()) {
    const Reduction sum(GetParam(), ReduceOp::kSum, set);
    EXPECT_FALSE(sum.in_place());
    std::vector<float> wide(all.size());
    sum.Load(wide.data(), all.data(), all.size(), 1);
    std::vector<uint16_t> back(all.size());
    sum.Store(back.data(), wide.data(), all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      const double expected = ToValue(GetParam(), all[i]);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(wide[i])) << i;
        EXPECT_TRUE(std::isnan(ToValue(GetParam(), back[i]))) << i;
      } else {
        ASSERT_EQ(static_cast<double>(wide[i]), expected) << set << " " << i;
        ASSERT_EQ(back[i], all[i]) << set;
      }
    }
  }
}

TEST_P(NarrowFloatTest, StoringRoundsToTheNearestOfTwoToTheEvenOne) {
  // The middle between each number and the next, and a little below and above.
  for (const absl::string_view set : InstructionSets()) {
    const Reduction sum(GetParam(), ReduceOp::kSum, set);
    for (const uint16_t sign : {0, 0x8000}) {
      std::vector<float> wide;
      std::vector<uint16_t> expected;
      const int finite = GetParam() == DataType::kFloat16 ? 0x7bff : 0x7f7f;
      for (int i = 0; i < finite; ++i) {
        const auto low = static_cast<uint16_t>(i | sign);
        const auto high = static_cast<uint16_t>((i + 1) | sign);
        const auto middle = static_cast<float>(
            (ToValue(GetParam(), low) + ToValue(GetParam(), high)) / 2);
        const auto even = i % 2 == 0 ? low : high;
        wide.push_back(middle);
        expected.push_back(even);
        wide.push_back(std::nextafter(middle, 0.0f));
        expected.push_back(low);
        wide.push_back(std::nextafter(middle, sign ? -HUGE_VALF : HUGE_VALF));
        expected.push_back(high);
      }
      // Larger than the largest number.
      const auto largest = static_cast<uint16_t>(finite | sign);
      const auto infinity = static_cast<uint16_t>((finite + 1) | sign);
      const double step =
          ToValue(GetParam(), largest) -
          ToValue(GetParam(), static_cast<uint16_t>(largest - 1));
      const auto middle =
          static_cast<float>(ToValue(GetParam(), largest) + step / 2);
      wide.push_back(middle);
      expected.push_back(infinity);
      wide.push_back(std::nextafter(middle, 0.0f));
      expected.push_back(largest);
      std::vector<uint16_t> stored(wide.size());
      sum.Store(stored.data(), wide.data(), wide.size());
      for (size_t i = 0; i < stored.size(); ++i) {
        ASSERT_EQ(stored[i], expected[i]) << set << " of " << wide[i];
      }
    }
  }
}

TEST_P(NarrowFloatTest, AddsAndMultipliesInFloat32) {
  // 1 and many numbers, each too small to change it in 16 bits.
  const uint16_t one = GetParam() == DataType::kFloat16 ? 0x3c00 : 0x3f80;
  const uint16_t small = GetParam() == DataType::kFloat16 ? 0x1000 : 0x3a80;
  for (const absl::string_view set : InstructionSets()) {
    std::vector<uint16_t> elements(19, one);
    const std::vector<uint16_t> more(19, small);
    std::vector<float> wide(19);
    const Reduction sum(GetParam(), ReduceOp::kPremulSum, set);
    sum.Load(wide.data(), elements.data(), 19, 2);
    for (int i = 0; i < 1024; ++i) sum.Add(wide.data(), more.data(), 19, 0.5);
    const double expected = 2 + 512 * ToValue(GetParam(), small);
    EXPECT_EQ(static_cast<double>(wide[18]), expected);
    const Reduction product(GetParam(), ReduceOp::kProduct, set);
    product.Load(wide.data(), elements.data(), 19, 7);
    product.Add(wide.data(), more.data(), 19, 7);
    product.Add(wide.data(), more.data(), 19, 7);
    EXPECT_EQ(static_cast<double>(wide[18]),
              std::pow(ToValue(GetParam(), small), 2));
  }
}

TEST_P(NarrowFloatTest, MinAndMaxCompareTheValuesAndKeepNan) {
  const std::vector<uint16_t> a = EveryNumber();
  std::vector<uint16_t> b(a.rbegin(), a.rend());
  for (const absl::string_view set : InstructionSets()) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      const Reduction reduction(GetParam(), op, set);
      EXPECT_TRUE(reduction.in_place());
      std::vector<uint16_t> out(a.size());
      reduction.Combine(out.data(), a.data(), b.data(), out.size());
      for (size_t i = 0; i < a.size(); ++i) {
        const double x = ToValue(GetParam(), a[i]);
        const double y = ToValue(GetParam(), b[i]);
        const double actual = ToValue(GetParam(), out[i]);
        if (std::isnan(x) || std::isnan(y)) {
          ASSERT_TRUE(std::isnan(actual));
        } else {
          ASSERT_EQ(actual,
                    op == ReduceOp::kMin ? std::fmin(x, y) : std::fmax(x, y));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, NarrowFloatTest,
                         ::testing::Values(DataType::kFloat16,
                                           DataType::kBfloat16));

// Elements of `type`, none of which is special.
std::vector<std::byte> SmallNumbers(DataType type, size_t count, int seed) {
  std::vector<std::byte> bytes(count * DataTypeBytes(type));
  const auto number = [&](size_t i) { return (i * 7 + seed * 3) % 13 + 1; };
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte{0};
  const bool is_narrow =
      type == DataType::kBfloat16 || type == DataType::kFloat16;
  if (is_narrow) {
    for (size_t i = 0; i < count; ++i) {
      // 1 and more: fractions with small exponents.
      const auto bits = static_cast<uint16_t>(0x3f80 + number(i) * 5);
      std::memcpy(&bytes[i * sizeof(bits)], &bits, sizeof(bits));
    }
  } else if (type == DataType::kInt8) {
    for (size_t i = 0; i < count; ++i) bytes[i] = std::byte(number(i));
  } else {
    for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
      const auto value = static_cast<float>(number(i)) / 8;
      std::memcpy(&bytes[i * sizeof(value)], &value, sizeof(value));
    }
  }
  return bytes;
}

// More than one piece, in one order, and in place of one operand.
TEST(CombineAllTest, IsTheStepsOneAfterTheOther) {
  constexpr size_t kCount = 9001;
  constexpr int kWorldSize = 7;
  for (const auto& [type, op] :
       {std::pair{DataType::kFloat32, ReduceOp::kSum},
        std::pair{DataType::kFloat32, ReduceOp::kPremulSum},
        std::pair{DataType::kInt8, ReduceOp::kAvg},
        std::pair{DataType::kComplex64, ReduceOp::kSum},
        std::pair{DataType::kBfloat16, ReduceOp::kAvg},
        std::pair{DataType::kBfloat16, ReduceOp::kSum},
        std::pair{DataType::kFloat16, ReduceOp::kSum},
        std::pair{DataType::kBfloat16, ReduceOp::kMin},
        std::pair{DataType::kBfloat16, ReduceOp::kPremulSum},
        std::pair{DataType::kFloat16, ReduceOp::kProduct}}) {
    const Reduction& reduction = Reduction::Of(type, op);
    const size_t bytes = kCount * DataTypeBytes(type);
    for (size_t operands = 1; operands <= 4; ++operands) {
      std::vector<std::vector<std::byte>> memory;
      std::vector<const void*> places;
      std::vector<double> factors;
      for (size_t i = 0; i < operands; ++i) {
        memory.push_back(SmallNumbers(type, kCount, static_cast<int>(i)));
        places.push_back(memory.back().data());
        factors.push_back(0.5 + static_cast<double>(i));
      }
      std::vector<std::byte> all(kCount * reduction.accumulator_bytes());
      reduction.Load(all.data(), places[0], kCount, factors[0]);
      for (size_t i = 1; i < operands; ++i) {
        reduction.Add(all.data(), places[i], kCount, factors[i]);
      }
      std::vector<std::byte> accumulators(all.size());
      reduction.Accumulate(accumulators.data(), places, factors, kCount);
      EXPECT_TRUE(accumulators == all) << DataTypeName(type);
      reduction.Finish(all.data(), kCount, kWorldSize);
      std::vector<std::byte> expected(bytes);
      reduction.Store(expected.data(), all.data(), kCount);
      for (size_t i = 0; i < operands; ++i) {
        const std::vector<std::byte> before = memory[i];
        reduction.CombineAll(memory[i].data(), places, factors, kCount,
                             kWorldSize);
        EXPECT_TRUE(memory[i] == expected)
            << DataTypeName(type) << " " << ReduceOpName(op) << " " << operands
            << " into " << i;
        memory[i] = before;
      }
    }
  }
}

// Includes infinities, NaNs and results that are too large or too small; the
// count is not a multiple of any register's.
TEST(CombineAllTest, TwoNarrowOnesGiveTheBitsOfTheSteps) {
  constexpr size_t kCount = (1 << 16) - 1;
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
    for (const absl::string_view set : InstructionSets()) {
      const Reduction reduction(type, ReduceOp::kSum, set);
      std::vector<uint16_t> a(kCount);
      std::vector<uint16_t> b(kCount);
      for (size_t i = 0; i < kCount; ++i) {
        a[i] = static_cast<uint16_t>(i);
        b[i] = static_cast<uint16_t>(i * 40503 >> 3);
      }
      std::vector<float> sums(kCount);
      reduction.Load(sums.data(), a.data(), kCount, 1);
      reduction.Add(sums.data(), b.data(), kCount, 1);
      std::vector<uint16_t> expected(kCount);
      reduction.Store(expected.data(), sums.data(), kCount);
      const void* const operands[] = {a.data(), b.data()};
      const double factors[] = {1, 1};
      const std::vector<uint16_t> before = a;
      reduction.CombineAll(a.data(), operands, factors, kCount, 2);
      const uint16_t infinity = type == DataType::kFloat16 ? 0x7c00 : 0x7f80;
      const auto is_nan = [&](uint16_t bits) {
        return (bits & 0x7fff) > infinity;
      };
      for (size_t i = 0; i < kCount; ++i) {
        // The result of two NaNs may be either, depending on the processor.
        if (is_nan(before[i]) && is_nan(b[i])) {
          EXPECT_TRUE(is_nan(a[i])) << i;
        } else {
          EXPECT_EQ(a[i], expected[i])
              << i << " " << DataTypeName(type) << " " << set;
        }
      }
    }
  }
}

}  // namespace
}  // namespace muster::dataplane
