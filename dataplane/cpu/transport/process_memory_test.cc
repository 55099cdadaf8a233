#include "dataplane/cpu/transport/process_memory.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "dataplane/culprit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr uint64_t kValue = 0x1234567890abcdef;

uint64_t ToAddress(const void* data) {
  return reinterpret_cast<uint64_t>(data);
}

TEST(PeerMemoryTest, AnotherProcessIsReadUntilItClearsItsMark) {
  Mark mark(kValue);
  std::string text = "of the parent";
  int go_on[2];
  int said[2];
  ASSERT_EQ(pipe(go_on), 0);
  ASSERT_EQ(pipe(said), 0);
  const pid_t child = fork();
  if (child == 0) {
    // The same addresses in another process.
    text = "of the child!";
    char byte = 0;
    bool good = write(said[1], "1", 1) == 1 && read(go_on[0], &byte, 1) == 1;
    mark.Clear();
    good &= write(said[1], "2", 1) == 1 && read(go_on[0], &byte, 1) == 1;
    _exit(good ? 0 : 1);
  }
  MarkPlace place = mark.place();
  place.process = child;
  const PeerMemory memory(place, kValue);
  char byte = 0;
  ASSERT_EQ(read(said[0], &byte, 1), 1);
  EXPECT_TRUE(memory.IsReadable());
  std::string copy(text.size(), ' ');
  EXPECT_TRUE(memory.Read(ToAddress(text.data()), copy.data(), copy.size()));
  EXPECT_EQ(copy, "of the child!");
  EXPECT_EQ(write(go_on[1], "1", 1), 1);
  ASSERT_EQ(read(said[0], &byte, 1), 1);
  EXPECT_FALSE(memory.IsReadable());
  EXPECT_FALSE(memory.Read(ToAddress(text.data()), copy.data(), copy.size()));
  EXPECT_EQ(write(go_on[1], "2", 1), 1);
  int state = 0;
  EXPECT_EQ(waitpid(child, &state, 0), child);
  EXPECT_EQ(state, 0);
  EXPECT_FALSE(memory.IsReadable());
  for (const int end : {go_on[0], go_on[1], said[0], said[1]}) close(end);
}

TEST(PeerMemoryTest, AProcessWithAnotherMarkIsNotBelieved) {
  const Mark mark(kValue);
  const char byte = 'x';
  char copy = 0;
  EXPECT_TRUE(
      PeerMemory(mark.place(), kValue).Read(ToAddress(&byte), &copy, 1));
  EXPECT_EQ(copy, 'x');
  EXPECT_FALSE(PeerMemory(mark.place(), kValue + 1).IsReadable());
  EXPECT_FALSE(PeerMemory(MarkPlace(), kValue).IsReadable());
}

TEST(PeerMemoryTest, WhatIsNotThereCannotBeRead) {
  const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto* const pages =
      static_cast<char*>(mmap(nullptr, 2 * page_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  EXPECT_TRUE(CanBeRead(pages, 2 * page_bytes));
  EXPECT_TRUE(CanBeRead(pages, 1));
  ASSERT_EQ(munmap(pages + page_bytes, page_bytes), 0);
  EXPECT_TRUE(CanBeRead(pages, page_bytes));
  EXPECT_FALSE(CanBeRead(pages, page_bytes + 1));
  const Mark mark(kValue);
  std::string copy(2 * page_bytes, ' ');
  const PeerMemory memory(mark.place(), kValue);
  EXPECT_TRUE(memory.Read(ToAddress(pages), copy.data(), page_bytes));
  EXPECT_FALSE(memory.Read(ToAddress(pages), copy.data(), copy.size()));
  const Status theirs =
      memory.WhyUnread(3, 7, ToAddress(pages), copy.data(), copy.size());
  EXPECT_TRUE(IsInvalidArgument(theirs)) << theirs;
  EXPECT_THAT(std::string(theirs.message()),
              EndsWith(absl::StrCat(" cannot be read from byte ", page_bytes,
                                    " on: Bad address")));
  EXPECT_EQ(CulpritRank(theirs), 7);
  const uint64_t from = ToAddress(copy.data());
  EXPECT_FALSE(memory.Read(from, pages, copy.size()));
  Status own = memory.WhyUnread(3, 7, from, pages, copy.size());
  EXPECT_TRUE(IsInvalidArgument(own)) << own;
  EXPECT_THAT(std::string(own.message()), HasSubstr(" cannot be read from "));
  EXPECT_EQ(CulpritRank(own), 3);
  ASSERT_EQ(mprotect(pages, page_bytes, PROT_READ), 0);
  EXPECT_FALSE(memory.Read(from, pages, page_bytes));
  own = memory.WhyUnread(3, 7, from, pages, page_bytes);
  EXPECT_THAT(std::string(own.message()), EndsWith(" cannot be written"));
  EXPECT_EQ(CulpritRank(own), 3);
  EXPECT_EQ(munmap(pages, page_bytes), 0);
}

TEST(PeerMemoryTest, APeerThatIsGoneIsTheReasonWhyItIsNotRead) {
  Mark mark(kValue);
  char byte = 'x';
  const PeerMemory memory(mark.place(), kValue);
  mark.Clear();
  EXPECT_EQ(memory.WhyUnread(3, 7, ToAddress(&byte), &byte, 1), OkStatus());
}

TEST(ProcessMemoryTest, CopiesToValidMemoryAlone) {
  const std::string from = "bytes";
  std::string to(from.size(), ' ');
  EXPECT_TRUE(CopyIfValid(to.data(), from.data(), from.size()));
  EXPECT_EQ(to, from);
  EXPECT_FALSE(CopyIfValid(nullptr, from.data(), from.size()));
  EXPECT_TRUE(CopyIfValid(nullptr, from.data(), 0));
}

}  // namespace
}  // namespace muster::dataplane::cpu
