// A collective that runs while the program does something else, on two ranks.
//
//   muster-run --standalone --nproc-per-node=2 -- all_reduce_two_ranks

#include <cstdio>
#include <vector>

#include "muster/muster.hpp"

int main() {
  try {
    muster::InitProcessGroup();
    if (muster::GetWorldSize() != 2) {
      std::fprintf(stderr, "this example is for 2 ranks, not %d\n",
                   muster::GetWorldSize());
      return 2;
    }
    const int rank = muster::GetRank();
    std::vector<double> numbers = {1.0 + rank, 10.0 * (1 + rank)};

    // Until Wait returns, `numbers` belongs to the collective.
    muster::Work sum =
        muster::AllReduce(muster::Tensor(numbers), {.async_op = true});
    std::printf("rank %d: started\n", rank);
    sum.Wait();
    std::printf("rank %d: sum %g %g\n", rank, numbers[0], numbers[1]);

    // Once more, with another operation, and without async_op it is complete
    // when the call returns.
    numbers = {static_cast<double>(rank)};
    muster::AllReduce(muster::Tensor(numbers), {.op = muster::ReduceOp::kMax});
    std::printf("rank %d: max %g\n", rank, numbers[0]);

    muster::DestroyProcessGroup();
  } catch (const muster::DistError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
