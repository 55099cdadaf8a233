// One rank of the tests of muster-run whose ranks form a process group.
//
//   launched_rank [leave RANK]: that one returns before the others are done.

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "client/muster.h"

int main(int argc, char** argv) {
  return muster::Record([&] {
    muster::InitProcessGroup();
    std::vector<float> values(8, 1.0F);
    muster::AllReduce(values);
    std::printf("reduced to %.0f\n", static_cast<double>(values[0]));
    std::fflush(stdout);
    const int leaver = argc > 2 ? std::atoi(argv[2]) : -1;
    if (muster::GetRank() == leaver) return 0;
    muster::AllReduce(values);
    muster::DestroyProcessGroup();
    return 0;
  });
}
