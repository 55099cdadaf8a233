#include "worker/bench/operation.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "worker/bench/pattern.h"

namespace muster::worker::bench {
namespace {

TEST(PatternTest, CountsEveryElementThatIsWrong) {
  const Pattern pattern = Pattern::Input(DataType::kFloat32, ReduceOp::kSum, 1);
  std::vector<float> values(3000);
  auto* const bytes = reinterpret_cast<std::byte*>(values.data());
  pattern.Fill(bytes, values.size(), 17);
  EXPECT_EQ(pattern.CountWrong(bytes, values.size(), 17), 0);
  values[0] += 1;
  values[2999] += 1;
  EXPECT_EQ(pattern.CountWrong(bytes, values.size(), 17), 2);
}

TEST(PatternTest, FloatingPointMayBeAFewUnitsBeside) {
  const Pattern pattern = Pattern::Input(DataType::kFloat32, ReduceOp::kSum, 1);
  std::vector<float> values(8);
  auto* const bytes = reinterpret_cast<std::byte*>(values.data());
  pattern.Fill(bytes, values.size());
  values[0] = std::nextafter(values[0], 100.0F);
  values[1] = std::nextafter(std::nextafter(values[1], 0.0F), 0.0F);
  values[2] *= 1.001F;
  values[3] = NAN;
  EXPECT_EQ(pattern.CountWrong(bytes, values.size()), 4);
  EXPECT_EQ(pattern.CountWrong(bytes, values.size(), 0, 2), 2);

  const Pattern half = Pattern::Input(DataType::kFloat16, ReduceOp::kSum, 1);
  std::vector<uint16_t> halves(8);
  auto* const half_bytes = reinterpret_cast<std::byte*>(halves.data());
  half.Fill(half_bytes, halves.size());
  halves[0] += 1;
  halves[1] += 9;
  EXPECT_EQ(half.CountWrong(half_bytes, halves.size(), 0, 2), 1);

  const Pattern eighth =
      Pattern::Input(DataType::kFloat8E5m2, ReduceOp::kSum, 1);
  std::vector<uint8_t> eighths(8);
  auto* const eighth_bytes = reinterpret_cast<std::byte*>(eighths.data());
  eighth.Fill(eighth_bytes, eighths.size());
  EXPECT_EQ(FromFloat8(DataType::kFloat8E5m2, eighths[0]), 4);
  eighths[0] += 1;
  eighths[1] += 9;
  EXPECT_EQ(eighth.CountWrong(eighth_bytes, eighths.size(), 0, 2), 1);

  const Pattern whole = Pattern::Input(DataType::kInt32, ReduceOp::kSum, 1);
  std::vector<int32_t> numbers(8);
  auto* const number_bytes = reinterpret_cast<std::byte*>(numbers.data());
  whole.Fill(number_bytes, numbers.size());
  numbers[0] += 1;
  EXPECT_EQ(whole.CountWrong(number_bytes, numbers.size(), 0, 2), 1);
}

TEST(PatternTest, RanksAndPlacesDiffer) {
  std::vector<int32_t> values(1009);
  auto* const bytes = reinterpret_cast<std::byte*>(values.data());
  Pattern::Input(DataType::kInt32, ReduceOp::kSum, 0).Fill(bytes, 1009);
  EXPECT_EQ(Pattern::Input(DataType::kInt32, ReduceOp::kSum, 1)
                .CountWrong(bytes, 1009),
            1009);
  EXPECT_GT(Pattern::Input(DataType::kInt32, ReduceOp::kSum, 0)
                .CountWrong(bytes, 1009, 1),
            900);
}

TEST(PatternTest, ReducesAsTheOperationSays) {
  const auto reduced = [](ReduceOp op) {
    int64_t value = 0;
    Pattern::Reduced(DataType::kInt64, op, 2)
        .Fill(reinterpret_cast<std::byte*>(&value), 1);
    return value;
  };
  // The inputs of ranks 0 and 1 are 1 and 4; for products 1 and 1.
  EXPECT_EQ(reduced(ReduceOp::kSum), 5);
  EXPECT_EQ(reduced(ReduceOp::kAvg), 2);
  EXPECT_EQ(reduced(ReduceOp::kMin), 1);
  EXPECT_EQ(reduced(ReduceOp::kMax), 4);
  EXPECT_EQ(reduced(ReduceOp::kBor), 5);
  EXPECT_EQ(reduced(ReduceOp::kBand), 0);
  EXPECT_EQ(reduced(ReduceOp::kUser), 5);
}

TEST(PatternTest, PairsHaveTheRankAsIndex) {
  using Pair = ValueIndex<float, int32_t>;
  const auto reduced = [](ReduceOp op) {
    Pair pair = {};
    Pattern::Reduced(DataType::kFloat32Int32, op, 2)
        .Fill(reinterpret_cast<std::byte*>(&pair), 1);
    return pair;
  };
  EXPECT_EQ(reduced(ReduceOp::kMinloc), (Pair{1, 0}));
  EXPECT_EQ(reduced(ReduceOp::kMaxloc), (Pair{4, 1}));
}

TEST(PatternTest, TheFunctionOfEveryTypeSums) {
  for (const DataType type : AllDataTypes()) {
    alignas(16) std::byte a[16] = {};
    alignas(16) std::byte b[16] = {};
    Pattern::Input(type, ReduceOp::kUser, 0).Fill(a, 1);
    const Pattern second = Pattern::Input(type, ReduceOp::kUser, 1);
    second.Fill(b, 1);
    MakeSumFunction(type)(a, b, 1);
    EXPECT_EQ(Pattern::Reduced(type, ReduceOp::kUser, 2).CountWrong(b, 1), 0)
        << static_cast<int>(type);
  }
}

Case MakeCase(const char* name, size_t count) {
  return {.operation = FindOperation(name), .count = count};
}

TEST(CaseTest, SizesAreThoseOfNcclTests) {
  // The size of such an operation counts the parts of all ranks.
  EXPECT_EQ(CountFor(MakeCase("all_gather", 0), 1024, 4), 64u);
  EXPECT_EQ(MakeCase("all_gather", 64).Bytes(4), 1024u);
  EXPECT_EQ(CountFor(MakeCase("all_reduce", 0), 1024, 4), 256u);
  EXPECT_EQ(MakeCase("all_reduce", 256).Bytes(4), 1024u);
  EXPECT_EQ(CountFor(MakeCase("barrier", 0), 1024, 4), 0u);
}

TEST(CaseTest, EveryRankHasAnElementAtLeast) {
  EXPECT_EQ(CountFor(MakeCase("reduce_scatter", 0), 4, 8), 1u);
}

TEST(CaseTest, BusFactorsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(BusFactor(*FindOperation("all_reduce"), 4), 1.5);
  EXPECT_DOUBLE_EQ(BusFactor(*FindOperation("all_gather"), 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(*FindOperation("all_to_all_single"), 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(*FindOperation("broadcast"), 4), 1);
  EXPECT_DOUBLE_EQ(BusFactor(*FindOperation("reduce"), 4), 1);
  EXPECT_DOUBLE_EQ(BusFactor(*FindOperation("sendrecv"), 4), 1);
}

}  // namespace
}  // namespace muster::worker::bench
