#include "worker/launcher/scratch_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

namespace muster::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ScratchFolderTest : public ::testing::Test {
 protected:
  ScratchFolderTest() {
    std::string root = ::testing::TempDir() + "/scratch.XXXXXX";
    EXPECT_NE(mkdtemp(root.data()), nullptr);
    root_ = root;
    setenv("TMPDIR", root.c_str(), 1);
  }
  ~ScratchFolderTest() override { std::filesystem::remove_all(root_); }

  std::filesystem::path root_;
};

TEST_F(ScratchFolderTest, LastsAsLongAsItsObject) {
  std::string path;
  {
    auto folder = ScratchFolder::Create();
    ASSERT_TRUE(folder.ok()) << folder.status();
    const ScratchFolder moved = *std::move(folder);
    path = moved.path();
    std::ofstream(path + "/file") << "grain";
    EXPECT_TRUE(std::filesystem::exists(path + "/file"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(ScratchFolderTest, ThatOfAProcessThatWasKilledIsRemovedAndNoOther) {
  const auto living = ScratchFolder::Create();
  ASSERT_TRUE(living.ok()) << living.status();
  const pid_t child = fork();
  if (child == 0) {
    const auto folder = ScratchFolder::Create();
    std::ofstream(folder->path() + "/file") << "grain";
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  std::filesystem::create_directory(root_ / "other");
  const auto count = [&] {
    int entries = 0;
    for (const auto& entry : std::filesystem::directory_iterator(root_)) {
      (void)entry;
      ++entries;
    }
    return entries;
  };
  EXPECT_EQ(count(), 3);
  const auto next = ScratchFolder::Create();
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE(std::filesystem::exists(living->path()));
  EXPECT_TRUE(std::filesystem::exists(next->path()));
  EXPECT_TRUE(std::filesystem::exists(root_ / "other"));
  EXPECT_EQ(count(), 3);
}

TEST_F(ScratchFolderTest, AFolderToKeepStays) {
  const auto kept = MakeFolderToKeep("logs.", "the output");
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_THAT(*kept, StartsWith((root_ / "logs.").string()));
  { const auto scratch = ScratchFolder::Create(); }
  EXPECT_TRUE(std::filesystem::is_directory(*kept));
}

TEST_F(ScratchFolderTest, ARootThatIsNotThereIsAnError) {
  setenv("TMPDIR", "/not/there", 1);
  EXPECT_THAT(
      std::string(MakeFolderToKeep("logs.", "the output").status().message()),
      HasSubstr("for the output in TMPDIR \"/not/there\": "));
  EXPECT_THAT(std::string(ScratchFolder::Create().status().message()),
              HasSubstr("in TMPDIR \"/not/there\": "));
}

}  // namespace
}  // namespace muster::worker
