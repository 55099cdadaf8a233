#include <cstdio>
#include <vector>

#include "muster/muster.hpp"

int main() {
  return muster::Record([] {
    muster::InitProcessGroup();  // reads muster-run's environment variables
    const int rank = muster::GetRank();
    std::vector<float> gradients(4, static_cast<float>(rank));
    muster::AllReduce(gradients, {.op = muster::ReduceOp::kSum});
    std::printf("rank %d of %d has %g\n", rank, muster::GetWorldSize(),
                gradients[0]);
    muster::DestroyProcessGroup();
    return 0;
  });
}
