#include "dataplane/reduction.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};

template <typename T>
T Expected(ReduceOp op, T a, T b) {
  using Wide = std::conditional_t<std::is_integral_v<T>, __int128, long double>;
  const Wide wide_a = a;
  const Wide wide_b = b;
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
  // Values of both signs, at an address that no vector load is aligned to.
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

using Types = ::testing::Types<int32_t, int64_t, float, double>;
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

TYPED_TEST(ReductionTest, ResultMayReplaceEitherOperand) {
  const auto a = this->Values(100, 1);
  const auto b = this->Values(100, 2);
  const Reduction sum(kDataTypeOf<TypeParam>, ReduceOp::kSum);
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
    std::vector<TypeParam> values = {-7, -6, -1, 0, 1, 6, 7, 8, 9};
    const std::vector<TypeParam> before = values;
    average.Finish(values.data(), values.size(), 3);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i], static_cast<TypeParam>(before[i] / TypeParam{3}));
    }
    if (std::is_integral_v<TypeParam>) {
      EXPECT_EQ(values[0], TypeParam{-2});
    }
  }
  const Reduction sum(kDataTypeOf<TypeParam>, ReduceOp::kSum);
  TypeParam value = 9;
  sum.Finish(&value, 1, 3);
  EXPECT_EQ(value, TypeParam{9});
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

TEST(ReductionSupportTest, OtherTypesAreNamedInTheError) {
  EXPECT_TRUE(Reduction::Supports(DataType::kInt64, ReduceOp::kAvg).ok());
  const absl::Status status =
      Reduction::Supports(DataType::kBfloat16, ReduceOp::kSum);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(std::string(status.message()),
            "reduction of bfloat16 is not available on the CPU; int32, int64, "
            "float32 and float64 are");
}

}  // namespace
}  // namespace muster::dataplane
