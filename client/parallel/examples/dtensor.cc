#include <iostream>
#include <vector>

#include "muster/muster.hpp"
#include "muster/parallel.h"

int main() {
  muster::InitProcessGroup();
  {
    const auto mesh = muster::InitDeviceMesh("cpu", {muster::GetWorldSize()});
    auto weight = muster::DTensor::Zeros({512, 256}, muster::DataType::kFloat32,
                                         mesh, {muster::Shard(1)});
    // The same numbers for every mesh and placement.
    weight.FillNormal(/*seed=*/1, /*mean=*/0, /*stddev=*/0.02);
    std::cout << muster::PlanRedistribute(weight.layout(), {muster::Shard(0)},
                                          mesh.shape())
                     .ToText();
    weight = weight.Redistribute({muster::Shard(0)});
    std::vector<float> y(64 * 256, 1);  // a row-wise layer's product
    const muster::Tensor sum(y.data(), {64, 256});
    muster::RegionForward(muster::Region::kReduce, sum, sum,
                          {.group = mesh.GetGroup()});
    std::cout << weight.ToText() + " " + std::to_string(y[0]) + "\n";
  }
  muster::DestroyProcessGroup();
}
