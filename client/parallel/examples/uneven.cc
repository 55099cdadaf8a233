#include <cstdio>
#include <vector>

#include "muster/muster.hpp"
#include "muster/parallel.h"

int main() {
  muster::InitProcessGroup();
  {
    std::vector<float> gradient(2);
    muster::JoinableAllReduce sum(muster::DataType::kFloat32, 2);
    muster::Join join({&sum});
    for (int batch = 0; batch < 3 + muster::GetRank(); ++batch) {
      join.BeginStep();
      gradient = {1, static_cast<float>(batch)};
      sum.Run(gradient);
    }
    const auto result = join.Finish();
    std::printf("rank %d was last\n", result.last_ranks[0]);
  }
  muster::DestroyProcessGroup();
}
