#include "coordinator/storage/rocksdb_storage.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

// Files that were synced to the disk. RocksDB's calls come here, because the
// program's own functions take precedence over those of the C library.
std::vector<std::string> synced;
// Tests that only end the process need no real sync.
bool sync_takes_effect = true;

int Sync(int fd) {
  if (!sync_takes_effect) return 0;
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
    StatusOr<std::unique_ptr<Storage>> storage = OpenRocksDb(path_);
    EXPECT_TRUE(storage.ok()) << storage.status();
    return storage.ok() ? *std::move(storage) : nullptr;
  }

  static std::map<std::string, std::string> All(Storage& storage) {
    std::map<std::string, std::string> all;
    const Status status =
        storage.Load([&](absl::string_view key, absl::string_view value) {
          all[std::string(key)] = std::string(value);
          return OkStatus();
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

// A killed process loses nothing that the kernel has, so only this shows the
// sync.
TEST_F(RocksDbStorageTest, SyncPutsTheLogOnTheDisk) {
  const std::unique_ptr<Storage> storage = Open();
  ASSERT_TRUE(storage->Write({{"a", "1"}}).ok());
  synced.clear();
  ASSERT_TRUE(storage->Sync().ok());
  EXPECT_THAT(synced, Contains(EndsWith(".log")));
}

// A crash of the machine in between leaves a whole file or none.
TEST_F(RocksDbStorageTest, TheMarkIsOnTheDiskBeforeItHasItsName) {
  synced.clear();
  Open();
  const std::string folder = std::filesystem::canonical(path_);
  const auto mark =
      std::find(synced.begin(), synced.end(), folder + "/SYNCED.tmp");
  ASSERT_NE(mark, synced.end());
  EXPECT_NE(std::find(mark, synced.end(), folder), synced.end());
  EXPECT_FALSE(std::filesystem::exists(path_ + "/SYNCED.tmp"));
}

// RocksDB itself would end the process.
TEST_F(RocksDbStorageTest, ADiskWithoutRoomIsAnError) {
  Open();
  const auto ignored = signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 64 << 10;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status full = OpenRocksDb(path_).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, ignored);
  EXPECT_EQ(full.code(), StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(full.message()),
      AllOf(HasSubstr(path_), HasSubstr("that a start needs: file too")));
  EXPECT_NE(Open(), nullptr);
}

TEST_F(RocksDbStorageTest, AFolderThatWasRemovedTakesNothing) {
  const std::unique_ptr<Storage> storage = Open();
  ASSERT_TRUE(storage->Write({{"a", "1"}}).ok());
  ASSERT_EQ(rename(path_.c_str(), (path_ + ".gone").c_str()), 0);
  const Status written = storage->Write({{"b", "2"}});
  EXPECT_EQ(written.code(), StatusCode::kDataLoss);
  EXPECT_THAT(std::string(written.message()),
              AllOf(HasSubstr(path_), HasSubstr("removed or replaced")));
  // A new folder at the same path is not the same folder.
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
  const Status status =
      storage->Load([&](absl::string_view, absl::string_view) {
        ++seen;
        return DataLossError("no");
      });
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(seen, 1);
}

TEST_F(RocksDbStorageTest, ASecondProcessIsRefused) {
  const std::unique_ptr<Storage> first = Open();
  const auto second = OpenRocksDb(path_);
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
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
  EXPECT_EQ(reopened.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(reopened.status().message(), HasSubstr("muster 3"));
}

TEST_F(RocksDbStorageTest, AFolderThatCannotBeMadeIsAnErrorThatNamesIt) {
  const auto storage = OpenRocksDb("/proc/nothing/here");
  EXPECT_EQ(storage.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(storage.status().message(), HasSubstr("/proc/nothing/here"));
}

TEST_F(RocksDbStorageTest, AWordInThePathIsNotTakenForAnotherCoordinator) {
  const auto storage = OpenRocksDb("/proc/nothing/block storage");
  EXPECT_EQ(storage.status().code(), StatusCode::kUnavailable);
}

// None of these files belongs to a database.
TEST_F(RocksDbStorageTest, AFolderWithOtherFilesIsNew) {
  for (const char* file :
       {"coordinator.log", "0a.log", ".log", "x.sst", "OLD_SYNCED"}) {
    std::ofstream(path_ + "/" + file) << "hi";
  }
  std::ofstream(path_ + "/SYNCED") << "";
  ASSERT_NE(Open(), nullptr);
  EXPECT_TRUE(std::filesystem::exists(path_ + "/coordinator.log"));
  EXPECT_NE(Open(), nullptr);
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void WriteFile(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Returns the manifest that CURRENT names.
std::filesystem::path ManifestIn(const std::string& folder) {
  std::string name;
  std::ifstream(folder + "/CURRENT") >> name;
  return folder + "/" + name;
}

// RocksDB begins another manifest after a failed write to the old one.
TEST_F(RocksDbStorageTest, AnotherListOfFilesIsFoundWhileRunning) {
  std::unique_ptr<Storage> storage = Open();
  ASSERT_TRUE(storage->Write({{"a", "1"}}).ok());
  const std::filesystem::path before = ManifestIn(path_);
  std::filesystem::rename(before, path_ + "/MANIFEST-000099");
  WriteFile(path_ + "/CURRENT", "MANIFEST-000099\n");
  EXPECT_EQ(storage->Sync(), OkStatus());
  ASSERT_TRUE(storage->Write({{"b", "2"}}).ok());
  EXPECT_EQ(storage->Sync(), OkStatus());
  storage.reset();
  EXPECT_THAT(ReadFile(path_ + "/SYNCED"), HasSubstr(" MANIFEST-000099 "));
  storage = Open();
  ASSERT_NE(storage, nullptr);
  EXPECT_THAT(All(*storage), ElementsAre(Pair("a", "1"), Pair("b", "2")));
  storage.reset();
  // A missing file that CURRENT names is noticed, too.
  storage = Open();
  std::filesystem::remove(ManifestIn(path_));
  EXPECT_EQ(storage->Sync().code(), StatusCode::kUnavailable);
}

// The mark's checksum continues from its last end.
TEST_F(RocksDbStorageTest, AListOfFilesThatGrewWhileRunningIsNoDamage) {
  std::unique_ptr<Storage> storage = Open();
  const std::filesystem::path manifest = ManifestIn(path_);
  const auto size = std::filesystem::file_size(manifest);
  // Writes more than RocksDB keeps in memory, until it creates table files. It
  // stops accepting writes while it is behind.
  for (int i = 0; std::filesystem::file_size(manifest) == size; ++i) {
    ASSERT_TRUE(storage->Write({{"key", std::string(1 << 20, 'v')}}).ok());
    ASSERT_TRUE(storage->Sync().ok());
  }
  ASSERT_TRUE(storage->Write({{"key", "last"}}).ok());
  ASSERT_TRUE(storage->Sync().ok());
  storage.reset();
  storage = Open();
  ASSERT_NE(storage, nullptr);
  EXPECT_THAT(All(*storage), ElementsAre(Pair("key", "last")));
  EXPECT_NE(ManifestIn(path_), manifest);
}

// A folder as a killed process leaves it, with acknowledged changes in a table
// and in a log.
class DamageTest : public RocksDbStorageTest {
 protected:
  DamageTest() {
    sync_takes_effect = false;
    // The next start moves the log's changes into a table.
    Change(Open().get(), 0, 10);
    const std::unique_ptr<Storage> storage = Open();
    Change(storage.get(), 5, 25);
    // An unacknowledged change.
    Save("synced");
    EXPECT_TRUE(storage->Write({{"unsynced", std::string(100, 'u')}}).ok());
    Save("unsynced");
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      if (entry.path().extension() == ".log") log_ = entry.path().filename();
    }
  }

  ~DamageTest() override { sync_takes_effect = true; }

  // Writes one change at a time, like the commits of single calls.
  void Change(Storage* storage, int from, int to) {
    for (int i = from; i < to; ++i) {
      const std::string key = "key" + std::to_string(i);
      acknowledged_[key] = "value" + std::to_string(from + i);
      EXPECT_TRUE(storage->Write({{key, acknowledged_[key]}}).ok());
      EXPECT_TRUE(storage->Sync().ok());
    }
  }

  std::string Folder(const std::string& name) const {
    return path_ + "." + name;
  }

  void Save(const std::string& name) {
    std::filesystem::remove_all(Folder(name));
    std::filesystem::copy(path_, Folder(name));
  }

  // Opens `folder`. Returns whether it is refused as damaged; otherwise all
  // acknowledged changes must be there.
  bool Refused(const std::string& folder) {
    const StatusOr<std::unique_ptr<Storage>> storage = OpenRocksDb(folder);
    if (!storage.ok()) {
      EXPECT_EQ(storage.status().code(), StatusCode::kDataLoss);
      EXPECT_THAT(std::string(storage.status().message()),
                  AllOf(HasSubstr(folder), HasSubstr("copy of the whole")));
      return true;
    }
    std::map<std::string, std::string> all = All(**storage);
    all.erase("unsynced");
    EXPECT_EQ(all, acknowledged_);
    return false;
  }

  // Applies `damage` to `file` of the synced folder and opens it.
  template <typename Damage>
  bool RefusedWith(const std::string& file, const Damage& damage) {
    const std::string folder = Folder("damaged");
    std::filesystem::remove_all(folder);
    std::filesystem::copy(Folder("synced"), folder);
    damage(folder + "/" + file);
    const bool refused = Refused(folder);
    // A second start gives the same result.
    EXPECT_EQ(Refused(folder), refused);
    return refused;
  }

  std::string log_;
  std::map<std::string, std::string> acknowledged_;
};

// Overwrites `count` bytes at `at` with different ones.
auto Overwrite(size_t at, size_t count) {
  return [=](const std::filesystem::path& path) {
    std::string bytes = ReadFile(path);
    for (size_t i = at; i < std::min(at + count, bytes.size()); ++i) {
      bytes[i] = static_cast<char>(bytes[i] ^ 0x55);
    }
    WriteFile(path, bytes);
  };
}

auto Zero(size_t at) {
  return [=](const std::filesystem::path& path) {
    std::string bytes = ReadFile(path);
    std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.end(),
              '\0');
    WriteFile(path, bytes);
  };
}

auto Cut(size_t bytes) {
  return [=](const std::filesystem::path& path) {
    std::filesystem::resize_file(path, bytes);
  };
}

void Remove(const std::filesystem::path& path) {
  std::filesystem::remove(path);
}

TEST_F(DamageTest, NoDamageOfAFileLosesWhatWasAcknowledged) {
  int tables = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(Folder("synced"))) {
    const std::string file = entry.path().filename();
    SCOPED_TRACE(file);
    const size_t size = entry.file_size();
    const bool table = entry.path().extension() == ".sst";
    const bool needed = table || file == log_ || file == "CURRENT" ||
                        file.rfind("MANIFEST-", 0) == 0;
    if (table) ++tables;
    EXPECT_EQ(RefusedWith(file, Remove), needed);
    if (size == 0) continue;
    for (const size_t at : {size_t{0}, size / 2, size - 3}) {
      SCOPED_TRACE(at);
      EXPECT_TRUE(RefusedWith(file, Overwrite(at, 3)) || !needed || table);
      EXPECT_TRUE(RefusedWith(file, Zero(at)) || !needed || table);
      EXPECT_TRUE(RefusedWith(file, Cut(at)) || !needed);
    }
  }
  EXPECT_GT(tables, 0);
}

// A wrong length of a change makes the log look as if it ended there.
TEST_F(DamageTest, NoByteOfTheLogIsWrong) {
  const size_t size = std::filesystem::file_size(Folder("synced") + "/" + log_);
  for (size_t at = 0; at < size; at += 7) {
    SCOPED_TRACE(at);
    EXPECT_TRUE(RefusedWith(log_, Overwrite(at, 1)));
  }
}

// The process ended while it wrote, before the acknowledgement.
TEST_F(DamageTest, AnEndThatNobodyWasToldOfIsNoDamage) {
  const size_t synced =
      std::filesystem::file_size(Folder("synced") + "/" + log_);
  const size_t written =
      std::filesystem::file_size(Folder("unsynced") + "/" + log_);
  ASSERT_LT(synced + 100, written);
  for (size_t size = synced; size < written; size += 10) {
    SCOPED_TRACE(size);
    EXPECT_FALSE(RefusedWith(log_, [&](const std::filesystem::path& path) {
      WriteFile(path,
                ReadFile(Folder("unsynced") + "/" + log_).substr(0, size));
    }));
    // Space that the file system allocated and that was never written.
    EXPECT_FALSE(RefusedWith(log_, [&](const std::filesystem::path& path) {
      std::string bytes =
          ReadFile(Folder("unsynced") + "/" + log_).substr(0, size);
      bytes.resize(written, '\0');
      WriteFile(path, bytes);
    }));
  }
}

TEST_F(DamageTest, TheErrorNamesTheFile) {
  for (const auto& entry :
       std::filesystem::directory_iterator(Folder("synced"))) {
    const std::string file = entry.path().filename();
    const bool list = file.rfind("MANIFEST-", 0) == 0;
    const bool table = entry.path().extension() == ".sst";
    if (!list && !table && file != log_) continue;
    EXPECT_TRUE(
        RefusedWith(file, Overwrite(table ? 0 : entry.file_size() / 2, 3)));
    EXPECT_THAT(std::string(OpenRocksDb(Folder("damaged")).status().message()),
                HasSubstr(file));
  }
}

TEST_F(DamageTest, ADamagedMarkAloneMayBeRemoved) {
  EXPECT_TRUE(RefusedWith("SYNCED", Zero(0)));
  EXPECT_THAT(
      std::string(OpenRocksDb(Folder("damaged")).status().message()),
      AllOf(HasSubstr("SYNCED is damaged"), HasSubstr("remove it alone")));
  Remove(Folder("damaged") + "/SYNCED");
  EXPECT_FALSE(Refused(Folder("damaged")));
}

// The folder has no record of where its log ends.
TEST_F(DamageTest, AFolderOfAnEarlierVersionIsTakenOver) {
  EXPECT_FALSE(RefusedWith("SYNCED", Remove));
  EXPECT_TRUE(std::filesystem::exists(Folder("damaged") + "/SYNCED"));
}

// However often it starts, there is one log.
TEST_F(RocksDbStorageTest, LogsDoNotGather) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Open()->Write({{"a", std::to_string(i)}}).ok());
  }
  const std::unique_ptr<Storage> storage = Open();
  int logs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    if (entry.path().extension() == ".log") ++logs;
  }
  EXPECT_EQ(logs, 1);
}

TEST_F(RocksDbStorageTest, ANewDatabaseIsEmpty) {
  const std::unique_ptr<Storage> storage = Open();
  EXPECT_THAT(All(*storage), IsEmpty());
}

}  // namespace
}  // namespace muster::coordinator
