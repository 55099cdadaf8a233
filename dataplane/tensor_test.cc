#include "muster/dataplane/tensor.h"

#include <complex>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

std::string FindProblem(const Tensor& tensor) {
  const Status status = tensor.Validate();
  if (!status.ok()) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  }
  return std::string(status.message());
}

TEST(DataTypeTest, EveryTypeHasNameAndSize) {
  struct Expected {
    DataType type;
    std::string name;
    size_t bytes;
  };
  const std::vector<Expected> all = {
      {DataType::kUint8, "uint8", 1},
      {DataType::kInt8, "int8", 1},
      {DataType::kInt16, "int16", 2},
      {DataType::kInt32, "int32", 4},
      {DataType::kInt64, "int64", 8},
      {DataType::kFloat16, "float16", 2},
      {DataType::kBfloat16, "bfloat16", 2},
      {DataType::kFloat32, "float32", 4},
      {DataType::kFloat64, "float64", 8},
      {DataType::kBool, "bool", 1},
      {DataType::kComplex64, "complex64", 8},
      {DataType::kComplex128, "complex128", 16},
      {DataType::kFloat8E4m3fn, "float8_e4m3fn", 1},
      {DataType::kFloat8E5m2, "float8_e5m2", 1},
      {DataType::kUint16, "uint16", 2},
      {DataType::kUint32, "uint32", 4},
      {DataType::kUint64, "uint64", 8},
      {DataType::kOpaque, "opaque", 1},
      {DataType::kFloat32Int32, "float32_int32", 8},
      {DataType::kFloat64Int64, "float64_int64", 16},
      {DataType::kInt32Int32, "int32_int32", 8},
      {DataType::kInt64Int64, "int64_int64", 16}};
  EXPECT_EQ(all.size(), static_cast<size_t>(kDataTypeCount));
  for (const Expected& expected : all) {
    EXPECT_EQ(std::string(DataTypeName(expected.type)), expected.name);
    EXPECT_EQ(DataTypeBytes(expected.type), expected.bytes);
  }
}

TEST(TensorTest, ViewsVectorsSpansAndPointersWithoutCopying) {
  std::vector<double> values(6);
  const Tensor of_vector = values;
  EXPECT_EQ(of_vector.data(), values.data());
  EXPECT_EQ(of_vector.Describe(), "float64[6]");
  EXPECT_EQ(of_vector.bytes(), 48u);

  const Tensor of_span = std::span<double>(values).subspan(1, 2);
  EXPECT_EQ(of_span.data(), values.data() + 1);
  EXPECT_EQ(of_span.element_count(), 2);

  const Tensor shaped(values.data(), {2, 3});
  EXPECT_EQ(shaped.Describe(), "float64[2,3]");
  EXPECT_EQ(shaped.element_count(), 6);

  std::complex<float> number;
  EXPECT_EQ(Tensor(&number, {}).Describe(), "complex64[]");
  EXPECT_EQ(Tensor(&number, {}).element_count(), 1);
}

TEST(TensorTest, DefaultAndZeroSizedAreEmptyAndValid) {
  EXPECT_EQ(Tensor().Describe(), "float32[0]");
  EXPECT_EQ(FindProblem(Tensor()), "");
  EXPECT_EQ(FindProblem(Tensor(nullptr, DataType::kInt64, {3, 0, 5})), "");
  std::vector<float> none;
  EXPECT_EQ(FindProblem(Tensor(none)), "");
}

TEST(TensorTest, DeviceIsPartOfTheDescription) {
  const Tensor tensor(reinterpret_cast<void*>(0x1000), DataType::kBfloat16, {8},
                      {DeviceType::kCuda, 1});
  EXPECT_EQ(tensor.Describe(), "bfloat16[8] on cuda:1");
  EXPECT_EQ(DeviceName(Device{}), "cpu");
  EXPECT_EQ(DeviceName({static_cast<DeviceType>(9), 0}), "device type 9");
}

TEST(TensorTest, ValidateSaysWhatIsWrong) {
  int32_t values[4] = {};
  EXPECT_EQ(FindProblem(Tensor(values, {2, -1})),
            "negative dimension in int32[2,-1]");
  EXPECT_EQ(Tensor(values, {2, -1}).element_count(), 0);
  EXPECT_EQ(FindProblem(Tensor(values, static_cast<DataType>(99), {1})),
            "a tensor's data type is 99, which is no DataType");
  EXPECT_EQ(FindProblem(Tensor(nullptr, DataType::kFloat32, {4})),
            "null data pointer of float32[4]");
  EXPECT_EQ(FindProblem(Tensor(reinterpret_cast<char*>(values) + 2,
                               DataType::kInt32, {1})),
            "data pointer of int32[1] is not aligned to 4 bytes");
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(FindProblem(Tensor(values, {kMax, 2})),
            "size of int32[9223372036854775807,2] does not fit into 63 bits");
  EXPECT_EQ(FindProblem(Tensor(values, {kMax / 2})),
            "size of int32[4611686018427387903] does not fit into 63 bits");
}

TEST(TensorTest, OpaqueElementsHaveTheirOwnSizeAndAnyAddress) {
  char memory[64] = {};
  const Tensor records = Tensor::Opaque(memory + 1, 12, {2, 2});
  EXPECT_EQ(FindProblem(records), "");
  EXPECT_EQ(records.Describe(), "opaque[2,2] of 12 bytes");
  EXPECT_EQ(records.element_count(), 4);
  EXPECT_EQ(records.element_bytes(), 12u);
  EXPECT_EQ(records.bytes(), 48u);
  EXPECT_EQ(Tensor(memory, DataType::kOpaque, {3}).Describe(), "opaque[3]");
  const std::string bad =
      "the size of a tensor's opaque element must be from 1 to 4294967295 "
      "bytes";
  EXPECT_EQ(FindProblem(Tensor::Opaque(memory, 0, {1})), bad);
  EXPECT_EQ(FindProblem(Tensor::Opaque(memory, size_t{1} << 32, {1})), bad);
  EXPECT_EQ(FindProblem(Tensor::Opaque(memory, 1 << 30, {int64_t{1} << 33})),
            "size of opaque[8589934592] of 1073741824 bytes does not fit into "
            "63 bits");
}

TEST(TensorTest, PairsAreElementsAlignedAsTheirParts) {
  std::vector<ValueIndex<float, int32_t>> pairs(3);
  EXPECT_EQ(Tensor(pairs).Describe(), "float32_int32[3]");
  EXPECT_EQ(Tensor(pairs).bytes(), 24u);
  int32_t parts[3] = {};
  EXPECT_EQ(FindProblem(Tensor(parts + 1, DataType::kInt32Int32, {1})), "");
}

TEST(TensorTest, ComplexNumbersNeedTheAlignmentOfTheirParts) {
  float parts[5] = {};
  EXPECT_EQ(FindProblem(Tensor(parts + 1, DataType::kComplex64, {2})), "");
}

}  // namespace
}  // namespace muster::dataplane
