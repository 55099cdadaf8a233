#include "muster/pipeline.h"

#include <cstdio>

#include "muster/distributed.h"

int main() {
  muster::InitProcessGroup();
  const int rank = muster::GetRank();
  const int ranks = muster::GetWorldSize();
  float w = 1;
  float gradient = 0;
  const auto at = [](const muster::Tensor& one) -> float& {
    return *static_cast<float*>(one.data());
  };
  const auto read = [&](int microbatch, const muster::Tensor& input) {
    return rank == 0 ? 0.1F * static_cast<float>(microbatch) : at(input);
  };

  muster::PipelineStage stage;
  stage.stage = rank;
  if (rank > 0) stage.input = {muster::DataType::kFloat32, {1}};
  stage.output = {muster::DataType::kFloat32, {1}};
  stage.forward = [&](int microbatch, const auto& input, const auto& output) {
    at(output) = w * read(microbatch, input);
  };
  stage.backward = [&](int microbatch, const auto& input,
                       const auto& output_gradient,
                       const auto& input_gradient) {
    gradient += read(microbatch, input) * at(output_gradient);
    if (rank > 0) at(input_gradient) = w * at(output_gradient);
  };
  if (rank == ranks - 1) {
    stage.loss = [&](int microbatch, const auto& output,
                     const auto& output_gradient) {
      const float error = at(output) - 0.8F * static_cast<float>(microbatch);
      at(output_gradient) = error;
      return 0.5 * error * error;
    };
  }

  muster::Pipeline pipeline(muster::Make1F1B(ranks, 8), {stage});
  for (int step = 0; step < 50; ++step) {
    gradient = 0;
    pipeline.Step();
    w -= 0.02F * gradient;
  }
  std::printf("rank %d: w = %.3f\n", rank, w);
  muster::DestroyProcessGroup();
}
