// The rules of operations. Each test computes the operation from the parts of
// all ranks, without a group, and compares it with the whole.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"
#include "muster/placement.h"

namespace muster {
namespace {

using Shape = std::vector<int64_t>;
using Placements = std::vector<Placement>;

TensorLayout Layout(const Shape& shape, const Placements& placements) {
  return {.shape = shape, .placements = placements};
}

std::string ToText(const Propagation& result) {
  std::string text;
  for (const Placements& input : result.inputs) {
    text += muster::ToText(input) + " ";
  }
  return text + "-> " + result.output.ToText() + ", " +
         std::to_string(result.bytes) + " bytes, " +
         std::to_string(result.steps) + " steps";
}

const Placements kR = {Replicate()};
const Placements kS0 = {Shard(0)};
const Placements kS1 = {Shard(1)};
const Placements kSum = {Partial()};

TEST(PropagationTest, AColumnWiseAndARowWiseMatrixNeedOneReduction) {
  const Propagation columns =
      PropagateMatmul(Layout({6, 4}, kR), Layout({4, 8}, kS1), {2});
  EXPECT_EQ(ToText(columns),
            "(R) (S(1)) -> float32[6,8] (S(1)), 0 bytes, 0 steps");
  const Propagation between = PropagatePointwise({columns.output}, {2});
  EXPECT_EQ(ToText(between), "(S(1)) -> float32[6,8] (S(1)), 0 bytes, 0 steps");
  const Propagation rows =
      PropagateMatmul(between.output, Layout({8, 4}, kS0), {2});
  EXPECT_EQ(ToText(rows),
            "(S(1)) (S(0)) -> float32[6,4] (P(sum)), 0 bytes, 0 steps");
  // The bias is added once: rank 0 keeps it, the others add nothing.
  const Propagation bias =
      PropagatePointwise({rows.output, Layout({4}, kR)}, {2}, true);
  EXPECT_EQ(ToText(bias),
            "(P(sum)) (P(sum)) -> float32[6,4] (P(sum)), 0 bytes, 1 steps");
  // A function that is not linear needs the sum: half of 96 bytes.
  const Propagation relu = PropagatePointwise({bias.output}, {2});
  EXPECT_EQ(ToText(relu), "(S(0)) -> float32[6,4] (S(0)), 48 bytes, 1 steps");
}

TEST(PropagationTest, ASequenceThatIsCutIsGatheredForColumns) {
  // Gathering 8 x 4 floats moves less than gathering the weight's 4 x 64.
  EXPECT_EQ(
      ToText(PropagateMatmul(Layout({8, 4}, kS0), Layout({4, 64}, kS1), {2})),
      "(R) (S(1)) -> float32[8,64] (S(1)), 64 bytes, 1 steps");
  EXPECT_EQ(ToText(PropagateMatmul(Layout({2, 8, 4}, {Shard(1)}),
                                   Layout({4, 6}, kR), {2})),
            "(S(1)) (R) -> float32[2,8,6] (S(1)), 0 bytes, 0 steps");
}

TEST(PropagationTest, EachMeshDimensionHasARuleOfItsOwn) {
  const Shape mesh = {2, 2};
  EXPECT_EQ(
      ToText(PropagateMatmul(Layout({8, 4}, {Shard(0), Replicate()}),
                             Layout({4, 6}, {Replicate(), Shard(1)}), mesh)),
      "(S(0), R) (R, S(1)) -> float32[8,6] (S(0), S(1)), 0 bytes, 0 steps");
  EXPECT_EQ(ToText(PropagateSum(Layout({8, 4}, {Shard(0), Shard(1)}), 0, mesh)),
            "(S(0), S(1)) -> float32[4] (P(sum), S(0)), 0 bytes, 0 steps");
  EXPECT_EQ(ToText(PropagateTranspose(Layout({8, 4, 2}, {Shard(0), Shard(2)}),
                                      0, 2, mesh)),
            "(S(0), S(2)) -> float32[2,4,8] (S(2), S(0)), 0 bytes, 0 steps");
  // Sums and averages cannot both be left to do.
  const Propagation sum = PropagateSum(
      Layout({8, 4}, {Shard(0), Partial(ReduceOp::kAvg)}), 0, mesh);
  EXPECT_EQ(ToText(sum),
            "(S(0), S(0)) -> float32[4] (P(sum), P(sum)), 32 bytes, 1 steps");
}

TEST(PropagationTest, BroadcastInputsAreCutWhereTheyHaveTheDimension) {
  EXPECT_EQ(
      ToText(PropagatePointwise({Layout({6, 8}, kS1), Layout({8}, kS0)}, {2})),
      "(S(1)) (S(0)) -> float32[6,8] (S(1)), 0 bytes, 0 steps");
  EXPECT_EQ(ToText(PropagatePointwise({Layout({6, 8}, kS1), Layout({6, 1}, kR)},
                                      {2})),
            "(S(1)) (R) -> float32[6,8] (S(1)), 0 bytes, 0 steps");
  EXPECT_EQ(
      ToText(PropagatePointwise({Layout({6, 8}, kS0), Layout({8}, kR)}, {2})),
      "(S(0)) (R) -> float32[6,8] (S(0)), 0 bytes, 0 steps");
  // A maximum that is to be made is not linear.
  EXPECT_EQ(ToText(PropagatePointwise({Layout({6}, {Partial(ReduceOp::kMax)})},
                                      {2}, true)),
            "(S(0)) -> float32[6] (S(0)), 12 bytes, 1 steps");
}

TEST(PropagationTest, ShapesThatDoNotFitAreErrors) {
  const auto message = [](const std::function<void()>& function) {
    try {
      function();
    } catch (const DistError& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kInvalidArgument);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message([] {
              PropagateMatmul(Layout({6, 4}, kR), Layout({5, 8}, kR), {2});
            }),
            "arguments a and b: no product of [6,4] and [5,8]");
  EXPECT_EQ(message([] {
              PropagatePointwise({Layout({6, 4}, kR), Layout({3}, kR)}, {2});
            }),
            "argument inputs: shape [3] cannot be broadcast to [6,4]");
  EXPECT_EQ(message([] { PropagatePointwise({}, {2}); }),
            "argument inputs: no tensors");
  EXPECT_EQ(message([] {
              PropagateSum(Layout({6, 4}, kR), 2, {2});
            }),
            "argument dim: 2 of a tensor with 2 dimensions");
  EXPECT_EQ(message([] {
              PropagateTranspose(Layout({6, 4}, kR), 0, -1, {2});
            }),
            "argument dim1: -1 of a tensor with 2 dimensions");
}

// A matrix, or the part of one that a rank has.
struct Matrix {
  int64_t rows;
  int64_t columns;
  std::vector<double> values;

  double& at(int64_t i, int64_t j) {
    return values[static_cast<size_t>(i * columns + j)];
  }
  double at(int64_t i, int64_t j) const {
    return values[static_cast<size_t>(i * columns + j)];
  }
};

Matrix Zeros(int64_t rows, int64_t columns) {
  return {rows, columns,
          std::vector<double>(static_cast<size_t>(rows * columns))};
}

Matrix Multiply(const Matrix& a, const Matrix& b) {
  Matrix product = Zeros(a.rows, b.columns);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < b.columns; ++j) {
      for (int64_t k = 0; k < a.columns; ++k) {
        product.at(i, j) += a.at(i, k) * b.at(k, j);
      }
    }
  }
  return product;
}

// The part of `whole` at `coordinate`. Sums: the first rank has everything.
Matrix Cut(const Matrix& whole, const Placements& placements, const Shape& mesh,
           const Shape& coordinate) {
  const ShardBox box = ComputeShardBox({whole.rows, whole.columns}, placements,
                                       mesh, coordinate);
  Matrix part = Zeros(box.lengths[0], box.lengths[1]);
  for (size_t i = 0; i < mesh.size(); ++i) {
    if (placements[i].is_partial() && coordinate[i] > 0) return part;
  }
  for (int64_t i = 0; i < part.rows; ++i) {
    for (int64_t j = 0; j < part.columns; ++j) {
      part.at(i, j) = whole.at(box.offsets[0] + i, box.offsets[1] + j);
    }
  }
  return part;
}

// Adds what `part` contributes to the whole: all copies of an element but one
// are left out.
void AddPart(Matrix& whole, const Matrix& part, const Placements& placements,
             const Shape& mesh, const Shape& coordinate) {
  for (size_t i = 0; i < mesh.size(); ++i) {
    if (placements[i].is_replicate() && coordinate[i] > 0) return;
  }
  const ShardBox box = ComputeShardBox({whole.rows, whole.columns}, placements,
                                       mesh, coordinate);
  ASSERT_EQ(Shape({part.rows, part.columns}), box.lengths);
  for (int64_t i = 0; i < part.rows; ++i) {
    for (int64_t j = 0; j < part.columns; ++j) {
      whole.at(box.offsets[0] + i, box.offsets[1] + j) += part.at(i, j);
    }
  }
}

TEST(PropagationTest, PartsOfMatrixProductsMakeTheWhole) {
  std::mt19937 random(3);
  const Placements all = {Replicate(), Shard(0), Shard(1), Partial()};
  const Shape mesh = {2, 2};
  for (int trial = 0; trial < 200; ++trial) {
    const auto draw = [&] { return all[random() % all.size()]; };
    const auto size = [&] { return static_cast<int64_t>(1 + random() % 6); };
    Matrix a = Zeros(size(), size());
    Matrix b = Zeros(a.columns, size());
    for (double& value : a.values) value = static_cast<double>(random() % 9);
    for (double& value : b.values) value = static_cast<double>(random() % 9);
    const Propagation rule =
        PropagateMatmul(Layout({a.rows, a.columns}, {draw(), draw()}),
                        Layout({b.rows, b.columns}, {draw(), draw()}), mesh);
    Matrix sum = Zeros(a.rows, b.columns);
    for (int64_t i = 0; i < 4; ++i) {
      const Shape coordinate = {i / 2, i % 2};
      AddPart(sum,
              Multiply(Cut(a, rule.inputs[0], mesh, coordinate),
                       Cut(b, rule.inputs[1], mesh, coordinate)),
              rule.output.placements, mesh, coordinate);
    }
    EXPECT_EQ(sum.values, Multiply(a, b).values) << ToText(rule);
  }
}

TEST(PropagationTest, PartsOfSumsMakeTheWhole) {
  const Shape mesh = {3};
  Matrix a = Zeros(5, 4);
  for (size_t i = 0; i < a.values.size(); ++i) {
    a.values[i] = static_cast<double>(i * i % 11);
  }
  for (const Placement& placement :
       {Replicate(), Shard(0), Shard(1), Partial()}) {
    for (int dim = 0; dim < 2; ++dim) {
      const Propagation rule =
          PropagateSum(Layout({5, 4}, {placement}), dim, mesh);
      EXPECT_EQ(rule.steps, 0);
      const int64_t size = dim == 0 ? 4 : 5;
      std::vector<double> sum(static_cast<size_t>(size));
      std::vector<double> expected = sum;
      for (int64_t rank = 0; rank < 3; ++rank) {
        const Placement& out = rule.output.placements[0];
        if (out.is_replicate() && rank > 0) continue;
        const Matrix part = Cut(a, {placement}, mesh, {rank});
        const ShardBox box =
            ComputeShardBox({size}, rule.output.placements, mesh, {rank});
        ASSERT_EQ(box.lengths[0], dim == 0 ? part.columns : part.rows);
        for (int64_t i = 0; i < part.rows; ++i) {
          for (int64_t j = 0; j < part.columns; ++j) {
            sum[static_cast<size_t>(box.offsets[0] + (dim == 0 ? j : i))] +=
                part.at(i, j);
          }
        }
      }
      for (int64_t i = 0; i < 5; ++i) {
        for (int64_t j = 0; j < 4; ++j) {
          expected[static_cast<size_t>(dim == 0 ? j : i)] += a.at(i, j);
        }
      }
      EXPECT_EQ(sum, expected) << ToText(rule);
    }
  }
}

}  // namespace
}  // namespace muster
