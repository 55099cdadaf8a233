// Matrices of Eigen, and tensors as matrices.

#ifndef MUSTER_CLIENT_EXAMPLES_TRANSFORMER_MATRIX_H_
#define MUSTER_CLIENT_EXAMPLES_TRANSFORMER_MATRIX_H_

#include <Eigen/Core>

#include "muster/process_group.h"

namespace muster::examples {

template <typename T>
using Matrix =
    Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// The memory of a tensor [..., n] as a matrix of n columns.
template <typename T>
Eigen::Map<Matrix<T>> ToMatrix(const Tensor& tensor) {
  const int64_t columns = tensor.shape().back();
  return {static_cast<T*>(tensor.data()), tensor.element_count() / columns,
          columns};
}

// The memory of a matrix.
template <typename T>
Tensor ToTensor(Matrix<T>& matrix) {
  return {matrix.data(), {matrix.rows(), matrix.cols()}};
}

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_TRANSFORMER_MATRIX_H_
