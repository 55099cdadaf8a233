#include "client/parallel/checkpoint/folders.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "client/parallel/checkpoint/test_parts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/checkpoint_storage.h"

namespace muster::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FoldersTest : public ::testing::Test {
 protected:
  // Calls FindFolders where there are these folders.
  CheckpointFolders Find(const std::vector<std::string>& names) {
    const testing::TemporaryFolder folder;
    for (const std::string& name : names) {
      std::filesystem::create_directory(folder.path() + "/" + name);
    }
    const auto found = FindFolders(*DirectoryStorage(folder.path()));
    EXPECT_TRUE(found.ok()) << found.status();
    return *found;
  }
  static std::vector<std::string> Names(
      const std::vector<CheckpointFolder>& folders) {
    std::vector<std::string> names;
    for (const CheckpointFolder& one : folders) {
      names.push_back(MakeFolderName(one));
    }
    return names;
  }
};

TEST_F(FoldersTest, TheLastSaveIsTheNewest) {
  const auto found = Find({"step-10.1", "step-20.2", "step-30.3", "step-15.4"});
  EXPECT_THAT(Names(found.checkpoints),
              ElementsAre("step-15.4", "step-10.1", "step-30.3", "step-20.2"));
  EXPECT_THAT(found.replaced, IsEmpty());
  EXPECT_EQ(found.last_save, 4);
}

TEST_F(FoldersTest, OfOneStepTheLastSaveCounts) {
  const auto found = Find({"step-10.1", "step-20.2", "step-20.4", "step-30.3"});
  EXPECT_THAT(Names(found.checkpoints),
              ElementsAre("step-20.4", "step-10.1", "step-30.3"));
  EXPECT_THAT(Names(found.replaced), ElementsAre("step-20.2"));
}

TEST_F(FoldersTest, OtherNamesAreNotTouched) {
  const auto found = Find({
      "step-1",
      "step-1.",
      "step-01.1",
      "step-1.01",
      "step-1.0",
      "step--1.1",
      "step-1.-1",
      "step-.1",
      "step-1.1.1",
      "step-1.9223372036854775807",
      "step-1.99999999999999999999",
      "step-x.1",
      "notes",
      // Almost names of leftovers.
      "notes.tmp-0123456789abcdef",
      "step-1.tmp-backup",
      "step-1.tmp-",
  });
  EXPECT_THAT(found.checkpoints, IsEmpty());
  EXPECT_THAT(found.replaced, IsEmpty());
  EXPECT_THAT(found.temporary, IsEmpty());
  EXPECT_EQ(found.last_save, 0);
}

TEST_F(FoldersTest, ATemporaryNameIsNoCheckpoint) {
  const std::string name = MakeTemporaryName(100);
  EXPECT_NE(name, MakeTemporaryName(100));
  const auto found = Find({name});
  EXPECT_THAT(found.checkpoints, IsEmpty());
  EXPECT_THAT(found.temporary, ElementsAre(name));
}

}  // namespace
}  // namespace muster::internal
