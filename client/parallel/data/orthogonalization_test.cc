#include "client/parallel/data/orthogonalization.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

namespace muster::internal {
namespace {

// The largest difference of the columns' products from the unit matrix.
double ComputeError(const std::vector<float>& matrix, size_t columns) {
  double largest = 0;
  for (size_t a = 0; a < columns; ++a) {
    for (size_t b = 0; b < columns; ++b) {
      double sum = 0;
      for (size_t at = 0; at < matrix.size(); at += columns) {
        sum += static_cast<double>(matrix[at + a]) * matrix[at + b];
      }
      largest = std::max(largest, std::abs(sum - (a == b ? 1 : 0)));
    }
  }
  return largest;
}

void OrthogonalizeColumns(std::vector<float>& matrix, size_t columns) {
  Orthogonalize(matrix.data(), static_cast<int64_t>(matrix.size() / columns),
                static_cast<int64_t>(columns));
}

TEST(OrthogonalizationTest, KeepsTheSpaceOfTheFirstColumns) {
  std::vector<float> matrix = {3, 1,  //
                               4, 1,  //
                               0, 1};
  OrthogonalizeColumns(matrix, 2);
  EXPECT_FLOAT_EQ(matrix[0], 0.6f);
  EXPECT_FLOAT_EQ(matrix[2], 0.8f);
  EXPECT_FLOAT_EQ(matrix[4], 0);
  EXPECT_LT(ComputeError(matrix, 2), 1e-6);
}

TEST(OrthogonalizationTest, RandomAndNearlyDependentColumnsBecomeOrthonormal) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 100; ++round) {
    const size_t columns = 1 + random() % 5;
    const size_t rows = columns + random() % 40;
    std::vector<float> matrix(rows * columns);
    for (size_t row = 0; row < rows; ++row) {
      const float common = normal(random);
      for (size_t k = 0; k < columns; ++k) {
        matrix[row * columns + k] = common + 1e-4f * normal(random);
      }
    }
    OrthogonalizeColumns(matrix, columns);
    EXPECT_LT(ComputeError(matrix, columns), 1e-5);
  }
}

TEST(OrthogonalizationTest, DependentColumnsAreReplaced) {
  std::vector<float> zeros(12, 0);
  OrthogonalizeColumns(zeros, 3);
  EXPECT_LT(ComputeError(zeros, 3), 1e-6);
  std::vector<float> equal(9, 1);
  OrthogonalizeColumns(equal, 3);
  EXPECT_LT(ComputeError(equal, 3), 1e-6);
}

TEST(OrthogonalizationTest, NumbersThatAreNotFiniteShowInTheResult) {
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> matrix = {1, 2, 3, bad};
    OrthogonalizeColumns(matrix, 1);
    EXPECT_TRUE(std::isnan(matrix[3]));
  }
}

}  // namespace
}  // namespace muster::internal
