// Tests of FileStore beyond store_conformance_test: several processes, their
// deaths, and the end.

#include "muster/file_store.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "client/testing/processes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::Process;

constexpr seconds kLong{20};

class FileStoreTest : public ::testing::Test {
 protected:
  FileStoreTest() { unlink(path_.c_str()); }
  ~FileStoreTest() override { unlink(path_.c_str()); }

  std::unique_ptr<Process> Start() {
    auto process = std::make_unique<Process>(
        std::vector<std::string>{"client/testing/file_store", path_},
        std::map<std::string, std::string>{});
    EXPECT_EQ(process->ReadLine(kLong), "open");
    return process;
  }

  bool Exists() const { return access(path_.c_str(), F_OK) == 0; }

  const std::string path_ = ::testing::TempDir() + "/file_store";
};

TEST_F(FileStoreTest, ProcessesMeet) {
  const auto process = Start();
  FileStore store(path_);
  EXPECT_EQ(store.OpenStores(), 2);
  process->WriteLine("get k 20000");
  store.Set("k", "v");
  EXPECT_EQ(process->ReadLine(kLong), "v");
  process->WriteLine("set answer 42");
  store.SetTimeout(kLong);
  EXPECT_EQ(store.Get("answer"), "42");
}

TEST_F(FileStoreTest, CountersOfProcessesAreExact) {
  std::vector<std::unique_ptr<Process>> processes;
  processes.reserve(4);
  for (int i = 0; i < 4; ++i) processes.push_back(Start());
  for (const auto& process : processes) process->WriteLine("add n 500");
  for (const auto& process : processes) {
    EXPECT_NE(process->ReadLine(kLong), "");
  }
  EXPECT_EQ(FileStore(path_).Add("n", 0), 2000);
}

TEST_F(FileStoreTest, AProcessThatIsKilledWhileItWritesHarmsNobody) {
  FileStore store(path_);
  for (int i = 0; i < 10; ++i) {
    const auto process = Start();
    process->WriteLine("fill large now");
    EXPECT_EQ(process->ReadLine(kLong), "filling");
    EXPECT_EQ(store.Get("large").size(), size_t{1} << 12);
    process->Signal(SIGKILL);
    EXPECT_EQ(process->Wait(kLong).signal, SIGKILL);
    store.Set("k", std::to_string(i));
    EXPECT_EQ(FileStore(path_).Get("k"), std::to_string(i));
    EXPECT_EQ(store.Get("large").size(), size_t{1} << 12);
  }
}

TEST_F(FileStoreTest, TheLastOfAllRemovesTheFile) {
  auto first = std::make_unique<FileStore>(path_, 2);
  first = nullptr;
  // The second process may come later.
  EXPECT_TRUE(Exists());
  auto second = std::make_unique<FileStore>(path_, 2);
  auto third = std::make_unique<FileStore>(path_, 2);
  EXPECT_EQ(second->OpenStores(), 2);
  const std::shared_ptr<Store> clone = second->Clone();
  third = nullptr;
  second = nullptr;
  EXPECT_TRUE(Exists());
  clone->Set("k", "v");
}

TEST_F(FileStoreTest, WithoutAWorldSizeTheFileStays) {
  { FileStore store(path_); }
  EXPECT_TRUE(Exists());
  { FileStore store(path_, 0); }
  EXPECT_FALSE(Exists());
}

TEST_F(FileStoreTest, AFileThatAKilledProcessUsedStays) {
  {
    FileStore store(path_, 1);
    const auto process = Start();
    process->Signal(SIGKILL);
    process->Wait(kLong);
  }
  EXPECT_TRUE(Exists());
  EXPECT_EQ(FileStore(path_).OpenStores(), 2);
}

TEST_F(FileStoreTest, ABadWorldSizeIsAnError) {
  try {
    FileStore store(path_, -2);
    FAIL();
  } catch (const DistStoreError& error) {
    EXPECT_EQ(error.status(),
              InvalidArgumentError(
                  "FileStore: world_size must be at least 0, or -1 for a file "
                  "that nobody removes, but was -2"));
  }
}

TEST_F(FileStoreTest, BadPathsAreErrors) {
  EXPECT_THROW(FileStore(""), DistStoreError);
  try {
    FileStore store("/nonexistent/file");
    FAIL();
  } catch (const DistStoreError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kNotFound);
    EXPECT_THAT(error.what(), HasSubstr("\"/nonexistent/file\""));
  }
}

}  // namespace
}  // namespace muster
