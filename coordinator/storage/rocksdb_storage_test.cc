#include "coordinator/storage/rocksdb_storage.h"

#include <stdlib.h>

#include <map>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
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
                            "muster 2"}})
                  .ok());
  storage.reset();
  const auto reopened = OpenRocksDb(path_);
  EXPECT_EQ(reopened.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(reopened.status().message(), HasSubstr("muster 2"));
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
