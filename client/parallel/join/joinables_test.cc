// A rank without inputs must not change what the others compute.

#include <complex>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"
#include "muster/join.h"

namespace muster {
namespace {

using muster::testing::LocalGroups;
using ::testing::Each;
using ::testing::HasSubstr;

using Group = std::shared_ptr<ProcessGroup>;

// Elements of some type as bytes.
struct Example {
  DataType type;
  std::string bytes;
};

template <typename T>
Example MakeExample(DataType type, const std::vector<T>& elements) {
  return {type, std::string(reinterpret_cast<const char*>(elements.data()),
                            elements.size() * sizeof(T))};
}

std::vector<Example> MakeIntegers() {
  return {MakeExample<uint8_t>(DataType::kUint8, {0, 3, 255}),
          MakeExample<int8_t>(DataType::kInt8, {-128, 3, 127}),
          MakeExample<int16_t>(DataType::kInt16, {-32768, 3, 32767}),
          MakeExample<uint16_t>(DataType::kUint16, {0, 3, 65535}),
          MakeExample<int32_t>(DataType::kInt32, {INT32_MIN, 3, INT32_MAX}),
          MakeExample<uint32_t>(DataType::kUint32, {0, 3, UINT32_MAX}),
          MakeExample<int64_t>(DataType::kInt64, {INT64_MIN, 3, INT64_MAX}),
          MakeExample<uint64_t>(DataType::kUint64, {0, 3, UINT64_MAX}),
          MakeExample<uint8_t>(DataType::kBool, {0, 1, 1})};
}

std::vector<Example> MakeFloats() {
  // 1.5, -2 and the largest number; the infinities.
  return {MakeExample<uint16_t>(DataType::kFloat16,
                                {0x3e00, 0xc000, 0x7bff, 0x7c00, 0xfc00}),
          MakeExample<uint16_t>(DataType::kBfloat16,
                                {0x3fc0, 0xc000, 0x7f7f, 0x7f80, 0xff80}),
          MakeExample<float>(DataType::kFloat32,
                             {1.5, -2, 3e38F, 1 / 0.0F, -1 / 0.0F}),
          MakeExample<double>(DataType::kFloat64,
                              {1.5, -2, 1e308, 1 / 0.0, -1 / 0.0})};
}

std::vector<Example> MakeComplexes() {
  return {MakeExample<std::complex<float>>(DataType::kComplex64,
                                           {{1.5, -2}, {0, 1}}),
          MakeExample<std::complex<double>>(DataType::kComplex128,
                                            {{1.5, -2}, {0, 1}})};
}

void ExpectUnchanged(const std::vector<Example>& examples,
                     const std::vector<ReduceOp>& ops) {
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    for (const Example& example : examples) {
      for (const ReduceOp op : ops) {
        const auto count = static_cast<int64_t>(
            example.bytes.size() / dataplane::DataTypeBytes(example.type));
        JoinableAllReduce all(example.type, count, {.op = op, .group = group});
        JoinableReduceScatter mine(example.type, count,
                                   {.op = op, .group = group});
        if (rank == 1) {
          all.ShadowStep();
          mine.ShadowStep();
          continue;
        }
        std::string bytes = example.bytes;
        all.Run({bytes.data(), example.type, {count}});
        EXPECT_EQ(bytes, example.bytes) << all.DescribeJoin();
        std::string input = example.bytes + example.bytes;
        bytes.assign(bytes.size(), 'x');
        mine.Run({bytes.data(), example.type, {count}},
                 {input.data(), example.type, {2 * count}});
        EXPECT_EQ(bytes, example.bytes) << mine.DescribeJoin();
      }
    }
  }),
              Each(""));
}

TEST(JoinablesTest, ARankWithoutInputsChangesNoReduction) {
  ExpectUnchanged(
      MakeIntegers(),
      {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax,
       ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor});
  ExpectUnchanged(MakeFloats(), {ReduceOp::kSum, ReduceOp::kProduct,
                                 ReduceOp::kMin, ReduceOp::kMax});
  ExpectUnchanged(MakeComplexes(), {ReduceOp::kSum});
}

TEST(JoinablesTest, TheAverageIsThatOfAllRanks) {
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    JoinableAllReduce average(DataType::kFloat32, 2,
                              {.op = ReduceOp::kAvg, .group = group});
    if (rank == 1) return average.ShadowStep();
    std::vector<float> values = {3, -8};
    average.Run(values);
    EXPECT_THAT(values, ::testing::ElementsAre(1.5, -4));
  }),
              Each(""));
}

std::string GetError(StatusCode code, const std::function<void()>& call) {
  try {
    call();
  } catch (const DistError& error) {
    EXPECT_EQ(error.status().code(), code);
    return error.what();
  }
  return "";
}

TEST(JoinablesTest, RefuseWhatHasNoNeutralElement) {
  LocalGroups world(1);
  const auto make = [&](DataType type, ReduceOp op) {
    return GetError(StatusCode::kUnimplemented, [&] {
      JoinableAllReduce(type, 1, {.op = op, .group = world.at(0)});
    });
  };
  EXPECT_EQ(make(DataType::kComplex64, ReduceOp::kMin),
            "JoinableAllReduce: there is no neutral element for min of "
            "complex64");
  for (const ReduceOp op :
       {ReduceOp::kMinloc, ReduceOp::kUser, ReduceOp::kPremulSum}) {
    EXPECT_NE(make(DataType::kFloat32, op), "");
  }
  EXPECT_NE(make(DataType::kFloat32, ReduceOp::kBand), "");
  EXPECT_NE(make(DataType::kComplex128, ReduceOp::kProduct), "");
  EXPECT_NE(make(DataType::kOpaque, ReduceOp::kSum), "");
}

TEST(JoinablesTest, RefuseOtherTensorsThanTheyWereMadeFor) {
  LocalGroups world(1);
  const Group group = world.at(0);
  const auto refuse = [](const std::function<void()>& call) {
    return GetError(StatusCode::kInvalidArgument, call);
  };
  std::vector<float> two(2);
  std::vector<double> doubles(3);
  std::vector<float> three(3);
  JoinableAllReduce sum(DataType::kFloat32, 3, {.group = group});
  EXPECT_EQ(refuse([&] { sum.Run(two); }),
            "JoinableAllReduce: argument tensor is float32[2], the "
            "JoinableAllReduce was made for 3 elements of float32");
  EXPECT_THAT(refuse([&] { sum.Run(doubles); }), HasSubstr("is float64[3]"));
  JoinableReduceScatter scatter(DataType::kFloat32, 3, {.group = group});
  EXPECT_THAT(refuse([&] { scatter.Run(two, three); }),
              HasSubstr("argument output is float32[2]"));
  EXPECT_THAT(refuse([&] { scatter.Run(three, two); }),
              HasSubstr("argument input is float32[2]"));
  JoinableAllGather gather(DataType::kFloat32, 3, group);
  EXPECT_THAT(refuse([&] { gather.Run(two, three); }),
              HasSubstr("argument output is float32[2]"));
  EXPECT_THAT(refuse([&] { gather.Run(three, two); }),
              HasSubstr("argument input is float32[2]"));
  EXPECT_EQ(refuse([&] { JoinableAllGather(DataType::kInt8, -1, group); }),
            "JoinableAllGather: argument count must not be negative but was "
            "-1");
  EXPECT_THAT(
      GetError(StatusCode::kUnimplemented,
               [&] {
                 sum.Run(Tensor(three.data(), {3}, {DeviceType::kCuda, 0}));
               }),
      HasSubstr("only tensors on the CPU are supported"));
}

}  // namespace
}  // namespace muster
