#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/parallel/checkpoint/test_parts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/checkpoint_storage.h"

namespace {

// The calls that make a checkpoint durable, in order, with the name of the file
// or folder.
std::vector<std::string>& Calls() {
  static std::vector<std::string> calls;
  return calls;
}

// The name of the folder whose fsync fails.
std::string& FailingSync() {
  static std::string name;
  return name;
}

}  // namespace

// These take the place of the C library's.
extern "C" int fsync(int fd) {
  const auto path =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd));
  Calls().push_back("sync " + path.filename().string());
  if (path.filename() == FailingSync()) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fsync, fd));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  Calls().push_back("rename to " +
                    std::filesystem::path(to).filename().string());
  return static_cast<int>(syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
}

// A disk that cannot read its byte kBadByte, nor those after it.
constexpr off_t kBadByte = 9;

extern "C" ssize_t pread(int fd, void* buffer, size_t bytes, off_t offset) {
  if (offset + static_cast<off_t>(bytes) > kBadByte) {
    errno = EIO;
    return -1;
  }
  return syscall(SYS_pread64, fd, buffer, bytes, offset);
}

namespace muster::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

class DirectoryStorageTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    auto writer = storage_->Create(path);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append(Bytes(text)).ok());
    ASSERT_TRUE((*writer)->Finish().ok());
  }

  const TemporaryFolder folder_;
  const std::unique_ptr<CheckpointStorage> storage_ =
      DirectoryStorage(folder_.path() + "/runs/seven");
};

TEST_F(DirectoryStorageTest, EverythingIsDurableBeforeTheNewNameIs) {
  Calls().clear();
  Write("new", "");  // A file beside the folders.
  const std::string top =
      std::filesystem::path(folder_.path()).filename().string();
  EXPECT_THAT(Calls(), ElementsAre("sync " + top, "sync runs", "sync new"));
  Calls().clear();
  Write("temporary/file", "text");
  ASSERT_TRUE(storage_->Rename("temporary", "final").ok());
  EXPECT_THAT(Calls(), ElementsAre("sync seven", "sync file", "sync temporary",
                                   "rename to final", "sync seven"));
}

TEST_F(DirectoryStorageTest, ReadsWhatWasAppended) {
  auto writer = storage_->Create("a/file");
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Append(Bytes("one")).ok());
  ASSERT_TRUE((*writer)->Append(Bytes("two")).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  auto reader = storage_->Open("a/file");
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->size(), 6);
  std::string part(4, ' ');
  ASSERT_TRUE((*reader)->Read(1, std::as_writable_bytes(std::span(part))).ok());
  EXPECT_EQ(part, "netw");
  const Status status =
      (*reader)->Read(3, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(status.message(),
            "\"" + folder_.path() + "/runs/seven/a/file\" ends at byte 6");
}

TEST_F(DirectoryStorageTest, ErrorsNameThePath) {
  EXPECT_EQ(storage_->Open("a/file").status().ToString(),
            "NOT_FOUND: \"" + folder_.path() +
                "/runs/seven/a/file\": No such file or directory");
  Write("a/file", "text");
  EXPECT_EQ(storage_->Create("a/file").status().code(),
            StatusCode::kAlreadyExists);
  EXPECT_FALSE(storage_->Open("a").ok());
}

TEST_F(DirectoryStorageTest, AFolderIsNotRenamedToOneThatExists) {
  Write("a/file", "new");
  Write("b/file", "old");
  EXPECT_FALSE(storage_->Rename("a", "b").ok());
  EXPECT_FALSE(storage_->Rename("none", "c").ok());
  const auto folders = storage_->ListFolders();
  ASSERT_TRUE(folders.ok());
  EXPECT_THAT(*folders, ::testing::UnorderedElementsAre("a", "b"));
}

TEST_F(DirectoryStorageTest, AnErrorOfTheDiskIsNoProofOfDamage) {
  Write("a/file", "0123456789");
  const auto reader = storage_->Open("a/file");
  ASSERT_TRUE(reader.ok());
  std::string part(4, ' ');
  const auto bytes = std::as_writable_bytes(std::span(part));
  EXPECT_TRUE((*reader)->Read(5, bytes).ok());
  const Status status = (*reader)->Read(6, bytes);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(
      status.message(),
      "\"" + folder_.path() +
          "/runs/seven/a/file\" cannot be read at byte 6: Input/output error");
}

TEST_F(DirectoryStorageTest, NoRenameReplacesAnEmptyFolder) {
  Write("a/file", "new");
  std::filesystem::create_directory(folder_.path() + "/runs/seven/b");
  EXPECT_EQ(storage_->Rename("a", "b").code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(storage_->Open("a/file").ok());
}

TEST_F(DirectoryStorageTest, ARenameThatIsNotDurableIsTakenBack) {
  Write("a/file", "text");
  for (const std::string failing : {"seven", "a"}) {
    FailingSync() = failing;
    const Status status = storage_->Rename("a", "b");
    FailingSync() = "";
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(storage_->Open("a/file").ok());
    EXPECT_FALSE(storage_->Open("b/file").ok());
  }
  EXPECT_TRUE(storage_->Rename("a", "b").ok());
  EXPECT_TRUE(storage_->Open("b/file").ok());
}

TEST_F(DirectoryStorageTest, FoldersAreListedAndRemoved) {
  EXPECT_THAT(*storage_->ListFolders(), IsEmpty());
  Write("a/file", "text");
  Write("file", "text");
  EXPECT_THAT(*storage_->ListFolders(), ElementsAre("a"));
  EXPECT_TRUE(storage_->Remove("a").ok());
  EXPECT_TRUE(storage_->Remove("a").ok());
  EXPECT_THAT(*storage_->ListFolders(), IsEmpty());
}

}  // namespace
}  // namespace muster::testing
