// Parameters with memory, for tests of data parallel training.

#ifndef MUSTER_CLIENT_PARALLEL_DATA_TESTING_MODEL_H_
#define MUSTER_CLIENT_PARALLEL_DATA_TESTING_MODEL_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "client/parallel/elements/float_conversion.h"
#include "muster/data_parallel.h"

namespace muster::testing {

// Writes numbers, rounded to the tensor's type, and reads them.
inline void SetNumbers(const Tensor& tensor,
                       const std::vector<double>& numbers) {
  if (tensor.data_type() == DataType::kFloat64) {
    std::copy(numbers.begin(), numbers.end(),
              static_cast<double*>(tensor.data()));
    return;
  }
  const std::vector<float> floats(numbers.begin(), numbers.end());
  internal::FromFloats(floats.data(), tensor);
}

inline std::vector<double> GetNumbers(const Tensor& tensor) {
  const auto count = static_cast<size_t>(tensor.element_count());
  if (tensor.data_type() == DataType::kFloat64) {
    const auto* const doubles = static_cast<const double*>(tensor.data());
    return {doubles, doubles + count};
  }
  std::vector<float> floats(count);
  internal::ToFloats(tensor, floats.data());
  return {floats.begin(), floats.end()};
}

// The largest error of rounding to the type, relative to the number.
inline double GetRounding(DataType type) {
  switch (type) {
    case DataType::kFloat16:
      return 0x1p-11;
    case DataType::kBfloat16:
      return 0x1p-8;
    case DataType::kFloat32:
      return 0x1p-22;
    default:
      return 0x1p-50;
  }
}

// A number between -1 and 1 that depends on all arguments.
inline double GetSample(int rank, int64_t step, size_t parameter, size_t i) {
  return std::sin(1.0 + 3.7 * rank + 0.31 * static_cast<double>(step) +
                  1.3 * static_cast<double>(parameter) +
                  0.77 * static_cast<double>(i));
}

// The parameters of one rank. Names are p0, p1, ...
class Model {
 public:
  struct Shape {
    std::vector<int64_t> sizes;
    DataType type = DataType::kFloat32;
  };

  // `in_buckets`: gradients have no memory of the program.
  explicit Model(const std::vector<Shape>& shapes, bool in_buckets = false) {
    memory_.reserve(2 * shapes.size());
    for (const Shape& shape : shapes) {
      Parameter parameter{.name = "p" + std::to_string(parameters_.size()),
                          .value = Allocate(shape)};
      if (!in_buckets) parameter.gradient = Allocate(shape);
      parameters_.push_back(std::move(parameter));
    }
  }

  std::vector<Parameter>& parameters() { return parameters_; }

 private:
  Tensor Allocate(const Shape& shape) {
    size_t count = 1;
    for (const int64_t size : shape.sizes) count *= static_cast<size_t>(size);
    // Aligned for every type.
    memory_.emplace_back(count, 0.0);
    return {memory_.back().data(), shape.type, shape.sizes};
  }

  std::vector<std::vector<double>> memory_;
  std::vector<Parameter> parameters_;
};

// Writes a step's samples into a gradient and says that it is ready.
inline void GiveSamples(DataParallel& model, int rank, int64_t step,
                        size_t parameter) {
  const Tensor gradient = model.Gradient(parameter);
  std::vector<double> samples(static_cast<size_t>(gradient.element_count()));
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i] = GetSample(rank, step, parameter, i);
  }
  SetNumbers(gradient, samples);
  model.Ready(parameter);
}

// The average of what GiveSamples writes on `ranks` ranks.
inline double GetAverage(int ranks, int64_t step, size_t parameter, size_t i) {
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    sum += GetSample(rank, step, parameter, i);
  }
  return sum / ranks;
}

}  // namespace muster::testing

#endif  // MUSTER_CLIENT_PARALLEL_DATA_TESTING_MODEL_H_
