#include "coordinator/storage/rocksdb_storage.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

// Files that were put on the disk. The library's calls come here, because the
// program's own functions go before those of the C library.
std::vector<std::string> synced;

int Sync(int fd) {
  char name[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), name, sizeof(name));
  if (length > 0) synced.emplace_back(name, static_cast<size_t>(length));
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}

}  // namespace

extern "C" int fdatasync(int fd) { return Sync(fd); }
extern "C" int fsync(int fd) { return Sync(fd); }

namespace muster::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class RocksDbStorageTest : public ::testing::Test {
 protected:
  RocksDbStorageTest() {
    std::string pattern = ::testing::TempDir() + "/rocksdb.XXXXXX";
    path_ = mkdtemp(pattern.data());
  }

  std::unique_ptr<Storage> Open() {
    absl::StatusOr<std::unique_ptr<Storage>> storage = OpenRocksDb(path_);
    EXPECT_TRUE(storage.ok()) << storage.status();
    return storage.ok() ? *std::move(storage) : nullptr;
  }

  static std::map<std::string, std::string> All(Storage& storage) {
    std::map<std::string, std::string> all;
    const absl::Status status =
        storage.Load([&](absl::string_view key, absl::string_view value) {
          all[std::string(key)] = std::string(value);
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
    return all;
  }

  std::string path_;
};

TEST_F(RocksDbStorageTest, WhatIsWrittenIsThereAfterReopening) {
  const std::string bytes("\0\xff\n", 3);
  std::unique_ptr<Storage> storage = Open();
  ASSERT_TRUE(storage->Write({{"a", "1"}, {bytes, bytes}, {"gone", "x"}}).ok());
  ASSERT_TRUE(storage->Write({{"a", "2"}, {"gone", std::nullopt}}).ok());
  ASSERT_TRUE(storage->Sync().ok());
  storage.reset();
  storage = Open();
  EXPECT_THAT(All(*storage), ElementsAre(Pair(bytes, bytes), Pair("a", "2")));
}

// A killed process keeps what the system has; only this tells the disk.
TEST_F(RocksDbStorageTest, SyncPutsTheLogOnTheDisk) {
  const std::unique_ptr<Storage> storage = Open();
  ASSERT_TRUE(storage->Write({{"a", "1"}}).ok());
  synced.clear();
  ASSERT_TRUE(storage->Sync().ok());
  EXPECT_THAT(synced, Contains(EndsWith(".log")));
}

// The library would end the process.
TEST_F(RocksDbStorageTest, ADiskWithoutRoomIsAnError) {
  Open();
  const auto ignored = signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 64 << 10;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status full = OpenRocksDb(path_).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, ignored);
  EXPECT_EQ(full.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(full.message()),
              AllOf(HasSubstr(path_), HasSubstr("cannot write: file too")));
  EXPECT_NE(Open(), nullptr);
}

TEST_F(RocksDbStorageTest, AFolderThatWasRemovedTakesNothing) {
  const std::unique_ptr<Storage> storage = Open();
  ASSERT_TRUE(storage->Write({{"a", "1"}}).ok());
  ASSERT_EQ(rename(path_.c_str(), (path_ + ".gone").c_str()), 0);
  const absl::Status written = storage->Write({{"b", "2"}});
  EXPECT_EQ(written.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(written.message()),
              AllOf(HasSubstr(path_), HasSubstr("removed or replaced")));
  // Another one in its place is not it either.
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  std::ofstream(path_ + "/LOCK") << "";
  EXPECT_FALSE(storage->Write({{"c", "3"}}).ok());
}

TEST_F(RocksDbStorageTest, ChangesOfOneWriteApplyInTheirOrder) {
  const std::unique_ptr<Storage> storage = Open();
  ASSERT_TRUE(
      storage->Write({{"a", "1"}, {"a", std::nullopt}, {"a", "2"}}).ok());
  EXPECT_THAT(All(*storage), ElementsAre(Pair("a", "2")));
}

TEST_F(RocksDbStorageTest, ErasesAPrefixAndNothingElse) {
  const std::string job("job\0", 4);
  const std::unique_ptr<Storage> storage = Open();
  ASSERT_TRUE(storage
                  ->Write({{job + "ka", "1"},
                           {job + "\xff\xff", "2"},
                           {job, "3"},
                           {std::string("job1\0k", 6), "4"},
                           {"jo", "5"}})
                  .ok());
  ASSERT_TRUE(storage->ErasePrefix(job).ok());
  EXPECT_THAT(All(*storage), ElementsAre(Pair("jo", "5"),
                                         Pair(std::string("job1\0k", 6), "4")));
}

TEST_F(RocksDbStorageTest, LoadStopsAtTheFirstError) {
  const std::unique_ptr<Storage> storage = Open();
  ASSERT_TRUE(storage->Write({{"a", "1"}, {"b", "2"}}).ok());
  int seen = 0;
  const absl::Status status =
      storage->Load([&](absl::string_view, absl::string_view) {
        ++seen;
        return absl::DataLossError("no");
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(seen, 1);
}

TEST_F(RocksDbStorageTest, ASecondProcessIsRefused) {
  const std::unique_ptr<Storage> first = Open();
  const auto second = OpenRocksDb(path_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(),
              AllOf(HasSubstr(path_), HasSubstr("another coordinator")));
}

TEST_F(RocksDbStorageTest, AnotherFormatIsRefused) {
  std::unique_ptr<Storage> storage = Open();
  ASSERT_TRUE(storage
                  ->Write({{"\xff"
                            "format",
                            "muster 3"}})
                  .ok());
  storage.reset();
  const auto reopened = OpenRocksDb(path_);
  EXPECT_EQ(reopened.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(reopened.status().message(), HasSubstr("muster 3"));
}

TEST_F(RocksDbStorageTest, AFolderThatCannotBeMadeIsAnErrorThatNamesIt) {
  const auto storage = OpenRocksDb("/proc/nothing/here");
  EXPECT_EQ(storage.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(storage.status().message(), HasSubstr("/proc/nothing/here"));
}

TEST_F(RocksDbStorageTest, ANewDatabaseIsEmpty) {
  const std::unique_ptr<Storage> storage = Open();
  EXPECT_THAT(All(*storage), IsEmpty());
}

}  // namespace
}  // namespace muster::coordinator
