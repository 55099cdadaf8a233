#include "dataplane/cpu/shm/segment.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::dataplane::shm {
namespace {

using ::testing::HasSubstr;

constexpr size_t kBytes = 1 << 20;

int CountMappings(const std::string& name) {
  std::ifstream file("/proc/self/maps");
  std::string line;
  int found = 0;
  while (std::getline(file, line)) {
    found += line.find(name) != std::string::npos;
  }
  return found;
}

TEST(SegmentTest, AnotherProcessSeesTheSameMemory) {
  auto made = Segment::Create(kBytes);
  ASSERT_TRUE(made.ok()) << made.status();
  char* const memory = static_cast<char*>((*made)->memory());
  EXPECT_EQ(memory[0], 0);
  EXPECT_EQ(memory[kBytes - 1], 0);
  memory[7] = 'a';
  const Segment::Location place = (*made)->place();
  const pid_t child = fork();
  if (child == 0) {
    // Drop the mapping that was inherited by fork.
    made->reset();
    auto opened = Segment::Open(place, kBytes);
    if (!opened.ok()) _exit(1);
    char* const theirs = static_cast<char*>((*opened)->memory());
    const bool seen = theirs[7] == 'a';
    theirs[kBytes - 1] = 'b';
    _exit(seen ? 0 : 2);
  }
  int how = 0;
  ASSERT_EQ(waitpid(child, &how, 0), child);
  EXPECT_EQ(how, 0);
  EXPECT_EQ(memory[kBytes - 1], 'b');
}

TEST(SegmentTest, IsThereUntilTheLastOneLetsGo) {
  auto made = Segment::Create(kBytes);
  ASSERT_TRUE(made.ok()) << made.status();
  auto opened = Segment::Open((*made)->place(), kBytes);
  ASSERT_TRUE(opened.ok()) << opened.status();
  static_cast<char*>((*made)->memory())[0] = 'a';
  EXPECT_EQ(CountMappings("memfd:muster-"), 2);
  made->reset();
  EXPECT_EQ(static_cast<char*>((*opened)->memory())[0], 'a');
  opened->reset();
  EXPECT_EQ(CountMappings("memfd:muster-"), 0);
}

TEST(SegmentTest, WhatIsNotReservedTakesNoMemory) {
  constexpr size_t kPages = 256;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto made = Segment::Create(kPages * page, /*file=*/nullptr, page);
  ASSERT_TRUE(made.ok()) << made.status();
  char* const memory = static_cast<char*>((*made)->memory());
  const auto pages_there = [&] {
    struct stat state = {};
    EXPECT_EQ(fstat((*made)->file()->descriptor, &state), 0);
    return static_cast<size_t>(state.st_blocks) * 512 / page;
  };
  EXPECT_EQ(pages_there(), 1);
  // The range touches three pages.
  EXPECT_TRUE((*made)->Reserve(10 * page - 1, page + 2).ok());
  EXPECT_EQ(pages_there(), 4);
  memory[11 * page] = 'a';
  EXPECT_TRUE((*made)->Reserve(10 * page - 1, page + 2).ok());
  EXPECT_EQ(memory[11 * page], 'a');
  EXPECT_EQ(pages_there(), 4);
  // An impossible size is refused.
  EXPECT_EQ((*made)->Reserve(0, size_t{1} << 60).code(),
            StatusCode::kResourceExhausted);
}

// Writes to every page. The sanitizers would touch pages of their own.
[[gnu::no_sanitize("address", "thread")]] void Touch(volatile char* memory,
                                                     size_t bytes,
                                                     size_t page) {
  for (size_t at = 0; at < bytes; at += page) memory[at] = 1;
}

TEST(SegmentTest, PagesAreMappedBeforeTheyAreTouched) {
  constexpr size_t kMapped = 8 << 20;
  auto made = Segment::Create(2 * kMapped);
  ASSERT_TRUE(made.ok()) << made.status();
  (*made)->MapPages(kMapped);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char* const memory = static_cast<char*>((*made)->memory());
  const auto faults_of = [&](size_t begin) {
    rusage before = {};
    rusage after = {};
    getrusage(RUSAGE_SELF, &before);
    Touch(memory + begin, kMapped, page);
    getrusage(RUSAGE_SELF, &after);
    return after.ru_minflt - before.ru_minflt;
  };
  const auto pages = static_cast<int64_t>(kMapped / page);
  EXPECT_LT(faults_of(0), pages / 4);
  EXPECT_GT(faults_of(kMapped), pages / 2);
}

TEST(SegmentTest, OnlyWhatIsMeantIsOpened) {
  auto made = Segment::Create(kBytes);
  ASSERT_TRUE(made.ok()) << made.status();
  Segment::Location place = (*made)->place();
  ++place.nonce;
  EXPECT_EQ(Segment::Open(place, kBytes).status().code(),
            StatusCode::kNotFound);
  --place.nonce;
  EXPECT_EQ(Segment::Open(place, kBytes / 2).status().code(),
            StatusCode::kNotFound);
  (*made)->CloseDescriptor();
  const Status closed = Segment::Open(place, kBytes).status();
  EXPECT_EQ(closed.code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(closed.message()),
              HasSubstr(absl::StrCat("/proc/", getpid(), "/fd/")));
  EXPECT_EQ(Segment::Open({}, kBytes).status().code(), StatusCode::kNotFound);
}

TEST(SegmentTest, WhatCannotBeHadIsAnErrorThatSaysHowMuch) {
  rlimit sizes = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &sizes), 0);
  rlimit small = sizes;
  small.rlim_cur = kBytes / 2;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = Segment::Create(kBytes).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &sizes), 0);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("shared memory of 1048576 bytes: RLIMIT_FSIZE (ulimit "
                        "-f) is 524288 bytes"));
  const Status huge = Segment::Create(size_t{1} << 60).status();
  EXPECT_EQ(huge.code(), StatusCode::kResourceExhausted) << huge;
  EXPECT_THAT(
      std::string(huge.message()),
      HasSubstr("shared memory of 1152921504606846976 bytes: there are "));
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const Status full = Segment::Create(kBytes).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted) << full;
}

// A process without free mappings gets no memory of any kind.
TEST(SegmentTest, NotAllMappingsThatAProcessMayHaveAreTaken) {
  int64_t most = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> most;
  ASSERT_GT(most, 1000);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto first = Segment::Create(page);
  ASSERT_TRUE(first.ok()) << first.status();
  std::vector<std::unique_ptr<Segment>> pieces;
  Status status;
  while (status.ok() && static_cast<int64_t>(pieces.size()) < most) {
    auto piece = Segment::Create(page, (*first)->file());
    status = piece.status();
    if (piece.ok()) pieces.push_back(*std::move(piece));
  }
  const int64_t count = most / 2 / 5;
  EXPECT_EQ(static_cast<int64_t>(pieces.size()) + 1, count);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(status.message()),
            absl::StrCat(
                "shared memory of ", page, " bytes: this process has ", count,
                " pieces of it, whose mappings are half of those that it "
                "may have (vm.max_map_count is ",
                most, "): free some, or have that raised"));
  // The failed segment leaves no memory in the file.
  struct stat file = {};
  ASSERT_EQ(fstat((*first)->file()->descriptor, &file), 0);
  EXPECT_EQ(file.st_blocks * 512, count * static_cast<int64_t>(page));
  pieces.pop_back();
  EXPECT_TRUE(Segment::Create(page, (*first)->file()).ok());
}

}  // namespace
}  // namespace muster::dataplane::shm
