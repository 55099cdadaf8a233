#include "client/parallel/data/orthogonalization.h"

#include <cmath>
#include <cstddef>
#include <vector>

namespace muster::internal {
namespace {

// A smaller part of a column is nothing but rounding errors of float32.
constexpr double kDependent = 1e-6;

using Column = std::vector<double>;

double Dot(const Column& a, const Column& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Subtracts the projections on `others`, twice. Returns the norm of the rest.
double SubtractProjections(const std::vector<Column>& others, Column& column) {
  for (int pass = 0; pass < 2; ++pass) {
    for (const Column& other : others) {
      const double part = Dot(other, column);
      for (size_t i = 0; i < column.size(); ++i) column[i] -= part * other[i];
    }
  }
  return std::sqrt(Dot(column, column));
}

}  // namespace

void Orthogonalize(float* matrix, int64_t rows, int64_t columns) {
  const auto height = static_cast<size_t>(rows);
  const auto width = static_cast<size_t>(columns);
  std::vector<Column> done;
  for (size_t k = 0; k < width; ++k) {
    Column column(height);
    for (size_t i = 0; i < height; ++i) column[i] = matrix[i * width + k];
    const double before = std::sqrt(Dot(column, column));
    double norm = SubtractProjections(done, column);
    // Some unit vector has a rest of at least this norm, since fewer columns
    // than rows are done.
    const double enough = 0.9 / std::sqrt(static_cast<double>(height));
    const bool is_dependent =
        std::isfinite(before) && norm <= kDependent * before;
    for (size_t unit = 0; is_dependent && unit < height; ++unit) {
      column.assign(height, 0);
      column[unit] = 1;
      norm = SubtractProjections(done, column);
      if (norm >= enough) break;
    }
    for (double& each : column) each /= norm;
    done.push_back(std::move(column));
  }
  for (size_t k = 0; k < width; ++k) {
    for (size_t i = 0; i < height; ++i) {
      matrix[i * width + k] = static_cast<float>(done[k][i]);
    }
  }
}

}  // namespace muster::internal
