// Checkpoints of the default group.

#include <chrono>
#include <cstdint>
#include <memory>

#include "client/parallel/checkpoint/test_parts.h"
#include "gtest/gtest.h"
#include "muster/checkpoint.h"
#include "muster/checkpoint_storage.h"
#include "muster/distributed.h"
#include "muster/hash_store.h"

namespace muster::testing {
namespace {

TEST(DefaultGroupTest, IsSavedAlsoByAGroupThatTheCheckpointerMakes) {
  const TemporaryFolder folder;
  const std::shared_ptr<CheckpointStorage> storage =
      DirectoryStorage(folder.path());
  InitProcessGroup({.timeout = std::chrono::seconds(30),
                    .world_size = 1,
                    .rank = 0,
                    .store = std::make_shared<HashStore>()});
  Parts state;
  state.Add("w", DataType::kFloat32, {4, 5}).Fill();
  SaveCheckpoint(*storage, 1, state.shards());
  {
    Checkpointer checkpointer(storage);
    checkpointer.SaveAsync(2, state.shards()).Wait();
  }
  DestroyProcessGroup();
  for (const int64_t step : {1, 2}) {
    Parts loaded;
    loaded.Add("w", DataType::kFloat32, {4, 5});
    LoadCheckpoint(*storage, step, loaded.shards());
    EXPECT_EQ(loaded.CountWrong(), 0) << step;
  }
}

}  // namespace
}  // namespace muster::testing
