#include "client/parallel/elements/neutral_element.h"

#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::internal {
namespace {

using dataplane::DataType;
using dataplane::ReduceOp;
using dataplane::Tensor;
using ::testing::Each;

// The bits of the neutral elements of a 16-bit type; 0 if there is none.
uint16_t FillBits(DataType type, ReduceOp op) {
  std::vector<uint16_t> bits(3);
  const bool has = FillNeutral(Tensor(bits.data(), type, {3}), op);
  EXPECT_EQ(has, bits[0] != 0);
  EXPECT_THAT(bits, Each(bits[0]));
  return bits[0];
}

TEST(NeutralElementTest, NarrowFloatsHaveZeroOneAndInfinities) {
  EXPECT_EQ(FillBits(DataType::kFloat16, ReduceOp::kSum), 0x8000);
  EXPECT_EQ(FillBits(DataType::kFloat16, ReduceOp::kAvg), 0x8000);
  EXPECT_EQ(FillBits(DataType::kFloat16, ReduceOp::kProduct), 0x3c00);
  EXPECT_EQ(FillBits(DataType::kFloat16, ReduceOp::kMin), 0x7c00);
  EXPECT_EQ(FillBits(DataType::kFloat16, ReduceOp::kMax), 0xfc00);
  EXPECT_EQ(FillBits(DataType::kBfloat16, ReduceOp::kProduct), 0x3f80);
  EXPECT_EQ(FillBits(DataType::kBfloat16, ReduceOp::kMin), 0x7f80);
  EXPECT_EQ(FillBits(DataType::kBfloat16, ReduceOp::kMax), 0xff80);
  EXPECT_EQ(FillBits(DataType::kBfloat16, ReduceOp::kBand), 0);
}

TEST(NeutralElementTest, ASumKeepsTheSignOfZero) {
  std::vector<double> zeros(4);
  ASSERT_TRUE(FillNeutral(zeros, ReduceOp::kSum));
  for (const double zero : zeros) {
    EXPECT_TRUE(std::signbit(-0.0 + zero));
    EXPECT_FALSE(std::signbit(0.0 + zero));
  }
  std::complex<float> pair = {1, 2};
  ASSERT_TRUE(
      FillNeutral(Tensor(&pair, DataType::kComplex64, {1}), ReduceOp::kSum));
  EXPECT_TRUE(std::signbit(pair.real()) && std::signbit(pair.imag()));
  EXPECT_EQ(pair, std::complex<float>(0));
}

TEST(NeutralElementTest, WithoutANeutralElementNothingIsWritten) {
  std::vector<float> numbers = {3, 3};
  for (const ReduceOp op : {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kMinloc,
                            ReduceOp::kUser, ReduceOp::kPremulSum}) {
    EXPECT_FALSE(FillNeutral(numbers, op));
  }
  EXPECT_THAT(numbers, Each(3));
  std::complex<double> pair = {1, 2};
  EXPECT_FALSE(
      FillNeutral(Tensor(&pair, DataType::kComplex128, {1}), ReduceOp::kMin));
  char byte = 'x';
  EXPECT_FALSE(
      FillNeutral(Tensor(&byte, DataType::kOpaque, {1}), ReduceOp::kSum));
}

}  // namespace
}  // namespace muster::internal
