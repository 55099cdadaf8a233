// Tests allocation and release of symmetric memory of the shm backend.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/communicator.h"
#include "dataplane/cpu/shm/available_memory.h"
#include "dataplane/cpu/shm/regions.h"
#include "dataplane/cpu/shm/segment.h"
#include "dataplane/cpu/shm/symmetric_testing.h"
#include "dataplane/culprit.h"
#include "dataplane/testing/local_world.h"
#include "dataplane/testing/process_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/clock.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane {
namespace {

using shm::MemoryLeft;
using shm::Region;
using shm::Segment;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::LocalWorld;
using ::testing::MatchesRegex;
using testing::ProcessWorld;
using ::testing::StartsWith;

// The KiB of this process's segments that are in memory.
int64_t SharedKib() {
  std::ifstream file("/proc/self/smaps");
  std::string line;
  bool is_segment = false;
  int64_t sum = 0;
  while (std::getline(file, line)) {
    if (line.find('-') != std::string::npos && line.find(' ') > 10) {
      is_segment = line.find("/memfd:muster-") != std::string::npos;
    }
    if (is_segment && line.rfind("Pss:", 0) == 0) {
      sum += std::atoll(line.c_str() + 4);
    }
  }
  return sum;
}

TEST(SymmetricMemoryTest, ItGoesWithItsOwnerAndNotWithTheGroup) {
  constexpr size_t kBytes = 8 << 20;
  std::vector<Memory> memories(3);
  {
    LocalWorld world({.backend = "shm", .world_size = 3});
    const int64_t before = SharedKib();
    world.OnEachRank([&](Communicator& communicator) {
      Memory& memory = memories[communicator.rank()];
      for (int i = 0; i < 5; ++i) {
        memory = nullptr;
        auto allocated = Allocate(communicator, kBytes);
        ASSERT_TRUE(allocated.ok()) << allocated.status();
        memory = *std::move(allocated);
        Fill(Part(memory, 0, kBytes / sizeof(float)), 1);
      }
    });
    // Only the last memory of each of three ranks is still allocated.
    EXPECT_LE(SharedKib() - before, 3 * (kBytes >> 10) + 100);
    memories[1] = nullptr;
    EXPECT_LE(SharedKib() - before, 2 * (kBytes >> 10) + 100);
  }
  EXPECT_TRUE(AllAre(Values(Part(memories[0], 0, kBytes / sizeof(float))), 1));
  memories.clear();
  EXPECT_EQ(SharedKib(), 0);
}

// The number of lines of `file` that contain `word`.
int64_t LinesWith(const std::string& file, const std::string& word) {
  std::ifstream in(file);
  std::string line;
  int64_t found = 0;
  while (std::getline(in, line)) found += line.find(word) != std::string::npos;
  return found;
}

int64_t OpenDescriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return std::distance(begin(open), end(open));
}

TEST(SymmetricMemoryTest, ManyPiecesNeedNoMoreDescriptorsThanOne) {
  LocalWorld world({.backend = "shm", .world_size = 3});
  std::vector<std::vector<Memory>> memories(3);
  const auto allocate = [&](int pieces) {
    world.OnEachRank([&](Communicator& communicator) {
      for (int i = 0; i < pieces; ++i) {
        auto memory = Allocate(communicator, 4096);
        ASSERT_TRUE(memory.ok()) << memory.status();
        Fill(Part(*memory, 0, 1024), static_cast<float>(i));
        memories[communicator.rank()].push_back(*std::move(memory));
      }
    });
  };
  allocate(1);
  const int64_t of_one = OpenDescriptors();
  allocate(40);
  EXPECT_EQ(OpenDescriptors(), of_one);
  // Every piece is a different one.
  for (const auto& of_rank : memories) {
    for (int i = 0; i < 40; ++i) {
      EXPECT_TRUE(
          AllAre(Values(Part(of_rank[i + 1], 0, 1024)), static_cast<float>(i)));
    }
  }
}

// The number of blocks in the largest segment file.
int64_t BlocksOfSegments() {
  int64_t most = 0;
  for (const auto& open :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    const std::string name = read_symlink(open.path(), none).string();
    struct stat file = {};
    if (name.starts_with("/memfd:muster-") &&
        stat(open.path().c_str(), &file) == 0) {
      most = std::max<int64_t>(most, file.st_blocks);
    }
  }
  return most;
}

TEST(SymmetricMemoryTest, WhatAllHaveFreedIsNotKeptForEver) {
  LocalWorld world({.backend = "shm", .world_size = 2});
  const auto allocate = [&](int times) {
    world.OnEachRank([&](Communicator& communicator) {
      for (int i = 0; i < times; ++i) {
        {
          const auto memory = Allocate(communicator, 40'000);
          ASSERT_TRUE(memory.ok()) << memory.status();
          // At an address that an earlier region may have had.
          ASSERT_TRUE(Do(communicator, {.kind = CollectiveKind::kAllReduce,
                                        .tensors = {Part(*memory, 0, 10'000)}})
                          .ok());
          EXPECT_EQ(communicator.last_run(DeviceType::kCpu).algorithm,
                    "symmetric");
        }
        // Wait until both ranks have freed it.
        ASSERT_TRUE(Do(communicator, {.kind = CollectiveKind::kBarrier}).ok());
      }
    });
    return std::pair(LinesWith("/proc/self/maps", "memfd:muster-"),
                     BlocksOfSegments());
  };
  EXPECT_EQ(allocate(2), allocate(20));
}

// The sum of ones over all ranks, or the error.
std::string SumOfOnes(Communicator& communicator) {
  const auto memory = Allocate(communicator, 40'000);
  if (!memory.ok()) return memory.status().ToString();
  const Tensor tensor = Part(*memory, 0, 10'000);
  Fill(tensor, 1);
  const Status status = Do(
      communicator, {.kind = CollectiveKind::kAllReduce, .tensors = {tensor}});
  return status.ok() ? absl::StrCat(Values(tensor).back()) : status.ToString();
}

// A forked child frees its copies, as leaving a scope would.
TEST(SymmetricMemoryTest, WhatAForkedProcessFreesIsItsParentsAsBefore) {
  LocalWorld world({.backend = "shm", .world_size = 2});
  std::vector<Memory> memories(2);
  world.OnEachRank([&](Communicator& communicator) {
    auto memory = Allocate(communicator, 400'000);
    ASSERT_TRUE(memory.ok()) << memory.status();
    Fill(Part(*memory, 0, 100'000), 1);
    memories[communicator.rank()] = *std::move(memory);
  });
  const pid_t child = fork();
  if (child == 0) {
    memories.clear();
    _exit(0);
  }
  int how = -1;
  ASSERT_EQ(waitpid(child, &how, 0), child);
  EXPECT_EQ(how, 0);
  world.OnEachRank([&](Communicator& communicator) {
    // If all ranks had released the regions, this would forget them.
    EXPECT_EQ(SumOfOnes(communicator), "2");
    const Tensor mine = Part(memories[communicator.rank()], 0, 100'000);
    EXPECT_TRUE(AllAre(Values(mine), 1));
    ASSERT_TRUE(Do(communicator,
                   {.kind = CollectiveKind::kAllReduce, .tensors = {mine}})
                    .ok());
    EXPECT_TRUE(AllAre(Values(mine), 2));
    EXPECT_EQ(communicator.last_run(DeviceType::kCpu).algorithm, "symmetric");
  });
}

// One region as two of three ranks see it.
class RegionTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 300'000;

  void SetUp() override {
    const size_t bytes = Region::BytesFor(kBytes, 3);
    auto made = Segment::Create(bytes);
    ASSERT_TRUE(made.ok()) << made.status();
    auto opened = Segment::Open((*made)->place(), bytes);
    ASSERT_TRUE(opened.ok()) << opened.status();
    zero_ = std::make_unique<Region>(*std::move(made), kBytes, 0, 3);
    two_ = std::make_unique<Region>(*std::move(opened), kBytes, 2, 3);
  }

  std::unique_ptr<Region> zero_;
  std::unique_ptr<Region> two_;
};

TEST_F(RegionTest, SlicesAreSharedAndNothingAroundOnesOwnCanBeTouched) {
  zero_->slice(0)[7] = std::byte{5};
  EXPECT_EQ(two_->slice(0)[7], std::byte{5});
  two_->slice(0)[8] = std::byte{6};
  EXPECT_EQ(zero_->slice(0)[8], std::byte{6});
  // read(2) fails if this process cannot write to the memory.
  const int zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  constexpr size_t kRounded = (kBytes + 65'535) / 65'536 * 65'536;
  for (std::byte* const slice : {zero_->slice(0), two_->slice(2)}) {
    EXPECT_EQ(read(zeros, slice, 1), 1);
    EXPECT_EQ(read(zeros, slice + kBytes - 1, 1), 1);
    EXPECT_EQ(read(zeros, slice - 1, 1), -1);
    EXPECT_EQ(read(zeros, slice + kRounded, 1), -1);
  }
  close(zeros);
}

// Four times this overflows to a small number in 64 bits.
constexpr size_t kMore = std::numeric_limits<int64_t>::max();

TEST_F(RegionTest, ThereIsNoSegmentOfMoreThanThereAreNumbersFor) {
  EXPECT_EQ(Region::BytesFor(1, 1), 4 * 65'536u);
  EXPECT_EQ(Region::BytesFor(kMore - (1 << 20), 1),
            kMore - (1 << 20) + 1 + 3 * 65'536);
  EXPECT_EQ(Region::BytesFor(kMore, 1), kMore);
  EXPECT_EQ(Region::BytesFor(kMore, 4), kMore);
  EXPECT_EQ(Region::BytesFor(0x5555555555550000, 3), kMore);
  EXPECT_EQ(Region::BytesFor(kMore / 2, 2), kMore);
}

TEST_F(RegionTest, WhatIsWithdrawnIsItsOwnersAlone) {
  std::byte* const own = zero_->slice(0);
  std::byte* const theirs = two_->slice(0);
  for (size_t at = 0; at < kBytes; ++at) own[at] = std::byte{1};
  constexpr size_t kFirst = 70'000;
  constexpr size_t kCount = 150'000;
  ASSERT_TRUE(zero_->Withdraw(kFirst, kCount, MemoryLeft()).ok());
  for (size_t at = 0; at < kBytes; ++at) EXPECT_EQ(own[at], std::byte{1});
  for (size_t at = 0; at < kBytes; ++at) theirs[at] = std::byte{2};
  for (size_t at = kFirst; at < kFirst + kCount; ++at) {
    ASSERT_EQ(own[at], std::byte{1}) << at;
    own[at] = std::byte{3};
    ASSERT_EQ(theirs[at], std::byte{2}) << at;
  }
  // The rest is still shared.
  EXPECT_EQ(own[0], std::byte{2});
  EXPECT_EQ(own[kBytes - 1], std::byte{2});
}

// All ranks withdraw at once, so each must leave memory for the others.
TEST_F(RegionTest, NothingIsWithdrawnThatAllRanksTogetherHaveNoMemoryFor) {
  // Whole units of 64 KiB, and 16 MiB reserve.
  constexpr uint64_t kEach = 2 * 65'536 + (16 << 20);
  MemoryLeft left = {.bytes = 3 * kEach - 1, .where = "to somebody"};
  const Status refused = zero_->Withdraw(65'536, 131'072, left);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(refused.message()),
            absl::StrCat("a copy of 131072 bytes, and 16777216 besides, on "
                         "each of 3 ranks takes ",
                         3 * kEach, ": there are ", 3 * kEach - 1,
                         " left to somebody"));
  zero_->slice(0)[65'536] = std::byte{4};
  EXPECT_EQ(two_->slice(0)[65'536], std::byte{4});
  ++left.bytes;
  EXPECT_TRUE(zero_->Withdraw(65'536, 131'072, left).ok());
}

TEST_F(RegionTest, WhatIsReleasedIsNowhereForItsOwner) {
  std::byte* const own = zero_->slice(0);
  own[9] = std::byte{5};
  EXPECT_EQ(zero_->FindOffset(own + 9, 10), 9);
  EXPECT_FALSE(zero_->WasIn(own + 9, 10));
  ASSERT_TRUE(zero_->Withdraw(0, 70'000, MemoryLeft()).ok());
  zero_->Release();
  EXPECT_EQ(zero_->FindOffset(own + 9, 10), std::nullopt);
  EXPECT_TRUE(zero_->WasIn(own + 9, 10));
  EXPECT_FALSE(zero_->WasIn(own + 9, kBytes));
  const int zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(read(zeros, own, 1), -1);
  EXPECT_EQ(read(zeros, own + kBytes - 1, 1), -1);
  close(zeros);
  // The others' slices are still shared.
  EXPECT_EQ(two_->slice(0)[9], std::byte{0});
  two_->slice(2)[9] = std::byte{6};
  EXPECT_EQ(zero_->slice(2)[9], std::byte{6});
}

TEST(SymmetricMemoryTest, DifferentSizesAreAnErrorThatShowsBoth) {
  LocalWorld world({.backend = "shm", .world_size = 3});
  world.OnEachRank([&](Communicator& communicator) {
    const auto memory =
        Allocate(communicator, communicator.rank() == 1 ? 12 : 8);
    EXPECT_EQ(memory.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(memory.status().message()),
                HasSubstr(communicator.rank() == 1
                              ? "rank 0 allocates 8 bytes of symmetric memory, "
                                "rank 1 12"
                              : absl::StrCat("rank 1 allocates 12 bytes of "
                                             "symmetric memory, rank ",
                                             communicator.rank(), " 8")));
  });
}

TEST(SymmetricMemoryTest, MoreThanThereIsIsOneErrorAndTheGroupGoesOn) {
  LocalWorld world({.backend = "shm", .world_size = 3});
  world.OnEachRank([&](Communicator& communicator) {
    const Status status = Allocate(communicator, size_t{1} << 50).status();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()),
                MatchesRegex("allocate_symmetric on group \"world\": rank 0: "
                             "shared memory of 3377699720855552 bytes: there "
                             "are [0-9]+ left (on the host|to control group "
                             ".*); each of 3 ranks of its host asks for "
                             "1125899906842624"));
    EXPECT_EQ(CulpritRank(status), 0);
    EXPECT_THAT(std::string(Allocate(communicator, kMore).status().message()),
                StartsWith(absl::StrCat(
                    "allocate_symmetric on group \"world\": rank 0: shared "
                    "memory of ",
                    kMore, " bytes: there are ")));
    EXPECT_EQ(SumOfOnes(communicator), "3");
  });
}

TEST(SymmetricMemoryTest, SoItIsWhereNoMemoryIsShared) {
  for (const int ranks : {1, 2}) {
    setenv("MUSTER_SHM", "0", 1);
    LocalWorld world({.backend = "shm", .world_size = ranks});
    unsetenv("MUSTER_SHM");
    world.OnEachRank([&](Communicator& communicator) {
      const Status status = Allocate(communicator, size_t{1} << 50).status();
      EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
      EXPECT_THAT(std::string(status.message()),
                  StartsWith("allocate_symmetric on group \"world\": rank 0: "
                             "memory of 1125899906842624 bytes: there are "));
      EXPECT_EQ(SumOfOnes(communicator), absl::StrCat(ranks));
    });
  }
}

// The size of this process's address space.
rlim_t AddressSpaceBytes() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

TEST(SymmetricMemoryTest, ARankThatCannotMapItIsNamedAndItIsGivenBack) {
  constexpr size_t kMib = 1 << 20;
  ProcessWorld world("shm", 3, [](Communicator& communicator) {
    // Later memory lies in the same file.
    const auto before = Allocate(communicator, 4096);
    if (!before.ok()) return before.status().ToString();
    if (communicator.rank() == 1) {
      const rlim_t most = AddressSpaceBytes() + 64 * kMib;
      const rlimit limit = {.rlim_cur = most, .rlim_max = RLIM_INFINITY};
      if (setrlimit(RLIMIT_AS, &limit) != 0) return std::string("no limit");
    }
    const Status status = Allocate(communicator, 100 * kMib).status();
    const std::string sum = SumOfOnes(communicator);
    const bool is_small = BlocksOfSegments() < 10'000;
    return absl::StrCat(sum, " ", is_small, " ", status.ToString());
  });
  for (const auto& outcome : world.Join()) {
    EXPECT_THAT(
        outcome.report,
        AllOf(StartsWith(absl::StrCat(
                  "3 1 RESOURCE_EXHAUSTED: allocate_symmetric on group "
                  "\"world\": rank 1: shared memory of ",
                  Region::BytesFor(100 * kMib, 3),
                  " bytes: mmap: Cannot allocate memory; RLIMIT_AS (ulimit -v) "
                  "is ")),
              HasSubstr("; each of 3 ranks of its host asks for 104857600")));
  }
}

TEST(SymmetricMemoryTest, ALimitOfFilesIsNamedWithItsValue) {
  ProcessWorld world("shm", 2, [](Communicator& communicator) {
    const rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return std::string("no limit");
    const Status status = Allocate(communicator, 1 << 20).status();
    return absl::StrCat(SumOfOnes(communicator), " ", status.ToString());
  });
  for (const auto& outcome : world.Join()) {
    EXPECT_THAT(
        outcome.report,
        HasSubstr("2 RESOURCE_EXHAUSTED: allocate_symmetric on group "
                  "\"world\": rank 0: shared memory of 2359296 bytes: "
                  "RLIMIT_FSIZE (ulimit -f) is 1048576 bytes; each of 2 "
                  "ranks of its host asks for 1048576"));
  }
}

TEST(SymmetricMemoryTest, ItsFailureOnOneHostIsThatOfAll) {
  setenv("MUSTER_SHM_HOSTS", "address", 1);
  setenv("MUSTER_LOCAL_WORLD_HOSTS", "01100", 1);
  ProcessWorld world("shm", 5, [](Communicator& communicator) {
    const rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};
    if (communicator.rank() == 1) setrlimit(RLIMIT_FSIZE, &limit);
    const Status status = Allocate(communicator, 1 << 20).status();
    return absl::StrCat(SumOfOnes(communicator), " ", status.ToString());
  });
  unsetenv("MUSTER_SHM_HOSTS");
  unsetenv("MUSTER_LOCAL_WORLD_HOSTS");
  for (const auto& outcome : world.Join()) {
    EXPECT_THAT(outcome.report,
                AllOf(StartsWith("5 RESOURCE_EXHAUSTED: allocate_symmetric on "
                                 "group \"world\": rank 1: shared memory of "),
                      HasSubstr("; each of 2 ranks of its host asks for ")));
  }
}

TEST(SymmetricMemoryTest, WhoMeetsAnotherCollectiveIsToldWhatItIs) {
  LocalWorld world({.backend = "shm", .world_size = 2});
  world.OnEachRank([&](Communicator& communicator) {
    std::vector<float> values(10);
    const Status status =
        communicator.rank() == 0
            ? Allocate(communicator, 4096).status()
            : Do(communicator, {.kind = CollectiveKind::kAllReduce,
                                .tensors = {Tensor(values)}});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank 0 "), HasSubstr("allocate_symmetric"),
                      HasSubstr("rank 1 "),
                      HasSubstr("all_reduce #1 of 10 float32 sum"),
                      ::testing::Not(HasSubstr("all_gather_into_tensor"))));
  });
}

TEST(SymmetricMemoryTest, WhatWasFreedIsNoTensor) {
  LocalWorld world({.backend = "shm", .world_size = 3});
  world.OnEachRank([&](Communicator& communicator) {
    auto memory = Allocate(communicator, 400'000);
    ASSERT_TRUE(memory.ok()) << memory.status();
    const Collective sum = {.kind = CollectiveKind::kAllReduce,
                            .tensors = {Part(*memory, 10, 50'000)}};
    Fill(sum.tensors[0], 2);
    ASSERT_TRUE(Do(communicator, sum).ok());
    EXPECT_EQ(Values(sum.tensors[0]).back(), 6);
    *memory = nullptr;
    for (const Status& refused :
         {Do(communicator, sum), communicator.Prepare(sum).status()}) {
      EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(refused.message()),
                  HasSubstr("float32[50000] is in symmetric memory that this "
                            "rank has freed"));
    }
  });
  // When the region is forgotten, another may have its address.
  world.OnEachRank([&](Communicator& communicator) {
    const auto memory = Allocate(communicator, 400'000);
    ASSERT_TRUE(memory.ok()) << memory.status();
    const auto other = Allocate(communicator, 400'000);
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_TRUE(communicator
                    .Check({.kind = CollectiveKind::kAllReduce,
                            .tensors = {Part(*other, 0, 100'000)}})
                    .ok());
  });
}

}  // namespace
}  // namespace muster::dataplane
