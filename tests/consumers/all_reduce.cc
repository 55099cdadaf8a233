// A program of another project: sums the ranks of all processes.

#include <cstdio>
#include <muster/muster.hpp>
#include <vector>

static_assert(MUSTER_VERSION_NUMBER >= 100);

int main() {
  return muster::Record([] {
    muster::InitProcessGroup();
    std::vector<float> values(4, static_cast<float>(muster::GetRank()));
    muster::AllReduce(values);
    // An exception of the library is caught as what it is.
    try {
      muster::Broadcast(values, 99);
    } catch (const muster::DistError& error) {
      std::printf("muster %s: rank %d has %g; %s\n", MUSTER_VERSION,
                  muster::GetRank(), values[0],
                  muster::StatusCodeToString(error.status().code()));
    }
    muster::DestroyProcessGroup();
    return 0;
  });
}
