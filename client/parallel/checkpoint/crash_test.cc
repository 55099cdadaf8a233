// A process that is killed at any step of a save leaves whole checkpoints.

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "client/parallel/checkpoint/test_parts.h"
#include "client/testing/processes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/checkpoint.h"
#include "muster/checkpoint_storage.h"

namespace muster::testing {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;

Exit RunMain(const std::string& folder, int64_t last_call) {
  Process process({"client/parallel/checkpoint/checkpoint_main", folder,
                   std::to_string(last_call)},
                  {});
  return process.Wait(std::chrono::seconds(60));
}

// Fails unless every checkpoint that is listed is whole.
void CheckCheckpoints(CheckpointStorage& storage) {
  for (const int64_t step : ListCheckpoints(storage)) {
    Parts parts;
    parts.Add("w", DataType::kFloat32, {4, 3})
        .Add("b", DataType::kBfloat16, {5})
        .Add("flags", DataType::kUint8, {3});
    const LoadedCheckpoint loaded =
        LoadCheckpoint(storage, step, parts.shards());
    EXPECT_EQ(loaded.values.at("step"), std::to_string(step));
    EXPECT_EQ(parts.CountWrong(static_cast<uint64_t>(step)), 0) << step;
  }
}

TEST(CrashTest, AKilledSaveLeavesTheOldCheckpointAndTheNewOneOrNone) {
  int64_t calls = 0;
  for (;; ++calls) {
    SCOPED_TRACE(calls);
    const TemporaryFolder folder;
    const auto storage = DirectoryStorage(folder.path());
    const Exit exit = RunMain(folder.path(), calls);
    CheckCheckpoints(*storage);
    if (exit.signal != SIGKILL) {
      EXPECT_EQ(exit.code, 0);
      EXPECT_THAT(ListCheckpoints(*storage), ElementsAre(3));
      break;
    }
    EXPECT_THAT(ListCheckpoints(*storage),
                AnyOf(ElementsAre(1), ElementsAre(1, 2), ElementsAre(1, 2, 3),
                      ElementsAre(1, 3), ElementsAre(3)));
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  // Three saves write two files of three tensors and the metadata, at least.
  EXPECT_GT(calls, 60);
}

}  // namespace
}  // namespace muster::testing
