#include "client/control/log_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Access = LogFile::Access;

Deadline Soon() { return Deadline::After(std::chrono::seconds(20), "test"); }

class LogFileTest : public ::testing::Test {
 protected:
  LogFileTest() { unlink(path_.c_str()); }
  ~LogFileTest() override { unlink(path_.c_str()); }

  std::unique_ptr<LogFile> Open() {
    auto file = LogFile::Open(path_, Soon());
    EXPECT_TRUE(file.ok()) << file.status();
    (*file)->Unlock();
    return *std::move(file);
  }

  // Returns the new records as "kind key=value".
  static std::vector<std::string> Read(LogFile& file) {
    std::vector<std::string> records;
    EXPECT_TRUE(file.Lock(Access::kShared, Soon()).ok());
    const Status read = file.Replay([&](const LogFile::Record& record) {
      records.push_back(std::string(1, record.kind) + " " + record.key + "=" +
                        record.value);
    });
    file.Unlock();
    EXPECT_TRUE(read.ok()) << read;
    return records;
  }

  static void Append(LogFile& file, const std::string& key,
                     const std::string& value) {
    ASSERT_TRUE(file.Lock(Access::kExclusive, Soon()).ok());
    ASSERT_TRUE(file.Replay([](const LogFile::Record&) {}).ok());
    ASSERT_TRUE(file.Append({'s', key, value}).ok());
    file.Unlock();
  }

  std::string Contents() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  void Write(const std::string& contents) const {
    std::ofstream(path_, std::ios::binary) << contents;
  }

  // Counts the descriptors of this process that refer to the file.
  int OpenDescriptors() const {
    int count = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      if (std::filesystem::read_symlink(entry.path(), gone) == path_) ++count;
    }
    return count;
  }

  const std::string path_ = ::testing::TempDir() + "/log_file";
};

TEST_F(LogFileTest, EverybodyReadsAllRecordsInOrder) {
  const auto a = Open();
  const auto b = Open();
  Append(*a, "k", std::string("\0\n", 2));
  Append(*b, "", "");
  const std::string first("s k=\0\n", 6);
  EXPECT_THAT(Read(*a), ElementsAre(first, "s ="));
  EXPECT_THAT(Read(*a), IsEmpty());
  EXPECT_THAT(Read(*b), ElementsAre("s ="));
  EXPECT_THAT(Read(*Open()), ElementsAre(first, "s ="));
}

TEST_F(LogFileTest, APartOfARecordIsNothingAndTheNextWriterCutsItOff) {
  Append(*Open(), "first", "1");
  const std::string one = Contents();
  Append(*Open(), "second", "2");
  const std::string two = Contents();
  // The process was killed after it had written this many bytes.
  for (size_t bytes = 0; bytes < two.size(); ++bytes) {
    SCOPED_TRACE(bytes);
    Write(two.substr(0, bytes));
    const auto reader = Open();
    const bool has_first = bytes >= one.size();
    EXPECT_EQ(Read(*reader).size(), has_first ? 1U : 0U);
    Append(*Open(), "third", "3");
    EXPECT_THAT(Read(*reader), ElementsAre("s third=3"));
    EXPECT_EQ(Read(*Open()).size(), has_first ? 2U : 1U);
  }
}

TEST_F(LogFileTest, ALastRecordThatIsHalfOnTheDiskIsNothing) {
  Append(*Open(), "first", "1");
  const size_t one = Contents().size();
  Append(*Open(), "second", "a long value");
  std::string torn = Contents();
  // The length is written, but not the last bytes.
  std::fill(torn.end() - 4, torn.end(), '\0');
  Write(torn);
  EXPECT_THAT(Read(*Open()), ElementsAre("s first=1"));
  Append(*Open(), "third", "");
  EXPECT_THAT(Read(*Open()), ElementsAre("s first=1", "s third="));
  EXPECT_LT(Contents().size(), torn.size());
  EXPECT_GT(Contents().size(), one);
}

TEST_F(LogFileTest, DamageInTheMiddleIsAnErrorThatTellsWhere) {
  Append(*Open(), "first", "1");
  const size_t one = Contents().size();
  Append(*Open(), "second", "2");
  std::string damaged = Contents();
  damaged[one - 1] ^= 1;
  Write(damaged);
  const Status status = Open()->Replay([](const LogFile::Record&) {});
  EXPECT_EQ(status,
            DataLossError("file \"" + path_ + "\": it is damaged at byte 20"));
}

TEST_F(LogFileTest, AFileOfSomebodyElsesIsNotTouched) {
  Write("precious data");
  const Status status = Open()->Replay([](const LogFile::Record&) {});
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(Contents(), "precious data");
}

TEST_F(LogFileTest, AFileThatBecomesShorterIsAnError) {
  const auto file = Open();
  Append(*file, "k", "v");
  EXPECT_THAT(Read(*file), ElementsAre("s k=v"));
  Write("");
  EXPECT_EQ(file->Replay([](const LogFile::Record&) {}).code(),
            StatusCode::kDataLoss);
}

TEST_F(LogFileTest, WhoeverWaitsForTheLockGivesUpAtTheDeadline) {
  const auto file = Open();
  const int fd = open(path_.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(fd, LOCK_SH), 0);
  const Deadline deadline =
      Deadline::After(std::chrono::milliseconds(20), "the option");
  EXPECT_TRUE(file->Lock(Access::kShared, deadline).ok());
  file->Unlock();
  EXPECT_EQ(file->Lock(Access::kExclusive, deadline),
            DeadlineExceededError(
                "file \"" + path_ +
                "\": timeout after 20ms, another process keeps it locked "
                "(timeout: the option)"));
  ASSERT_EQ(flock(fd, LOCK_UN), 0);
  EXPECT_TRUE(file->Lock(Access::kExclusive, deadline).ok());
  close(fd);
}

TEST_F(LogFileTest, OpenNamesThePathAndTheCause) {
  const auto file = LogFile::Open("/nonexistent/file", Soon());
  EXPECT_EQ(file.status(),
            NotFoundError("file \"/nonexistent/file\": cannot open it: no "
                          "such file or directory"));
}

TEST_F(LogFileTest, RemoveTakesTheOwnFileOnly) {
  const auto old = Open();
  old->Remove();
  EXPECT_NE(access(path_.c_str(), F_OK), 0);
  const auto fresh = Open();
  Append(*fresh, "k", "v");
  old->Remove();
  EXPECT_THAT(Read(*Open()), ElementsAre("s k=v"));
}

TEST_F(LogFileTest, WhoOpensAFileThatIsBeingRemovedGetsTheNextOne) {
  auto last = LogFile::Open(path_, Soon());
  ASSERT_TRUE(last.ok()) << last.status();
  auto opening = std::async(std::launch::async, [this] { return Open(); });
  // The other thread has opened the file and waits for the lock.
  while (OpenDescriptors() < 2) {
  }
  (*last)->Remove();
  (*last)->Unlock();
  Append(*opening.get(), "k", "v");
  EXPECT_THAT(Read(*Open()), ElementsAre("s k=v"));
}

TEST_F(LogFileTest, AChangeIsSeenAndSoIsTheEndOfTheWait) {
  const auto file = Open();
  FileChange change(path_);
  Append(*file, "k", "v");
  change.Await(Clock::now() + std::chrono::hours(1));
  const Instant before = Clock::now();
  change.Await(before + std::chrono::milliseconds(2));
  EXPECT_GE(Clock::now(), before + std::chrono::milliseconds(2));
}

}  // namespace
}  // namespace muster::internal
