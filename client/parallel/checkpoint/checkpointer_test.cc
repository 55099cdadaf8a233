#include <cstdint>
#include <filesystem>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/parallel/checkpoint/folders.h"
#include "client/parallel/checkpoint/save.h"
#include "client/parallel/checkpoint/test_parts.h"
#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/checkpoint.h"
#include "muster/checkpoint_storage.h"
#include "muster/distributed.h"
#include "muster/errors.h"

namespace muster::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Ne;

Parts MakeState(int rank, uint64_t version) {
  Parts parts;
  parts.Add("w", DataType::kFloat32, {4, 5}, {{2 * rank, 0}, {2, 5}})
      .Add("b", DataType::kFloat32, {9})
      .Fill(version);
  return parts;
}

size_t CountWrong(CheckpointStorage& storage, int64_t step, uint64_t version) {
  Parts parts;
  parts.Add("w", DataType::kFloat32, {4, 5}).Add("b", DataType::kFloat32, {9});
  LoadCheckpoint(storage, step, parts.shards());
  return parts.CountWrong(version);
}

// Two ranks, each with a Checkpointer whose storage calls `watch`.
class CheckpointerTest : public ::testing::Test {
 protected:
  std::vector<std::string> OnEachRank(
      const WatchedStorage::Watch& watch,
      const std::function<void(Checkpointer&, int rank)>& body,
      const CheckpointerOptions& options = {}) {
    return own_.OnEachRank([&](const auto& group, int rank) {
      CheckpointerOptions mine = options;
      mine.group = group;
      Checkpointer checkpointer(
          std::make_shared<WatchedStorage>(storage_, watch), mine);
      body(checkpointer, rank);
    });
  }

  const TemporaryFolder folder_;
  const std::shared_ptr<CheckpointStorage> storage_ =
      DirectoryStorage(folder_.path());
  // The program's group, and that of the Checkpointers.
  LocalGroups groups_{2};
  LocalGroups own_{2};
};

Status Nothing(const StorageCall& /*call*/) { return OkStatus(); }

TEST_F(CheckpointerTest, TensorsMayChangeAndCollectivesRunWhileItWrites) {
  std::latch changed(2);
  const auto watch = [&](const StorageCall& call) {
    if (call.name == "create") changed.wait();
    return OkStatus();
  };
  EXPECT_THAT(OnEachRank(watch,
                         [&](Checkpointer& checkpointer, int rank) {
                           Parts state = MakeState(rank, 1);
                           const PendingCheckpoint pending =
                               checkpointer.SaveAsync(10, state.shards());
                           state.Fill(2);
                           std::vector<float> sum = {1};
                           AllReduce(sum, {.group = groups_.at(rank)});
                           EXPECT_EQ(sum[0], 2);
                           EXPECT_FALSE(pending.Done());
                           EXPECT_THAT(ListCheckpoints(*storage_), IsEmpty());
                           changed.count_down();
                           pending.Wait();
                           EXPECT_TRUE(pending.Done());
                         }),
              Each(""));
  EXPECT_EQ(CountWrong(*storage_, 10, 1), 0);
}

TEST_F(CheckpointerTest, ASaveFirstWaitsForTheOneBefore) {
  EXPECT_THAT(
      OnEachRank(Nothing,
                 [&](Checkpointer& checkpointer, int rank) {
                   std::vector<PendingCheckpoint> all;
                   for (int64_t step = 1; step <= 5; ++step) {
                     all.push_back(checkpointer.SaveAsync(
                         step,
                         MakeState(rank, static_cast<uint64_t>(step)).shards(),
                         {{"step", std::to_string(step)}}));
                     for (size_t i = 0; i + 1 < all.size(); ++i) {
                       EXPECT_TRUE(all[i].Done()) << i;
                     }
                   }
                   all.back().Wait();
                 },
                 {.keep_newest = 2}),
      Each(""));
  EXPECT_THAT(ListCheckpoints(*storage_), ElementsAre(4, 5));
  EXPECT_EQ(CountWrong(*storage_, 5, 5), 0);
  EXPECT_EQ(LoadCheckpoint(*storage_, 4, {}).values.at("step"), "4");
}

TEST_F(CheckpointerTest, ASaveOfTheSameShardsIsNotPlannedAgain) {
  std::vector<internal::SavePlan> plans(2);
  // Returns the rank that writes "b", which both have: its file is larger.
  const auto save = [&](int64_t step, bool has_more) {
    EXPECT_THAT(own_.OnEachRank([&](const auto& group, int rank) {
      const auto version = static_cast<uint64_t>(step);
      Parts state = MakeState(rank, version);
      if (has_more && rank == 1) {
        state.Add("scalar", DataType::kUint8, {}).Fill(version);
      }
      internal::CheckpointSave save(*storage_, plans[rank], step,
                                    {.group = group});
      save.Agree(state.shards());
      save.Write();
    }),
                Each(""));
    EXPECT_EQ(CountWrong(*storage_, step, static_cast<uint64_t>(step)), 0);
    const auto bytes = [&](int rank) {
      return std::filesystem::file_size(
          folder_.path() + "/step-" + std::to_string(step) + "." +
          std::to_string(step) + "/" + internal::MakeFileName(rank));
    };
    return bytes(0) > bytes(1) ? 0 : 1;
  };
  EXPECT_EQ(save(1, false), 0);
  ASSERT_THAT(plans[0].writes, ElementsAre(ElementsAre(0, 1), ElementsAre(0)));
  // A plan that nobody would make.
  plans[0].writes = {{0}, {0, 1}};
  EXPECT_EQ(save(2, false), 1);
  EXPECT_EQ(save(3, true), 0);
  EXPECT_EQ(save(4, true), 0);
  EXPECT_EQ(save(5, false), 0);
}

TEST_F(CheckpointerTest, ShardsMayChangeFromSaveToSaveAlsoAfterABadOne) {
  EXPECT_THAT(
      OnEachRank(Nothing,
                 [&](Checkpointer& checkpointer, int rank) {
                   checkpointer.SaveAsync(1, MakeState(rank, 1).shards());
                   // The other one's rows.
                   checkpointer.SaveAsync(2, MakeState(1 - rank, 2).shards());
                   // Rank 1 has rank 0's, too.
                   const int bad = 0;
                   EXPECT_THROW(
                       checkpointer.SaveAsync(3, MakeState(bad, 3).shards()),
                       DistError);
                   checkpointer.SaveAsync(4, MakeState(1 - rank, 4).shards());
                 }),
      Each(""));
  EXPECT_THAT(ListCheckpoints(*storage_), ElementsAre(1, 2, 4));
  for (const int64_t step : {1, 2, 4}) {
    EXPECT_EQ(CountWrong(*storage_, step, static_cast<uint64_t>(step)), 0);
  }
}

TEST_F(CheckpointerTest, TheDestructorWaitsForTheLast) {
  EXPECT_THAT(OnEachRank(Nothing,
                         [&](Checkpointer& checkpointer, int rank) {
                           checkpointer.SaveAsync(1,
                                                  MakeState(rank, 1).shards());
                         }),
              Each(""));
  EXPECT_EQ(CountWrong(*storage_, 1, 1), 0);
}

TEST_F(CheckpointerTest, AFullDiskIsThrownByEachWaitAndTheNextSaveWorks) {
  const auto watch = [&](const StorageCall& call) {
    return call.name == "finish" && call.path.starts_with("step-1.") &&
                   call.path.ends_with("rank-00001.safetensors")
               ? ResourceExhaustedError("no space left on device")
               : OkStatus();
  };
  const std::string text =
      "checkpoint of step 1: rank 10: no space left on device";
  EXPECT_THAT(OnEachRank(watch,
                         [&](Checkpointer& checkpointer, int rank) {
                           const Parts state = MakeState(rank, 1);
                           const PendingCheckpoint first =
                               checkpointer.SaveAsync(1, state.shards());
                           for (int i = 0; i < 2; ++i) {
                             EXPECT_THAT(
                                 [&] { first.Wait(); },
                                 ::testing::ThrowsMessage<DistError>(text));
                           }
                           checkpointer.SaveAsync(2, state.shards()).Wait();
                         }),
              Each(""));
  EXPECT_THAT(ListCheckpoints(*storage_), ElementsAre(2));
}

TEST_F(CheckpointerTest, BadArgumentsAreThrownByTheCall) {
  EXPECT_THAT(
      OnEachRank(Nothing, [&](Checkpointer& checkpointer,
                              int rank) { checkpointer.SaveAsync(rank, {}); }),
      Each(HasSubstr("argument step is 1 on rank 10, 0 on rank 0")));
}

TEST_F(CheckpointerTest, ARankThatLeavesFailsTheOthersWaits) {
  const auto watch = [&](const StorageCall& call) {
    if (call.name == "create" &&
        call.path.ends_with("rank-00001.safetensors")) {
      own_.Leave(1);
    }
    return OkStatus();
  };
  EXPECT_THAT(
      OnEachRank(
          watch,
          [&](Checkpointer& checkpointer, int rank) {
            checkpointer.SaveAsync(1, MakeState(rank, 1).shards()).Wait();
          }),
      Each(Ne("")));
  EXPECT_THAT(ListCheckpoints(*storage_), IsEmpty());
}

TEST_F(CheckpointerTest, ARankThatIsNotInTheGroupDoesNothing) {
  Checkpointer checkpointer(storage_, {.group = LocalGroups::NonMember()});
  checkpointer.SaveAsync(1, MakeState(0, 1).shards()).Wait();
  EXPECT_THAT(ListCheckpoints(*storage_), IsEmpty());
}

}  // namespace
}  // namespace muster::testing
