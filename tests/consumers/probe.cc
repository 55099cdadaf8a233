// A library by which a process of another language uses libmuster.

#include <cstdio>
#include <exception>
#include <muster/muster.hpp>
#include <string>
#include <vector>

// Forms a group and sums the ranks. Returns 0 if the sum is right.
extern "C" int RunGroup(const char* init_method) {
  try {
    muster::InitProcessGroup({.init_method = init_method});
    const int world_size = muster::GetWorldSize();
    std::vector<float> values(1000, static_cast<float>(muster::GetRank()));
    muster::AllReduce(values);
    const float sum = static_cast<float>(world_size * (world_size - 1) / 2);
    muster::DestroyProcessGroup();
    for (const float value : values) {
      if (value != sum) return 1;
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
