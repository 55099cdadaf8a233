#include <cstdio>
#include <vector>

#include "muster/muster.hpp"
#include "muster/parallel.h"

int main() {
  muster::InitProcessGroup();
  std::vector<float> weight(8), bias(1);
  {
    muster::FullyShard model(
        {{"weights", {{"weight", weight}}}, {"biases", {{"bias", bias}}}});
    muster::Optimizer optimizer(muster::AdamW(), model.Tensors());
    for (int step = 0; step < 500; ++step) {
      model.WaitUnshard(0);  // and begins to gather the next group
      model.WaitUnshard(1);
      const auto* w = static_cast<const float*>(model.Value(0, 0).data());
      const auto* b = static_cast<const float*>(model.Value(1, 0).data());
      auto* dw = static_cast<float*>(model.Gradient(0, 0).data());
      auto* db = static_cast<float*>(model.Gradient(1, 0).data());
      const int i = (step + muster::GetRank()) % 8;  // the rank's sample
      const float error = w[i] + b[0] - static_cast<float>(i);
      dw[i] += error;
      db[0] += error;
      model.GradientsReady(1);  // reduces while backward goes on
      model.GradientsReady(0);
      model.FinishStep();
      model.ClipGradientNorm(1.0);
      optimizer.Step(/*learning_rate=*/0.05);
      model.ZeroGradients();
    }
    std::printf("at most %lld bytes\n",
                static_cast<long long>(model.memory().total.peak));
  }
  muster::DestroyProcessGroup();
}
