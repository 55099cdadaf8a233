#include "dataplane/cpu/shm/round_buffer.h"

#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/cpu/shm/round_buffer_ranks.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::dataplane::shm {
namespace {

using WaitResult = RoundBuffer::WaitResult;
using ::testing::Bool;
using ::testing::Combine;
using ::testing::Values;

constexpr uint64_t kRounds = 300;

uint64_t ReadNumber(const std::byte* from) {
  uint64_t number = 0;
  std::memcpy(&number, from, sizeof(number));
  return number;
}

// The timeout with which thread `thread` of this process sleeps in futex(2);
// nullopt if it does not sleep, or was woken meanwhile.
std::optional<std::chrono::nanoseconds> FindSleep(pid_t thread) {
  const auto look = [thread] {
    std::ifstream file(absl::StrCat("/proc/self/task/", thread, "/syscall"));
    std::string line;
    std::getline(file, line);
    return line;
  };
  const std::string line = look();
  std::istringstream words(line);
  std::string call;
  std::string ignored;
  uintptr_t time = 0;
  words >> call >> ignored >> ignored >> ignored >> std::hex >> time;
  timespec limit = {};
  std::ifstream memory("/proc/self/mem", std::ios::binary);
  memory.seekg(static_cast<std::streamoff>(time));
  memory.read(reinterpret_cast<char*>(&limit), sizeof(limit));
  // Otherwise `limit` may have been overwritten.
  if (call != absl::StrCat(SYS_futex) || look() != line) return std::nullopt;
  return std::chrono::seconds(limit.tv_sec) +
         std::chrono::nanoseconds(limit.tv_nsec);
}

// Waits until thread `thread` of this process sleeps in futex(2) with a timeout
// longer than `least`.
void AwaitSleep(pid_t thread, std::chrono::nanoseconds least = {}) {
  while (FindSleep(thread).value_or(std::chrono::nanoseconds(0)) <= least) {
    std::this_thread::yield();
  }
}

// With rings that have room for a few long rounds only.
class RoundBufferTest : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  int world_size() const { return std::get<0>(GetParam()); }
  RoundBufferTraits traits() const {
    return {.is_crowded = std::get<1>(GetParam())};
  }
};

// The bytes that a rank publishes in a round, at random in its slot or its
// ring. In some rounds all use slots, so that ranks run ahead through all
// slots: the ring has room for a few rounds only.
size_t CountBytes(uint64_t round, int rank) {
  constexpr size_t kSizes[] = {
      8, RoundBuffer::kSlotBytes, RoundBuffer::kSlotBytes + 8,
      RoundBuffer::kPieceBytes - 8, RoundBuffer::kPieceBytes};
  std::mt19937 any(static_cast<uint32_t>(round * 100 + rank));
  const bool all_in_notes = round / (4 * RoundBuffer::kSlots) % 2 == 1;
  return kSizes[any() % (all_in_notes ? 2 : std::size(kSizes))];
}

// Publishes a round. Each word of the data, and the first and last words of
// head and tail, encode the rank and the round.
void Publish(RoundBuffer& round_buffer, uint64_t round) {
  const size_t bytes = CountBytes(round, round_buffer.rank());
  ASSERT_EQ(round_buffer.Open(bytes), WaitResult::kDone);
  const uint64_t word = round * 100 + round_buffer.rank();
  const std::vector<uint64_t> words(bytes / sizeof(word), word);
  std::memcpy(round_buffer.shows(), words.data(), bytes);
  for (std::byte* const to :
       {round_buffer.head(),
        round_buffer.head() + RoundBuffer::kHeadBytes - sizeof(word),
        round_buffer.tail(),
        round_buffer.tail() + RoundBuffer::kTailBytes - sizeof(word)}) {
    std::memcpy(to, &word, sizeof(word));
  }
  round_buffer.Post();
}

void ExpectShown(const RoundBuffer& round_buffer, int peer, uint64_t round) {
  const uint64_t word = round * 100 + peer;
  EXPECT_EQ(
      reinterpret_cast<uintptr_t>(round_buffer.published(peer)) % sizeof(word),
      0);
  const std::vector<uint64_t> words(CountBytes(round, peer) / sizeof(word),
                                    word);
  EXPECT_EQ(std::memcmp(round_buffer.published(peer), words.data(),
                        words.size() * sizeof(word)),
            0)
      << word;
  for (const std::byte* const from :
       {round_buffer.published_head(peer),
        round_buffer.published_head(peer) + RoundBuffer::kHeadBytes -
            sizeof(word),
        round_buffer.published_tail(peer),
        round_buffer.published_tail(peer) + RoundBuffer::kTailBytes -
            sizeof(word)}) {
    EXPECT_EQ(ReadNumber(from), word);
  }
}

TEST_P(RoundBufferTest, EverybodySeesWhatOthersShowInTheSameRound) {
  Ranks ranks(world_size(), traits());
  ranks.OnEach([](RoundBuffer& round_buffer) {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      ASSERT_NO_FATAL_FAILURE(Publish(round_buffer, round));
      for (int peer = 0; peer < round_buffer.world_size(); ++peer) {
        ASSERT_EQ(round_buffer.Await(peer), WaitResult::kDone);
        ExpectShown(round_buffer, peer, round);
      }
    }
  });
}

// If ranks do not await all others, some run ahead. No rank may see a later
// round than the one that it awaits.
TEST_P(RoundBufferTest, NothingIsOverwrittenThatSomebodyStillReads) {
  Ranks ranks(world_size(), traits());
  ranks.OnEach([](RoundBuffer& round_buffer) {
    std::mt19937 everybody_s(7);
    int giver = 0;
    for (uint64_t round = 1; round <= 24 * RoundBuffer::kSlots; ++round) {
      // Chosen alike on all ranks: the rank that is awaited, for some rounds so
      // that it runs ahead, and the ranks that await it.
      if (everybody_s() % (2 * RoundBuffer::kSlots) == 0) {
        giver = static_cast<int>(everybody_s() % round_buffer.world_size());
      }
      const uint32_t takers = everybody_s();
      ASSERT_NO_FATAL_FAILURE(Publish(round_buffer, round));
      if ((takers >> round_buffer.rank()) % 2 == 0) continue;
      ASSERT_EQ(round_buffer.Await(giver), WaitResult::kDone);
      std::this_thread::yield();
      ExpectShown(round_buffer, giver, round);
    }
  });
}

// Posts come at about the time at which another rank begins to sleep.
TEST_P(RoundBufferTest, WhoPostsWhenOthersBeginToSleepIsNotMissed) {
  Ranks ranks(world_size(), traits());
  ranks.OnEach([](RoundBuffer& round_buffer) {
    std::mt19937 everybody_s(11);
    for (uint64_t round = 1; round <= kRounds; ++round) {
      const int last =
          static_cast<int>(everybody_s() % round_buffer.world_size());
      const std::chrono::microseconds late(80 + everybody_s() % 50);
      ASSERT_EQ(round_buffer.Open(0), WaitResult::kDone);
      const auto until = std::chrono::steady_clock::now() + late;
      while (round_buffer.rank() == last &&
             std::chrono::steady_clock::now() < until) {
      }
      round_buffer.Post();
      ASSERT_EQ(round_buffer.Await(last), WaitResult::kDone);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, RoundBufferTest,
                         Combine(Values(2, 3, 8, 16), Bool()));

// The other rank has not begun, and this one does not wait.
TEST(RoundBufferWaitTest, WhoAwaitsNobodyGoesAheadOfTheOthers) {
  Ranks ranks(2);
  for (uint64_t round = 1; round < RoundBuffer::kSlots; ++round) {
    ASSERT_EQ(ranks.at(0).Open(RoundBuffer::kSlotBytes), WaitResult::kDone);
    ranks.at(0).Post();
  }
  EXPECT_EQ(ranks.awaited_by(0), -1);
  std::thread waits([&] {
    EXPECT_EQ(ranks.at(0).Open(0), WaitResult::kDone);
    ranks.at(0).Post();
  });
  while (ranks.awaited_by(0) != 1) std::this_thread::yield();
  // All its published data is still there.
  for (uint64_t round = 1; round <= RoundBuffer::kSlots; ++round) {
    ASSERT_EQ(ranks.at(1).Open(0), WaitResult::kDone);
    ranks.at(1).Post();
    ASSERT_EQ(ranks.at(1).Await(0), WaitResult::kDone);
  }
  waits.join();
}

// With one rank, so nothing waits.
TEST(RoundBufferWaitTest, TheRingIsReservedWhenSomethingLongIsShown) {
  const RoundBufferTraits traits;
  struct alignas(RoundBuffer::kLineBytes) Line {
    std::byte bytes[RoundBuffer::kLineBytes];
  };
  std::vector<Line> memory(RoundBuffer::BytesFor(1, traits.ring_bytes) /
                           sizeof(Line));
  Status there = ResourceExhaustedError("no memory");
  std::vector<std::pair<size_t, size_t>> reserved;
  RoundBuffer round_buffer(
      memory.data(), 0, 1, traits, [](int) {},
      [&](size_t offset, size_t bytes) {
        reserved.emplace_back(offset, bytes);
        return there;
      });
  ASSERT_EQ(round_buffer.Open(RoundBuffer::kSlotBytes), WaitResult::kDone);
  round_buffer.Post();
  EXPECT_TRUE(reserved.empty());
  EXPECT_EQ(round_buffer.Open(RoundBuffer::kSlotBytes + 1),
            WaitResult::kNoRing);
  EXPECT_EQ(round_buffer.ring_status(), there);
  there = OkStatus();
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(round_buffer.Open(RoundBuffer::kSlotBytes + 1),
              WaitResult::kDone);
    round_buffer.Post();
  }
  // Called once more after the failure, and not again.
  const std::pair<size_t, size_t> ring = {
      RoundBuffer::BytesFor(1, traits.ring_bytes) - traits.ring_bytes,
      traits.ring_bytes};
  EXPECT_EQ(reserved, std::vector({ring, ring}));
}

TEST(RoundBufferWaitTest, InTheRingAsFarAsThatGoes) {
  constexpr int kRanks = 3;
  Ranks ranks(kRanks);
  const size_t pieces =
      RoundBufferTraits::kRingBytesMin / RoundBuffer::kPieceBytes;
  ASSERT_LT(pieces + 2, RoundBuffer::kSlots);
  for (size_t piece = 0; piece < pieces; ++piece) {
    ASSERT_EQ(ranks.at(0).Open(RoundBuffer::kPieceBytes), WaitResult::kDone);
    ranks.at(0).Post();
  }
  // Short data needs no room in the ring.
  ASSERT_EQ(ranks.at(0).Open(RoundBuffer::kSlotBytes), WaitResult::kDone);
  ranks.at(0).Post();
  EXPECT_EQ(ranks.awaited_by(0), -1);
  std::thread waits([&] {
    EXPECT_EQ(ranks.at(0).Open(RoundBuffer::kSlotBytes + 1), WaitResult::kDone);
    ranks.at(0).Post();
  });
  while (ranks.awaited_by(0) != 1) std::this_thread::yield();
  for (int rank = 1; rank < kRanks; ++rank) {
    for (size_t round = 1; round <= pieces + 2; ++round) {
      ASSERT_EQ(ranks.at(rank).Open(0), WaitResult::kDone);
      ranks.at(rank).Post();
      // Rank 0 posts the last round only after all have posted.
      if (round <= pieces + 1) {
        ASSERT_EQ(ranks.at(rank).Await(0), WaitResult::kDone);
      }
    }
  }
  waits.join();
}

TEST(RoundBufferRingTest, RingsAreAPowerOfTwoAndOfAGroupNotMany) {
  EXPECT_EQ(RoundBuffer::RingBytesFor(1), size_t{2} << 20);
  EXPECT_EQ(RoundBuffer::RingBytesFor(4), size_t{2} << 20);
  EXPECT_EQ(RoundBuffer::RingBytesFor(5), size_t{1} << 20);
  EXPECT_EQ(RoundBuffer::RingBytesFor(8), size_t{1} << 20);
  EXPECT_EQ(RoundBuffer::RingBytesFor(64), size_t{512} << 10);
}

TEST(RoundBufferWaitTest, WhoSleepsIsWokenByWhatHeWaitsFor) {
  Ranks ranks(2);
  std::atomic<pid_t> sleeper{0};
  std::thread waits([&] {
    ASSERT_EQ(ranks.at(0).Open(0), WaitResult::kDone);
    ranks.at(0).Post();
    sleeper.store(static_cast<pid_t>(syscall(SYS_gettid)));
    EXPECT_EQ(ranks.at(0).Await(1), WaitResult::kDone);
  });
  while (sleeper.load() == 0) std::this_thread::yield();
  AwaitSleep(sleeper.load(), RoundBuffer::kNapTime);
  EXPECT_EQ(ranks.awaited_by(0), 1);
  EXPECT_EQ(ranks.sleepers().load(), 1U);
  ASSERT_EQ(ranks.at(1).Open(0), WaitResult::kDone);
  const uint32_t rings = ranks.rings(0).load();
  ranks.at(1).Post();
  EXPECT_EQ(ranks.rings(0).load(), rings + 1);
  waits.join();
  EXPECT_EQ(ranks.awaited_by(0), -1);
  EXPECT_EQ(ranks.sleepers().load(), 0U);
}

// Rank 0 waits for rank 1's next round, in a thread.
class Waiting {
 public:
  explicit Waiting(Ranks& ranks)
      : thread_([this, &round_buffer = ranks.at(0)] { Run(round_buffer); }) {
    while (id_.load() == 0) std::this_thread::yield();
  }
  ~Waiting() { thread_.join(); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  pid_t id() const { return id_.load(); }
  // A time before the wait.
  std::chrono::steady_clock::time_point began() const { return began_; }
  bool is_over() const { return is_over_.load(); }

 private:
  void Run(RoundBuffer& round_buffer) {
    EXPECT_EQ(round_buffer.Open(0), WaitResult::kDone);
    round_buffer.Post();
    began_ = std::chrono::steady_clock::now();
    id_.store(static_cast<pid_t>(syscall(SYS_gettid)));
    EXPECT_EQ(round_buffer.Await(1), WaitResult::kDone);
    is_over_.store(true);
  }

  std::chrono::steady_clock::time_point began_;
  std::atomic<pid_t> id_{0};
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

TEST(RoundBufferWaitTest, WhoSleepsIsLeftAloneByOthers) {
  Ranks ranks(3);
  const Waiting waiting(ranks);
  AwaitSleep(waiting.id(), RoundBuffer::kNapTime);
  const uint32_t rings = ranks.rings(0).load();
  for (const int rank : {2, 1}) {
    EXPECT_EQ(ranks.at(rank).Open(0), WaitResult::kDone);
    ranks.at(rank).Post();
    EXPECT_EQ(ranks.rings(0).load(), rings + (rank == 1 ? 1 : 0));
  }
}

// Rank 1 posts as if it had checked for sleepers before rank 0 marked itself.
void PostUnrung(Ranks& ranks) {
  EXPECT_EQ(ranks.sleeps_for(0).exchange(0), 2U);
  EXPECT_EQ(ranks.at(1).Open(0), WaitResult::kDone);
  ranks.at(1).Post();
}

bool Naps(const Waiting& waiting) {
  const auto sleep = FindSleep(waiting.id());
  return sleep.has_value() && *sleep <= RoundBuffer::kNapTime;
}

// Stores that a processor has held back are visible by then.
TEST(RoundBufferWaitTest, WhoIsNotRungForInHisNapLooksAfterIt) {
  bool naps = false;
  // Repeat until the post came during the nap.
  for (int attempt = 0; attempt < 1000 && !naps; ++attempt) {
    Ranks ranks(2);
    const Waiting waiting(ranks);
    AwaitSleep(waiting.id());
    PostUnrung(ranks);
    naps = Naps(waiting);
    if (!naps) ranks.at(0).Wake();
    while (naps && !waiting.is_over()) {
      const auto sleep = FindSleep(waiting.id());
      ASSERT_LE(sleep.value_or(RoundBuffer::kNapTime), RoundBuffer::kNapTime);
    }
  }
  EXPECT_TRUE(naps);
}

TEST(RoundBufferWaitTest, NoSignalEndsANapEarlier) {
  struct sigaction action = {};
  action.sa_handler = [](int) {};
  struct sigaction before = {};
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  for (int attempt = 0; attempt < 20; ++attempt) {
    Ranks ranks(2);
    const Waiting waiting(ranks);
    AwaitSleep(waiting.id());
    while (FindSleep(waiting.id()).value_or(RoundBuffer::kNapTime) <=
           RoundBuffer::kNapTime) {
      ASSERT_EQ(syscall(SYS_tgkill, getpid(), waiting.id(), SIGUSR1), 0);
    }
    EXPECT_GE(std::chrono::steady_clock::now() - waiting.began(),
              RoundBuffer::kNapTime);
    ASSERT_EQ(ranks.at(1).Open(0), WaitResult::kDone);
    ranks.at(1).Post();
  }
  ASSERT_EQ(sigaction(SIGUSR1, &before, nullptr), 0);
}

TEST(RoundBufferWaitTest, WhoIsNotRungForInHisSleepLooksAgain) {
  Ranks ranks(2);
  const Waiting waiting(ranks);
  AwaitSleep(waiting.id(), RoundBuffer::kNapTime);
  PostUnrung(ranks);
}

// Makes `rank` run on a processor of its own, if there are enough.
void PinRank(int rank) {
  cpu_set_t all;
  CPU_ZERO(&all);
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  int before = rank % CPU_COUNT(&all);
  int processor = 0;
  while (!CPU_ISSET(processor, &all) || before-- > 0) ++processor;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
}

// One sleep must not cause the next for ever (see SpinBudget).
TEST(RoundBufferWaitTest, WhoHasSleptForWhatCameSoonLooksForLonger) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds kLate{300};
  constexpr int kRounds = 500;
  static_assert(kLate > cpu::kSpinTime && 2 * kLate < cpu::SpinBudget::kMost);
  // After a long yield a rank would spin for less.
  Ranks ranks(2, {.is_crowded = false}, [] { return 0; });
  ranks.OnEach([&](RoundBuffer& round_buffer) {
    PinRank(round_buffer.rank());
    const std::atomic<uint32_t>& rings = ranks.rings(round_buffer.rank());
    // Rank 1 is late in the first round.
    bool is_late = round_buffer.rank() == 1;
    for (int round = 0; round < kRounds; ++round) {
      ASSERT_EQ(round_buffer.Open(0), WaitResult::kDone);
      const Clock::time_point until = Clock::now() + kLate;
      while (is_late && Clock::now() < until) {
      }
      round_buffer.Post();
      const uint32_t before = rings.load();
      ASSERT_EQ(round_buffer.Await(1 - round_buffer.rank()), WaitResult::kDone);
      is_late = rings.load() != before;
    }
  });
  // On a busy machine some still sleep.
  EXPECT_LE(ranks.rings(0).load() + ranks.rings(1).load(), kRounds / 2);
}

// After a yield, a computing process has the processor for a time slice. The
// awaited data comes meanwhile, so the rank has to sleep to get the processor
// back soon.
TEST(RoundBufferWaitTest, ALongYieldIsFollowedByASleep) {
  using Clock = std::chrono::steady_clock;
  static std::atomic<int> yields;
  for (const bool is_crowded : {false, true}) {
    yields.store(0);
    Ranks ranks(2, {.is_crowded = is_crowded}, [] {
      ++yields;
      const Clock::time_point began = Clock::now();
      while (Clock::now() - began < 50 * cpu::Yielding::kLong) {
      }
      return 0;
    });
    const Waiting waiting(ranks);
    AwaitSleep(waiting.id(), RoundBuffer::kNapTime);
    // Without the pause, which lasts 16 times as long, a crowded rank would
    // yield twice more.
    EXPECT_LE(yields.load(), is_crowded ? 2 : 1);
    EXPECT_EQ(ranks.at(1).Open(0), WaitResult::kDone);
    ranks.at(1).Post();
  }
}

// While it spins, the rank that it waits for has no processor.
TEST(RoundBufferWaitTest, AfterALongYieldARankSleepsForOneOnItsProcessor) {
  // Pauses yields for longer than the rounds take.
  Ranks ranks(2, {.is_crowded = false}, [] {
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    while (std::chrono::steady_clock::now() < until) {
    }
    return 0;
  });
  std::atomic<int64_t> used_ns = 0;
  ranks.OnEach([&](RoundBuffer& round_buffer) {
    PinRank(0);
    timespec begin = {};
    for (uint64_t round = 0; round < 2 * kRounds; ++round) {
      if (round == kRounds) clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
      ASSERT_EQ(round_buffer.Open(0), WaitResult::kDone);
      round_buffer.Post();
      ASSERT_EQ(round_buffer.Await(1 - round_buffer.rank()), WaitResult::kDone);
    }
    timespec end = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    used_ns += (end.tv_sec - begin.tv_sec) * 1'000'000'000 + end.tv_nsec -
               begin.tv_nsec;
  });
  // In every round one of them would spin.
  EXPECT_LT(used_ns.load(),
            kRounds * std::chrono::nanoseconds(cpu::kSpinTime).count());
}

TEST(RoundBufferWaitTest, WakeEndsASleepAndEverythingLater) {
  Ranks ranks(2);
  std::atomic<pid_t> sleeper{0};
  std::thread waits([&] {
    ASSERT_EQ(ranks.at(0).Open(0), WaitResult::kDone);
    ranks.at(0).Post();
    sleeper.store(static_cast<pid_t>(syscall(SYS_gettid)));
    EXPECT_EQ(ranks.at(0).Await(1), WaitResult::kWoken);
  });
  while (sleeper.load() == 0) std::this_thread::yield();
  AwaitSleep(sleeper.load(), RoundBuffer::kNapTime);
  const uint32_t rings = ranks.rings(0).load();
  ranks.at(0).Wake();
  EXPECT_EQ(ranks.rings(0).load(), rings + 1);
  waits.join();
  EXPECT_EQ(ranks.awaited_by(0), 1);
  EXPECT_EQ(ranks.at(0).Await(1), WaitResult::kWoken);
}

TEST(RoundBufferWaitTest, WhoLeavesIsNamedToThoseThatNeedHim) {
  Ranks ranks(3);
  std::atomic<pid_t> sleeper{0};
  std::thread waits([&] {
    ASSERT_EQ(ranks.at(0).Open(0), WaitResult::kDone);
    ranks.at(0).Post();
    EXPECT_EQ(ranks.at(0).Await(1), WaitResult::kDone);
    sleeper.store(static_cast<pid_t>(syscall(SYS_gettid)));
    EXPECT_EQ(ranks.at(0).Await(2), WaitResult::kLeft);
    EXPECT_EQ(ranks.at(0).left_peer(), 2);
  });
  // A rank may leave after it has published the needed data.
  ASSERT_EQ(ranks.at(1).Open(0), WaitResult::kDone);
  ranks.at(1).Post();
  ranks.at(1).Leave(/*has_failed=*/false);
  EXPECT_EQ(ranks.at(0).FindFailed(), -1);
  while (sleeper.load() == 0) std::this_thread::yield();
  AwaitSleep(sleeper.load(), RoundBuffer::kNapTime);
  const uint32_t rings = ranks.rings(0).load();
  ranks.at(2).Leave(/*has_failed=*/true);
  EXPECT_EQ(ranks.rings(0).load(), rings + 1);
  waits.join();
  EXPECT_EQ(ranks.at(0).FindFailed(), 2);
  // Only the first call of Leave counts.
  ranks.at(2).Leave(/*has_failed=*/false);
  EXPECT_EQ(ranks.at(0).FindFailed(), 2);
}

}  // namespace
}  // namespace muster::dataplane::shm
