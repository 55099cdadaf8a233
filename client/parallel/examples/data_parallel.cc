#include <cstdio>
#include <vector>

#include "muster/muster.hpp"
#include "muster/parallel.h"

int main() {
  muster::InitProcessGroup();
  const int rank = muster::GetRank();
  std::vector<float> w = {0}, b = {0}, dw = {0}, db = {0};
  {
    muster::DataParallel model({{"w", w, dw}, {"b", b, db}});
    for (int step = 0; step < 200; ++step) {
      const float x = static_cast<float>((step + rank) % 4);
      const float error = w[0] * x + b[0] - (3 * x + 1);
      db[0] = error;
      model.Ready(1);
      dw[0] = error * x;
      model.Ready(0);
      model.FinishStep();  // dw and db are the averages of all ranks
      w[0] -= 0.1f * dw[0];
      b[0] -= 0.1f * db[0];
    }
  }
  std::printf("y = %.2f x + %.2f\n", w[0], b[0]);
  muster::DestroyProcessGroup();
}
