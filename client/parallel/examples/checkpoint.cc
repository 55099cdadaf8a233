#include <cstdio>
#include <memory>
#include <vector>

#include "muster/muster.hpp"
#include "muster/parallel.h"

int main() {
  muster::InitProcessGroup();
  // This rank's rows of a matrix. Another number of ranks has other rows.
  const int64_t begin = 1000 * muster::GetRank() / muster::GetWorldSize();
  const int64_t end = 1000 * (muster::GetRank() + 1) / muster::GetWorldSize();
  std::vector<float> rows(static_cast<size_t>(end - begin) * 64);
  const std::vector<muster::CheckpointShard> state = {
      {"embedding", {1000, 64}, {begin, 0}, {rows.data(), {end - begin, 64}}}};
  const std::shared_ptr<muster::CheckpointStorage> storage =
      muster::DirectoryStorage("checkpoints");
  // If the newest one is damaged on any rank, all ranks load an older one.
  const auto loaded = muster::LoadNewestCheckpoint(*storage, state);
  int64_t step = loaded ? loaded->step : 0;
  {
    muster::Checkpointer checkpointer(storage, {.keep_newest = 3});
    for (int i = 0; i < 500; ++i) {
      for (float& element : rows) element += 1;  // a step of training
      if (++step % 100 == 0) checkpointer.SaveAsync(step, state);
    }
  }  // waits for the last one
  std::printf("step %d: %g\n", static_cast<int>(step), rows[0]);
  muster::DestroyProcessGroup();
}
