#include "muster/checkpoint.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/parallel/checkpoint/box.h"
#include "client/parallel/checkpoint/test_parts.h"
#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/checkpoint_storage.h"
#include "muster/errors.h"

namespace muster::testing {
namespace {

namespace fs = std::filesystem;

using internal::Box;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Rows `begin` to `end` of a matrix of 10 rows and 3 columns.
Box Rows(int64_t begin, int64_t end) { return {{begin, 0}, {end - begin, 3}}; }

// The state of rank `rank` of `size`: some rows of one tensor, a replica of
// another.
Parts MakeState(int rank, int size, uint64_t version = 0) {
  const int64_t begin = 10 * rank / size;
  const int64_t end = 10 * (rank + 1) / size;
  Parts parts;
  parts.Add("rows", DataType::kFloat32, {10, 3}, Rows(begin, end))
      .Add("bias", DataType::kBfloat16, {7})
      .Fill(version);
  return parts;
}

// The code and the text of what `call` throws.
Status Thrown(const std::function<void()>& call) {
  try {
    call();
  } catch (const DistError& error) {
    return error.status();
  }
  return OkStatus();
}

class CheckpointTest : public ::testing::Test {
 protected:
  // All ranks save; returns the texts of the errors.
  std::vector<std::string> Save(
      LocalGroups& groups, int64_t step,
      const std::function<Parts(int rank)>& make_state,
      SaveCheckpointOptions options = {}) {
    return groups.OnEachRank([&](const auto& group, int rank) {
      const Parts parts = make_state(rank);
      SaveCheckpointOptions mine = options;
      mine.group = group;
      SaveCheckpoint(*storage_, step, parts.shards(), mine);
    });
  }
  std::vector<std::string> Save(LocalGroups& groups, int size, int64_t step,
                                const SaveCheckpointOptions& options = {}) {
    return Save(
        groups, step, [&](int rank) { return MakeState(rank, size); }, options);
  }

  // The error of loading the whole state in one process.
  Status Load(int64_t step) {
    Parts parts = MakeState(0, 1, /*version=*/1);
    const Status status =
        Thrown([&] { LoadCheckpoint(*storage_, step, parts.shards()); });
    EXPECT_EQ(status.ok() ? parts.CountWrong() : 0, 0);
    return status;
  }

  std::vector<std::string> ListFiles() const {
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) {
      files.push_back(fs::relative(entry.path(), folder_.path()).string());
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  const TemporaryFolder folder_;
  std::shared_ptr<CheckpointStorage> storage_ =
      DirectoryStorage(folder_.path());
};

TEST_F(CheckpointTest, IsLoadedByOtherNumbersOfRanks) {
  for (const int size : {1, 2, 3, 4}) {
    LocalGroups groups(size);
    EXPECT_THAT(Save(groups, size, /*step=*/size), Each(""));
    for (const int loading : {1, 2, 3, 5}) {
      for (int rank = 0; rank < loading; ++rank) {
        Parts parts = MakeState(rank, loading, /*version=*/1);
        EXPECT_GT(parts.CountWrong(), 0);
        LoadCheckpoint(*storage_, size, parts.shards());
        EXPECT_EQ(parts.CountWrong(), 0) << size << " to " << loading;
      }
    }
  }
  EXPECT_THAT(ListCheckpoints(*storage_), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(NewestCheckpoint(*storage_), 4);
}

TEST_F(CheckpointTest, KeepsTheValuesOfRankZero) {
  LocalGroups groups(2);
  EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
    SaveCheckpoint(
        *storage_, 5, MakeState(rank, 2).shards(),
        {.group = group, .values = {{"epoch", rank == 0 ? "3" : "4"}}});
  }),
              Each(""));
  EXPECT_EQ(LoadCheckpoint(*storage_, 5, {}).values,
            (CheckpointValues{{"epoch", "3"}}));
  EXPECT_THAT(Save(groups, 2, 6, {.values = {{"random", "\xff"}}}),
              Each("checkpoint of step 6: rank 0: value \"random\" is not "
                   "UTF-8"));
}

TEST_F(CheckpointTest, ScalarsAndEmptyTensorsAndEmptyPartsAreSaved) {
  LocalGroups groups(2);
  const auto make = [](int rank) {
    Parts parts;
    parts.Add("scalar", DataType::kFloat64, {})
        .Add("empty", DataType::kInt8, {0, 4})
        .Add("one", DataType::kComplex64, {1, 3}, {{rank, 0}, {1 - rank, 3}})
        .Fill();
    return parts;
  };
  EXPECT_THAT(Save(groups, 1, make), Each(""));
  Parts parts;
  parts.Add("scalar", DataType::kFloat64, {})
      .Add("empty", DataType::kInt8, {0, 4})
      .Add("one", DataType::kComplex64, {1, 3});
  LoadCheckpoint(*storage_, 1, parts.shards());
  EXPECT_EQ(parts.CountWrong(), 0);
}

TEST_F(CheckpointTest, AShardWithoutAGlobalShapeIsTheWholeTensor) {
  LocalGroups groups(1);
  std::vector<float> elements = {1, 2, 3, 4, 5, 6};
  SaveCheckpoint(*storage_, 1,
                 {{.name = "w", .local = {elements.data(), {2, 3}}}},
                 {.group = groups.at(0)});
  std::vector<float> column(2);
  LoadCheckpoint(*storage_, 1,
                 {{"w", {2, 3}, {0, 1}, {column.data(), {2, 1}}}});
  EXPECT_THAT(column, ElementsAre(2, 5));
}

TEST_F(CheckpointTest, ReplicasAreWrittenOnceAndEvenly) {
  LocalGroups groups(4);
  EXPECT_THAT(Save(groups, 1,
                   [](int) {
                     Parts parts;
                     for (int i = 0; i < 8; ++i) {
                       parts.Add("t" + std::to_string(i), DataType::kFloat32,
                                 {1000});
                     }
                     return parts;
                   }),
              Each(""));
  for (int rank = 0; rank < 4; ++rank) {
    const auto bytes = fs::file_size(folder_.path() + "/step-1.1/rank-0000" +
                                     std::to_string(rank) + ".safetensors");
    EXPECT_GE(bytes, 2 * 4000);
    EXPECT_LT(bytes, 2 * 4000 + 1000);
  }
}

TEST_F(CheckpointTest, BadStateIsTheSameErrorOnAllRanksAndWritesNothing) {
  using DT = DataType;
  struct Case {
    std::string text;
    std::function<void(Parts&, int rank)> add;
  };
  const std::vector<Case> cases = {
      {"tensor \"w\" of float32[10,3]: boxes overlap in part: rank 0 has "
       "[0:6,0:3], rank 20 has [5:10,0:3]",
       [](Parts& p, int rank) {
         if (rank == 1) return;
         p.Add("w", DT::kFloat32, {10, 3},
               rank == 0 ? Rows(0, 6) : Rows(5, 10));
       }},
      {"tensor \"w\" of float32[10,3]: no rank has [4:6,0:3], rank 0 has "
       "[0:2,0:3], rank 10 has [2:4,0:3], rank 20 has [6:10,0:3]",
       [](Parts& p, int rank) {
         p.Add("w", DT::kFloat32, {10, 3},
               rank == 2 ? Rows(6, 10) : Rows(2 * rank, 2 * rank + 2));
       }},
      {"tensor \"w\" is float32[10,4] on rank 20, float32[10,3] on rank 0",
       [](Parts& p, int rank) {
         p.Add("w", DT::kFloat32, {10, rank == 2 ? 4 : 3});
       }},
      {"tensor \"w\" is float16[10] on rank 10, bfloat16[10] on rank 0",
       [](Parts& p, int rank) {
         p.Add("w", rank == 1 ? DT::kFloat16 : DT::kBfloat16, {10});
       }},
      {"rank 10: shard \"w\": [0:10,0:3] is there twice",
       [](Parts& p, int rank) {
         p.Add("w", DT::kFloat32, {10, 3});
         if (rank == 1) p.Add("w", DT::kFloat32, {10, 3});
       }},
      {"rank 20: shard \"w\": in dimension 0 of 10 elements, offset 8 with 3 "
       "elements is outside",
       [](Parts& p, int rank) {
         if (rank == 2) p.Add("w", DT::kFloat32, {10, 3}, Rows(8, 11));
       }},
      {"rank 10: shard \"w\": global_shape has 1 dimensions, offsets have 2, "
       "local has 2",
       [](Parts& p, int rank) {
         if (rank == 1) p.Add("w", DT::kFloat32, {10}, Rows(0, 1));
       }},
      {"rank 0: shard \"w\": complex128[2] has a type that safetensors lacks",
       [](Parts& p, int rank) {
         if (rank == 0) p.Add("w", DT::kComplex128, {2});
       }},
      {"rank 0: shard \"__metadata__\": a tensor cannot have this name",
       [](Parts& p, int rank) {
         if (rank == 0) p.Add("__metadata__", DT::kFloat32, {2});
       }},
      {"rank 0: shard \"\\xff\": a tensor cannot have this name",
       [](Parts& p, int rank) {
         if (rank == 0) p.Add("\xff", DT::kFloat32, {2});
       }},
      {"tensors \"w\" and \"w[0:1]\" would both be stored as \"w[0:1]\"",
       [](Parts& p, int rank) {
         if (rank < 2) p.Add("w", DT::kFloat32, {2}, {{rank}, {1}});
         p.Add("w[0:1]", DT::kFloat32, {2});
       }},
  };
  LocalGroups groups(3);
  for (const Case& one : cases) {
    EXPECT_THAT(Save(groups, 1,
                     [&](int rank) {
                       Parts parts;
                       one.add(parts, rank);
                       return parts;
                     }),
                Each("checkpoint of step 1: " + one.text));
    EXPECT_THAT(ListFiles(), IsEmpty());
  }
  EXPECT_THAT(Save(groups, 3, 1), Each(""));
}

TEST_F(CheckpointTest, CudaTensorsAreRefused) {
  LocalGroups groups(2);
  float element = 0;
  const std::vector<CheckpointShard> state = {
      {.name = "w",
       .local = Tensor(&element, {1}, {dataplane::DeviceType::kCuda, 0})}};
  const std::string text = "is not on the CPU; copy it there before";
  EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
    SaveCheckpoint(*storage_, 1,
                   rank == 1 ? state : std::vector<CheckpointShard>(),
                   {.group = group});
  }),
              Each(AllOf(HasSubstr("rank 10: shard \"w\""), HasSubstr(text))));
  const Status load = Thrown([&] { LoadCheckpoint(*storage_, 1, state); });
  EXPECT_EQ(load.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(load.message(), HasSubstr(text));
}

TEST_F(CheckpointTest, RanksThatDifferInAnArgumentAreNamed) {
  LocalGroups groups(3);
  const auto save = [&](const std::vector<int64_t>& steps,
                        const std::vector<int64_t>& keep_newest) {
    return groups.OnEachRank([&](const auto& group, int rank) {
      SaveCheckpoint(*storage_, steps[rank], {},
                     {.group = group, .keep_newest = keep_newest[rank]});
    });
  };
  EXPECT_THAT(save({7, 7, 8}, {0, 0, 0}),
              Each(HasSubstr("argument step is 8 on rank 20, 7 on rank 0")));
  EXPECT_THAT(
      save({7, 7, 7}, {1, 2, 1}),
      Each(HasSubstr("argument keep_newest is 2 on rank 10, 1 on rank 0")));
  EXPECT_THAT(save({-1, -1, -1}, {1, 1, 1}),
              Each(HasSubstr("argument step must not be negative but was -1")));
  EXPECT_THAT(save({7, 7, 7}, {1, 1, 1}), Each(""));
}

TEST_F(CheckpointTest, AStepThatIsSavedAgainIsReplacedWhenTheNewOneIsDurable) {
  LocalGroups groups(2);
  const auto save = [&](CheckpointStorage& storage, uint64_t version) {
    return groups.OnEachRank([&](const auto& group, int rank) {
      SaveCheckpoint(storage, 1, MakeState(rank, 2, version).shards(),
                     {.group = group});
    });
  };
  const auto count_wrong = [&](uint64_t version) {
    Parts parts = MakeState(0, 1, /*version=*/9);
    LoadCheckpoint(*storage_, 1, parts.shards());
    return parts.CountWrong(version);
  };
  EXPECT_THAT(save(*storage_, 1), Each(""));
  bool fails = true;
  WatchedStorage storage(storage_, [&](const StorageCall& call) {
    if (call.name == "rename" && call.path == "step-1.2") {
      EXPECT_EQ(count_wrong(1), 0);
      if (fails) return ResourceExhaustedError("no space left on device");
    }
    return OkStatus();
  });
  EXPECT_THAT(save(storage, 2), Each(HasSubstr("no space left on device")));
  EXPECT_EQ(count_wrong(1), 0);
  fails = false;
  EXPECT_THAT(save(storage, 2), Each(""));
  EXPECT_EQ(count_wrong(2), 0);
  EXPECT_THAT(ListCheckpoints(*storage_), ElementsAre(1));
  EXPECT_THAT(ListFiles(), Each(HasSubstr("step-1.2")));
}

TEST_F(CheckpointTest, AFullDiskOnOneRankFailsTheSaveOnAll) {
  LocalGroups groups(3);
  ASSERT_THAT(Save(groups, 3, 1), Each(""));
  const std::shared_ptr<CheckpointStorage> disk = storage_;
  storage_ = std::make_shared<WatchedStorage>(disk, [](const auto& call) {
    return call.name == "half" && call.path.ends_with("rank-00001.safetensors")
               ? ResourceExhaustedError("no space left on device")
               : OkStatus();
  });
  std::vector<std::vector<int>> culprits(3);
  EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
    try {
      SaveCheckpoint(*storage_, 2, MakeState(rank, 3).shards(),
                     {.group = group});
    } catch (const DistError& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kResourceExhausted);
      culprits[static_cast<size_t>(rank)] = error.culprit_ranks();
      throw;
    }
  }),
              Each("checkpoint of step 2: rank 10: no space left on device"));
  EXPECT_THAT(culprits, Each(ElementsAre(10)));
  storage_ = disk;
  EXPECT_THAT(ListFiles(), Each(HasSubstr("step-1")));
  EXPECT_TRUE(Load(1).ok());
  EXPECT_THAT(Save(groups, 3, 2), Each(""));
  EXPECT_TRUE(Load(2).ok());
}

TEST_F(CheckpointTest, RanksThatWriteToDifferentStoragesAreFound) {
  LocalGroups groups(2);
  const TemporaryFolder other;
  const auto other_storage = DirectoryStorage(other.path());
  EXPECT_THAT(
      groups.OnEachRank([&](const auto& group, int rank) {
        SaveCheckpoint(rank == 0 ? *storage_ : *other_storage, 1,
                       MakeState(rank, 2).shards(), {.group = group});
      }),
      Each(AllOf(HasSubstr("rank-00001.safetensors\" has"),
                 HasSubstr("do all ranks write to the same storage?"))));
  EXPECT_THAT(ListCheckpoints(*storage_), IsEmpty());
}

TEST_F(CheckpointTest, ARankThatLeavesInTheMiddleFailsTheSaveOnTheOthers) {
  for (const int leaving : {0, 1, 2}) {
    LocalGroups groups(3);
    const std::string file = std::to_string(leaving) + ".safetensors";
    const auto leave = [&](const StorageCall& call) {
      if (call.name == "finish" && call.path.ends_with(file)) {
        groups.Leave(leaving);
      }
      return OkStatus();
    };
    WatchedStorage storage(storage_, leave);
    const auto thrown = groups.OnEachRank([&](const auto& group, int rank) {
      SaveCheckpoint(storage, 1, MakeState(rank, 3).shards(), {.group = group});
    });
    EXPECT_THAT(thrown, Each(::testing::Ne("")));
    EXPECT_THAT(ListCheckpoints(*storage_), IsEmpty());
  }
}

TEST_F(CheckpointTest, TheNextSaveRemovesLeftoversAndNothingElse) {
  LocalGroups groups(2);
  for (const char* name :
       {"/step-3.tmp-0123456789abcdef", "/notes", "/step-x"}) {
    fs::create_directories(folder_.path() + name);
    std::ofstream(folder_.path() + name + "/file") << "text";
  }
  EXPECT_THAT(Save(groups, 2, 1), Each(""));
  EXPECT_THAT(
      ListFiles(),
      ElementsAre("notes", "notes/file", "step-1.1", "step-1.1/checkpoint.json",
                  "step-1.1/rank-00000.safetensors",
                  "step-1.1/rank-00001.safetensors", "step-x", "step-x/file"));
  EXPECT_THAT(ListCheckpoints(*storage_), ElementsAre(1));
}

// The other save takes the folder of this one for a leftover, at the last
// moment: just before, and just after the manifest is written.
TEST_F(CheckpointTest, ASaveThatAnotherEndsLosesNothing) {
  for (const char* call_name : {"create", "finish"}) {
    LocalGroups groups(2);
    ASSERT_THAT(Save(groups, 2, 1), Each(""));
    LocalGroups others(2);
    std::vector<std::string> others_thrown;
    const auto interrupt = [&](const StorageCall& call) {
      if (call.name == call_name && call.path.ends_with("checkpoint.json")) {
        others_thrown = Save(others, 2, 2);
      }
      return OkStatus();
    };
    WatchedStorage storage(storage_, interrupt);
    EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
      SaveCheckpoint(storage, 3, MakeState(rank, 2).shards(),
                     {.group = group, .keep_newest = 1});
    }),
                Each(HasSubstr("Is this the only save in it?")));
    EXPECT_THAT(others_thrown, Each(""));
    EXPECT_THAT(ListCheckpoints(*storage_), ElementsAre(1, 2));
    EXPECT_TRUE(Load(2).ok());
    fs::remove_all(folder_.path());
  }
}

TEST_F(CheckpointTest, WhatAStorageThrowsIsTheErrorOfAllRanks) {
  for (const char* call_name : {"list", "create", "finish", "rename"}) {
    LocalGroups groups(2);
    const auto fail = [&](const StorageCall& call) -> Status {
      if (call.name == call_name) throw std::runtime_error("broken");
      return OkStatus();
    };
    WatchedStorage storage(storage_, fail);
    EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
      SaveCheckpoint(storage, 1, MakeState(rank, 2).shards(), {.group = group});
    }),
                Each(HasSubstr("broken")))
        << call_name;
    EXPECT_THAT(ListCheckpoints(*storage_), IsEmpty());
  }
}

TEST_F(CheckpointTest, KeepsTheNewestAndEveryKth) {
  LocalGroups groups(2);
  for (int64_t step = 1; step <= 7; ++step) {
    EXPECT_THAT(Save(groups, 2, step, {.keep_newest = 2, .keep_every = 3}),
                Each(""));
  }
  EXPECT_THAT(ListCheckpoints(*storage_), ElementsAre(3, 6, 7));
}

TEST_F(CheckpointTest, AfterGoingBackTheOnesOfHigherStepsAreTheOldest) {
  LocalGroups groups(2);
  for (const int64_t step : {100, 200, 300}) {
    EXPECT_THAT(Save(groups, 2, step), Each(""));
  }
  // The program has gone back to 100.
  const SaveCheckpointOptions options = {.keep_newest = 3};
  EXPECT_THAT(Save(groups, 2, 110, options), Each(""));
  EXPECT_THAT(ListCheckpoints(*storage_), ElementsAre(300, 100, 110));
  EXPECT_EQ(NewestCheckpoint(*storage_), 110);
  EXPECT_THAT(Save(groups, 2, 120, options), Each(""));
  EXPECT_THAT(ListCheckpoints(*storage_), ElementsAre(100, 110, 120));
  EXPECT_THAT(Save(groups, 2, 110, options), Each(""));
  EXPECT_THAT(ListCheckpoints(*storage_), ElementsAre(120, 100, 110));
  // One that is kept for its step is kept.
  EXPECT_THAT(Save(groups, 2, 10, {.keep_newest = 1, .keep_every = 100}),
              Each(""));
  EXPECT_THAT(ListCheckpoints(*storage_), ElementsAre(100, 10));
}

TEST_F(CheckpointTest, ACheckpointIsRemoved) {
  LocalGroups groups(2);
  for (const int64_t step : {1, 2, 3}) {
    EXPECT_THAT(Save(groups, 2, step), Each(""));
  }
  // As after a crash, before a save has removed the one that it replaces.
  fs::copy(folder_.path() + "/step-2.2", folder_.path() + "/step-2.4",
           fs::copy_options::recursive);
  EXPECT_THAT(ListCheckpoints(*storage_), ElementsAre(3, 1, 2));
  RemoveCheckpoint(*storage_, 2);
  EXPECT_THAT(ListCheckpoints(*storage_), ElementsAre(1, 3));
  EXPECT_THAT(ListFiles(), Each(Not(HasSubstr("step-2"))));
  const Status status = Thrown([&] { RemoveCheckpoint(*storage_, 2); });
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "there is no checkpoint of step 2");
  // A part of one that cannot be removed is no checkpoint.
  WatchedStorage storage(storage_, [](const StorageCall& call) {
    return call.name == "remove" ? PermissionDeniedError("read-only")
                                 : OkStatus();
  });
  EXPECT_EQ(Thrown([&] { RemoveCheckpoint(storage, 3); }).code(),
            StatusCode::kPermissionDenied);
  EXPECT_THAT(ListCheckpoints(*storage_), ElementsAre(1));
}

TEST_F(CheckpointTest, ARankThatIsNotInTheGroupDoesNothing) {
  SaveCheckpoint(*storage_, 1, MakeState(0, 1).shards(),
                 {.group = LocalGroups::NonMember()});
  EXPECT_THAT(ListFiles(), IsEmpty());
}

TEST_F(CheckpointTest, ReadsOnlyTheBlocksThatItNeeds) {
  LocalGroups groups(2);
  // Each rank has 5 MiB: 1280 rows of 4 KiB.
  EXPECT_THAT(Save(groups, 1,
                   [](int rank) {
                     Parts parts;
                     parts
                         .Add("big", DataType::kFloat32, {2560, 1024},
                              {{rank * 1280, 0}, {1280, 1024}})
                         .Fill();
                     return parts;
                   }),
              Each(""));
  std::map<std::string, size_t> read;
  size_t largest = 0;
  WatchedStorage storage(storage_, [&](const StorageCall& call) {
    if (call.name == "read" && call.path.ends_with(".safetensors")) {
      read[call.path] += call.bytes;
      largest = std::max(largest, call.bytes);
    }
    return OkStatus();
  });
  // Rows in the second and third MiB of the first rank's file.
  Parts rows;
  rows.Add("big", DataType::kFloat32, {2560, 1024}, {{500, 0}, {20, 1024}});
  LoadCheckpoint(storage, 1, rows.shards());
  EXPECT_EQ(rows.CountWrong(), 0);
  EXPECT_EQ(read, (std::map<std::string, size_t>{
                      {"step-1.1/rank-00000.safetensors", 2 << 20}}));
  // A column reads everything, but once.
  read.clear();
  Parts column;
  column.Add("big", DataType::kFloat32, {2560, 1024}, {{0, 77}, {2560, 2}});
  LoadCheckpoint(storage, 1, column.shards());
  EXPECT_EQ(column.CountWrong(), 0);
  EXPECT_EQ(read, (std::map<std::string, size_t>{
                      {"step-1.1/rank-00000.safetensors", 5 << 20},
                      {"step-1.1/rank-00001.safetensors", 5 << 20}}));
  EXPECT_EQ(largest, size_t{1} << 20);
}

TEST_F(CheckpointTest, WhatIsNotThereIsNotFound) {
  EXPECT_EQ(NewestCheckpoint(*storage_), std::nullopt);
  EXPECT_EQ(NewestCheckpoint(*DirectoryStorage(folder_.path() + "/none")),
            std::nullopt);
  Status status = Load(1);
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "there is no checkpoint of step 1");
  EXPECT_EQ(Thrown([&] { VerifyCheckpoint(*storage_, 1); }).code(),
            StatusCode::kNotFound);

  LocalGroups groups(1);
  EXPECT_THAT(Save(groups, 1, 1), Each(""));
  Parts parts = MakeState(0, 1, /*version=*/1);
  parts.Add("more", DataType::kFloat32, {2}).Fill(1);
  status = Thrown([&] { LoadCheckpoint(*storage_, 1, parts.shards()); });
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "checkpoint step-1.1: has no tensor \"more\"");
  EXPECT_THAT(
      LoadCheckpoint(*storage_, 1, parts.shards(), {.strict = false}).missing,
      ElementsAre("more"));
  // The elements of "more" are as they were.
  EXPECT_EQ(parts.CountWrong(0), 2);
  EXPECT_EQ(parts.CountWrong(1), 10 * 3 + 7);
}

TEST_F(CheckpointTest, AnotherShapeOrTypeIsNamed) {
  LocalGroups groups(1);
  EXPECT_THAT(Save(groups, 1, 1), Each(""));
  const auto load = [&](const std::string& name, DataType type,
                        const std::vector<int64_t>& shape) {
    Parts parts;
    parts.Add(name, type, shape);
    return Thrown([&] { LoadCheckpoint(*storage_, 1, parts.shards()); })
        .message();
  };
  EXPECT_EQ(
      load("rows", DataType::kFloat32, {3, 10}),
      "checkpoint step-1.1: tensor \"rows\" is float32[10,3] there, asked "
      "for is float32[3,10]");
  EXPECT_EQ(load("bias", DataType::kFloat16, {7}),
            "checkpoint step-1.1: tensor \"bias\" is bfloat16[7] there, asked "
            "for is float16[7]");
}

TEST_F(CheckpointTest, DamagedFilesAreNamed) {
  LocalGroups groups(2);
  EXPECT_THAT(Save(groups, 2, 1), Each(""));
  const std::string path = folder_.path() + "/step-1.1/rank-00001.safetensors";
  const auto size = fs::file_size(path);
  const auto flip = [&](int64_t from_end) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-from_end, std::ios::end);
    const int byte = file.get();
    file.seekp(-from_end, std::ios::end);
    file.put(static_cast<char>(byte ^ 0x10));
  };
  // Every byte of the elements: rank 1 has 15 of 4 bytes, which come last.
  for (int64_t from_end = 1; from_end <= 60; ++from_end) {
    flip(from_end);
    const Status status = Load(1);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << from_end;
    EXPECT_THAT(
        status.message(),
        HasSubstr("checkpoint step-1.1: file \"rank-00001.safetensors\", "
                  "tensor \"rows\" [5:10,0:3]: damaged: the checksum"));
    flip(from_end);
  }
  EXPECT_TRUE(Load(1).ok());

  fs::resize_file(path, size - 1);
  Status status = Load(1);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(),
              HasSubstr("file \"rank-00001.safetensors\" has " +
                        std::to_string(size - 1) + " bytes, " +
                        std::to_string(size) + " were written"));

  fs::remove(path);
  status = Load(1);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("\"rank-00001.safetensors\""));
}

TEST_F(CheckpointTest, ADamagedMetadataFileIsNamed) {
  LocalGroups groups(1);
  EXPECT_THAT(Save(groups, 1, 1), Each(""));
  const std::string path = folder_.path() + "/step-1.1/checkpoint.json";
  fs::resize_file(path, fs::file_size(path) / 2);
  const Status status = Load(1);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(),
              HasSubstr("\"step-1.1/checkpoint.json\" is damaged"));
}

TEST_F(CheckpointTest, NothingUnverifiedIsWrittenIntoATensor) {
  LocalGroups groups(1);
  // Three blocks.
  const auto make = [] {
    Parts parts;
    parts.Add("w", DataType::kUint8, {3 << 20});
    return parts;
  };
  EXPECT_THAT(Save(groups, 1,
                   [&](int) {
                     Parts parts = make();
                     parts.Fill();
                     return parts;
                   }),
              Each(""));
  const std::string path = folder_.path() + "/step-1.1/rank-00000.safetensors";
  {
    // The last byte of the second block.
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-(1 << 20) - 1, std::ios::end);
    file.put('\0');
  }
  Parts parts = make();
  EXPECT_EQ(
      Thrown([&] { LoadCheckpoint(*storage_, 1, parts.shards()); }).code(),
      StatusCode::kDataLoss);
  const auto* const bytes =
      static_cast<const uint8_t*>(parts.shards()[0].local.data());
  EXPECT_NE(bytes[0], 0);
  EXPECT_THAT(std::vector<uint8_t>(bytes + (1 << 20), bytes + (3 << 20)),
              Each(0));
}

// All ranks load the newest checkpoint that none of them finds damaged.
class LoadNewestTest : public CheckpointTest {
 protected:
  struct Result {
    std::optional<LoadedCheckpoint> loaded = {};
    size_t wrong = 0;
  };

  void SaveSteps(const std::vector<int64_t>& steps) {
    for (const int64_t step : steps) {
      EXPECT_THAT(groups_.OnEachRank([&](const auto& group, int rank) {
        SaveCheckpoint(
            *storage_, step,
            MakeState(rank, 3, static_cast<uint64_t>(step)).shards(),
            {.group = group, .values = {{"step", std::to_string(step)}}});
      }),
                  Each(""));
    }
  }
  // Fills the results of the ranks that do not throw.
  std::vector<std::string> LoadNewest(std::vector<Result>& results) {
    results.assign(3, {});
    return groups_.OnEachRank([&](const auto& group, int rank) {
      Parts parts = MakeState(rank, 3, /*version=*/999);
      Result& mine = results[static_cast<size_t>(rank)];
      mine.loaded =
          LoadNewestCheckpoint(*storage_, parts.shards(), {.group = group});
      const int64_t step = mine.loaded.has_value() ? mine.loaded->step : 999;
      mine.wrong = parts.CountWrong(static_cast<uint64_t>(step));
    });
  }
  void Damage(const std::string& file) {
    const std::string path = folder_.path() + "/" + file;
    fs::resize_file(path, fs::file_size(path) / 2);
  }

  LocalGroups groups_{3};
};

TEST_F(LoadNewestTest, LoadsTheNewestOrNothing) {
  std::vector<Result> results;
  EXPECT_THAT(LoadNewest(results), Each(""));
  for (const Result& result : results) {
    EXPECT_FALSE(result.loaded.has_value());
    EXPECT_EQ(result.wrong, 0);
  }
  SaveSteps({1, 2});
  EXPECT_THAT(LoadNewest(results), Each(""));
  for (const Result& result : results) {
    ASSERT_TRUE(result.loaded.has_value());
    EXPECT_EQ(result.loaded->step, 2);
    EXPECT_EQ(result.loaded->values.at("step"), "2");
    EXPECT_THAT(result.loaded->damaged, IsEmpty());
    EXPECT_EQ(result.wrong, 0);
  }
}

TEST_F(LoadNewestTest, GoesBackOnAllRanksIfOneFindsDamage) {
  SaveSteps({1, 2, 3, 4});
  // Only rank 1 reads this one's rows, and no rank this metadata.
  Damage("step-4.4/rank-00001.safetensors");
  fs::remove(folder_.path() + "/step-3.3/checkpoint.json");
  std::vector<Result> results;
  EXPECT_THAT(LoadNewest(results), Each(""));
  for (const Result& result : results) {
    ASSERT_TRUE(result.loaded.has_value());
    EXPECT_EQ(result.loaded->step, 2);
    EXPECT_THAT(result.loaded->damaged, ElementsAre(4, 3));
    EXPECT_EQ(result.wrong, 0);
  }
  // The program goes on from there.
  SaveSteps({3});
  EXPECT_THAT(LoadNewest(results), Each(""));
  EXPECT_EQ(results[0].loaded->step, 3);
}

TEST_F(LoadNewestTest, IfAllAreDamagedAllRanksGetTheErrorOfTheNewest) {
  SaveSteps({1, 2});
  Damage("step-1.1/checkpoint.json");
  Damage("step-2.2/rank-00001.safetensors");
  std::vector<Result> results;
  EXPECT_THAT(LoadNewest(results),
              Each(HasSubstr("rank 10: checkpoint step-2.2: file "
                             "\"rank-00001.safetensors\" has")));
}

TEST_F(LoadNewestTest, AnotherErrorOfOneRankIsThrownByAll) {
  SaveSteps({1, 2});
  std::vector<std::vector<int>> culprits(3);
  const auto thrown = groups_.OnEachRank([&](const auto& group, int rank) {
    Parts parts;
    parts.Add("rows", DataType::kFloat32, {10, rank == 2 ? 4 : 3});
    try {
      LoadNewestCheckpoint(*storage_, parts.shards(), {.group = group});
    } catch (const DistError& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kInvalidArgument);
      culprits[static_cast<size_t>(rank)] = error.culprit_ranks();
      throw;
    }
  });
  EXPECT_THAT(thrown, Each("rank 20: checkpoint step-2.2: tensor \"rows\" is "
                           "float32[10,3] there, asked for is float32[10,4]"));
  EXPECT_THAT(culprits, Each(ElementsAre(20)));
  for (const char* call_name : {"list", "open", "read"}) {
    const auto broken = [&](const StorageCall& call) -> Status {
      if (call.name == call_name) throw std::runtime_error("broken");
      return OkStatus();
    };
    WatchedStorage storage(storage_, broken);
    EXPECT_THAT(groups_.OnEachRank([&](const auto& group, int rank) {
      Parts parts = MakeState(rank, 3);
      LoadNewestCheckpoint(rank == 0 ? storage : *storage_, parts.shards(),
                           {.group = group});
    }),
                Each(AllOf(HasSubstr("rank 0: "), HasSubstr("broken"))));
  }
}

TEST_F(LoadNewestTest, ARankThatIsNotInTheGroupDoesNothing) {
  SaveSteps({1});
  Parts parts = MakeState(0, 1, /*version=*/9);
  EXPECT_FALSE(LoadNewestCheckpoint(*storage_, parts.shards(),
                                    {.group = LocalGroups::NonMember()})
                   .has_value());
  EXPECT_EQ(parts.CountWrong(9), 0);
}

}  // namespace
}  // namespace muster::testing
