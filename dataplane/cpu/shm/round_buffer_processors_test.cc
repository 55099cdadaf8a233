// Tests the processors on which the ranks of a round buffer run, and the cost
// of waits there.

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstddef>

#include "dataplane/cpu/shm/round_buffer.h"
#include "dataplane/cpu/shm/round_buffer_ranks.h"
#include "dataplane/cpu/transport/spin_wait.h"
#include "gtest/gtest.h"

namespace muster::dataplane::shm {
namespace {

using WaitResult = RoundBuffer::WaitResult;

cpu_set_t Processors() {
  cpu_set_t all;
  CPU_ZERO(&all);
  EXPECT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  return all;
}

cpu_set_t GetFirst(const cpu_set_t& processors) {
  int first = 0;
  while (!CPU_ISSET(first, &processors)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  return one;
}

// A round of two ranks in which each waits for the other.
void MeetOther(RoundBuffer& round_buffer) {
  ASSERT_EQ(round_buffer.Open(0), WaitResult::kDone);
  round_buffer.Post();
  ASSERT_EQ(round_buffer.Await(1 - round_buffer.rank()), WaitResult::kDone);
}

// As MeetOther, on processor `one`. Afterwards each rank may use `all`.
void MeetOtherOn(const cpu_set_t& one, const cpu_set_t& all,
                 RoundBuffer& round_buffer) {
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  MeetOther(round_buffer);
  ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

// Takes as long as a yield to a process that computes.
int YieldLong() {
  const auto until = std::chrono::steady_clock::now() + cpu::Yielding::kLong;
  while (std::chrono::steady_clock::now() < until) cpu::Relax();
  return 0;
}

TEST(RoundBufferProcessorsTest, OneOfTwoOnAProcessorGoesToAnother) {
  const cpu_set_t all = Processors();
  const bool has_another = CPU_COUNT(&all) > 1;
  const cpu_set_t one = GetFirst(all);
  Ranks ranks(2, {.is_crowded = false}, YieldLong);
  // Repeat until the system has left both ranks there long enough to wait for
  // each other; once if there is no other processor.
  std::atomic<bool> is_over{!has_another};
  ranks.OnEach([&](RoundBuffer& round_buffer) {
    for (bool goes_on = true; goes_on;) {
      MeetOtherOn(one, all, round_buffer);
      for (int round = 0; round < 100; ++round) {
        ASSERT_EQ(round_buffer.Open(1), WaitResult::kDone);
        // Both ranks decide alike, by the flags of the same round.
        goes_on = !is_over.load();
        *round_buffer.shows() = std::byte{goes_on};
        round_buffer.Post();
        ASSERT_EQ(round_buffer.Await(1 - round_buffer.rank()),
                  WaitResult::kDone);
        goes_on &=
            *round_buffer.published(1 - round_buffer.rank()) == std::byte{1};
        if (round_buffer.moves() > 0) is_over.store(true);
      }
    }
    const cpu_set_t after = Processors();
    EXPECT_TRUE(CPU_EQUAL(&after, &all));
  });
  EXPECT_EQ(ranks.at(0).moves() + ranks.at(1).moves() > 0, has_another);
}

TEST(RoundBufferProcessorsTest, InACrowdTheyGoWhereTheSystemSays) {
  const cpu_set_t all = Processors();
  const cpu_set_t one = GetFirst(all);
  Ranks ranks(2, {.is_crowded = true}, YieldLong);
  ranks.OnEach([&](RoundBuffer& round_buffer) {
    MeetOtherOn(one, all, round_buffer);
    for (int round = 0; round < 300; ++round) MeetOther(round_buffer);
    EXPECT_EQ(round_buffer.moves(), 0);
  });
}

// If both moved, they would share a processor again. (The system may bring them
// together, but not in most cases.)
TEST(RoundBufferProcessorsTest, OneOfTwoOnAProcessorStaysThere) {
  const cpu_set_t all = Processors();
  const cpu_set_t one = GetFirst(all);
  constexpr int kTimes = 20;
  int one_of_them = 0;
  int both = 0;
  for (int time = 0; time < kTimes; ++time) {
    Ranks ranks(2, {.is_crowded = false}, YieldLong);
    ranks.OnEach([&](RoundBuffer& round_buffer) {
      MeetOtherOn(one, all, round_buffer);
      for (int round = 0; round < 100; ++round) MeetOther(round_buffer);
    });
    const int moved = (ranks.at(0).moves() > 0) + (ranks.at(1).moves() > 0);
    if (moved == 1) ++one_of_them;
    if (moved == 2) ++both;
  }
  EXPECT_LT(both, kTimes / 2);
  EXPECT_EQ(one_of_them > 0, CPU_COUNT(&all) > 1);
}

TEST(RoundBufferProcessorsTest, RanksThatMayBeOnOneProcessorAloneStayThere) {
  const cpu_set_t one = GetFirst(Processors());
  Ranks ranks(2, {.is_crowded = false}, YieldLong);
  ranks.OnEach([&](RoundBuffer& round_buffer) {
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    for (int round = 0; round < 300; ++round) MeetOther(round_buffer);
    EXPECT_EQ(round_buffer.moves(), 0);
    const cpu_set_t after = Processors();
    EXPECT_TRUE(CPU_EQUAL(&after, &one));
  });
}

}  // namespace
}  // namespace muster::dataplane::shm
