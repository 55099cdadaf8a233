#include "dataplane/cpu/transport/shm_mailbox.h"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace muster::dataplane::cpu {
namespace {

constexpr std::chrono::microseconds kForEver{0};

struct alignas(64) Line {
  std::byte bytes[64];
};

// A mailbox of ranks 10, 11, ..., as if their group had other ranks, too.
class Ranks {
 public:
  explicit Ranks(int count)
      : memory_(std::make_shared<std::vector<Line>>(
            ShmMailbox::BytesFor(count) / sizeof(Line))) {
    std::vector<int> ranks;
    for (int place = 0; place < count; ++place) ranks.push_back(10 + place);
    for (int place = 0; place < count; ++place) {
      mails_.push_back(std::make_unique<ShmMailbox>(
          std::shared_ptr<void>(memory_, memory_->data()), ranks, place));
    }
  }

  ShmMailbox& of(int rank) { return *mails_[rank - 10]; }

 private:
  std::shared_ptr<std::vector<Line>> memory_;
  std::vector<std::unique_ptr<ShmMailbox>> mails_;
};

// A message whose payload encodes its number.
struct Letter {
  Message message;
  std::vector<uint8_t> payload;
};

Letter MakeLetter(uint64_t number, size_t bytes) {
  Letter letter;
  letter.message.type = Message::kEager;
  letter.message.id = number;
  letter.message.count = bytes;
  for (size_t i = 0; i < bytes; ++i) {
    letter.payload.push_back(static_cast<uint8_t>(number * 31 + i));
  }
  return letter;
}

bool Put(ShmMailbox& mailbox, int rank, const Letter& letter) {
  return mailbox.Put(rank, letter.message, letter.payload.data(),
                     letter.payload.size());
}

// Takes all messages, checks their payloads, and returns their numbers.
std::vector<uint64_t> TakeAll(ShmMailbox& mailbox, int rank) {
  std::vector<uint64_t> numbers;
  mailbox.Take(
      rank, [&](const Message& message, std::span<const std::byte> payload) {
        const Letter expected = MakeLetter(message.id, message.count);
        EXPECT_EQ(message.type, expected.message.type);
        EXPECT_GE(payload.size(), message.count);
        EXPECT_TRUE(message.count == 0 ||
                    std::memcmp(payload.data(), expected.payload.data(),
                                message.count) == 0);
        numbers.push_back(message.id);
      });
  return numbers;
}

using Numbers = std::vector<uint64_t>;

TEST(ShmMailboxTest, ReachesTheOthersAlone) {
  Ranks ranks(3);
  for (const int rank : {0, 9, 11, 13, 1000}) {
    EXPECT_FALSE(ranks.of(11).Reaches(rank)) << rank;
  }
  EXPECT_TRUE(ranks.of(11).Reaches(10));
  EXPECT_TRUE(ranks.of(11).Reaches(12));
}

TEST(ShmMailboxTest, ItIsForSomeButNotForTooMany) {
  for (const int ranks : {0, 1, 257, 100'000}) {
    EXPECT_FALSE(ShmMailbox::IsFor(ranks)) << ranks;
    EXPECT_EQ(ShmMailbox::BytesFor(ranks), 0u);
  }
  // A little more than 256 KiB per rank.
  for (const int ranks : {2, 3, 8, 100, 256}) {
    EXPECT_TRUE(ShmMailbox::IsFor(ranks)) << ranks;
    EXPECT_NEAR(static_cast<double>(ShmMailbox::BytesFor(ranks)) / ranks, 264e3,
                16e3)
        << ranks;
  }
}

TEST(ShmMailboxTest, ABoxTakesNothingBeforeItIsOpen) {
  Ranks ranks(3);
  ranks.of(10).Open(12);
  EXPECT_FALSE(Put(ranks.of(11), 10, MakeLetter(1, 4)));
  EXPECT_FALSE(ranks.of(10).MayHaveCome());
  ranks.of(10).Open(11);
  EXPECT_TRUE(Put(ranks.of(11), 10, MakeLetter(2, 4)));
  EXPECT_TRUE(ranks.of(10).MayHaveCome());
  EXPECT_EQ(TakeAll(ranks.of(10), 11), Numbers({2}));
  EXPECT_FALSE(ranks.of(10).MayHaveCome());
}

TEST(ShmMailboxTest, EachHasABoxFromEachOther) {
  Ranks ranks(3);
  for (int to = 10; to < 13; ++to) {
    for (int from = 10; from < 13; ++from) {
      if (from == to) continue;
      ranks.of(to).Open(from);
      EXPECT_TRUE(Put(ranks.of(from), to, MakeLetter(from * 100 + to, 0)));
    }
  }
  for (uint64_t to = 10; to < 13; ++to) {
    for (uint64_t from = 10; from < 13; ++from) {
      if (from == to) continue;
      EXPECT_EQ(TakeAll(ranks.of(to), from), Numbers({from * 100 + to}));
    }
  }
}

// Messages come out whole and in order, for all sizes and fill levels, also
// across the end of the ring at every position.
TEST(ShmMailboxTest, ComesInOrderAndWholeAroundTheEndOfTheRing) {
  for (const int count : {2, 5, 40}) {
    Ranks ranks(count);
    ranks.of(11).Open(10);
    std::mt19937 random(count);
    uint64_t put = 0;
    uint64_t taken = 0;
    int refused = 0;
    while (taken < 20'000) {
      const size_t bytes = random() % (random() % 4 == 0 ? 400 : 40);
      if (Put(ranks.of(10), 11, MakeLetter(put + 1, bytes))) {
        ++put;
        if (random() % 64 > 0) continue;
      } else {
        ++refused;
      }
      for (const uint64_t number : TakeAll(ranks.of(11), 10)) {
        ASSERT_EQ(number, ++taken);
      }
      ASSERT_EQ(taken, put);
    }
    EXPECT_TRUE(count < 40 || refused > 0);
  }
}

TEST(ShmMailboxTest, AFullBoxTakesNoMoreUntilSomethingWasTaken) {
  Ranks ranks(2);
  ranks.of(11).Open(10);
  uint64_t put = 0;
  while (Put(ranks.of(10), 11, MakeLetter(put + 1, kMessagePayloadBytesMax))) {
    ++put;
  }
  // The slot has 256 KiB.
  EXPECT_EQ(put, 7u);
  EXPECT_EQ(TakeAll(ranks.of(11), 10), Numbers({1, 2, 3, 4, 5, 6, 7}));
  EXPECT_TRUE(Put(ranks.of(10), 11, MakeLetter(8, kMessagePayloadBytesMax)));
  EXPECT_EQ(TakeAll(ranks.of(11), 10), Numbers({8}));
}

// With many ranks a slot is small. A message that does not fit into an empty
// slot goes another way. An empty slot takes at once every message that it
// takes at all.
TEST(ShmMailboxTest, HalfABoxIsTheMost) {
  Ranks ranks(40);
  ranks.of(11).Open(10);
  size_t most = 0;
  for (size_t bytes = 0; bytes <= kMessagePayloadBytesMax; bytes += 16) {
    if (!Put(ranks.of(10), 11, MakeLetter(1, bytes))) break;
    most = bytes;
    TakeAll(ranks.of(11), 10);
  }
  EXPECT_GT(most, 1000u);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(Put(ranks.of(10), 11, MakeLetter(i, most - i % 64)));
    ASSERT_EQ(TakeAll(ranks.of(11), 10).size(), 1u);
    EXPECT_FALSE(Put(ranks.of(10), 11, MakeLetter(i, most + 64)));
  }
}

// No rank that wants messages sleeps for ever, whether it sleeps, or polls and
// stops polling.
TEST(ShmMailboxTest, WhoeverWantsMailGetsIt) {
  constexpr uint64_t kLetters = 30'000;
  Ranks ranks(2);
  ranks.of(10).Open(11);
  ranks.of(11).Open(10);
  // Each rank sends its next message after it has the other's last one.
  const auto correspond = [&](int own, int peer) {
    ShmMailbox& mailbox = ranks.of(own);
    std::mt19937 random(own);
    mailbox.SetWants(true);
    uint64_t taken = 0;
    const auto take = [&] {
      const Numbers numbers = TakeAll(mailbox, peer);
      for (const uint64_t number : numbers) EXPECT_EQ(number, ++taken);
      return !numbers.empty();
    };
    for (uint64_t number = 1; number <= kLetters; ++number) {
      ASSERT_TRUE(Put(mailbox, peer, MakeLetter(number, random() % 100)));
      if (random() % 2 == 0) {
        mailbox.BeginLooking();
        for (int look = 0; look < 100 && taken < number; ++look) {
          if (mailbox.MayHaveCome()) take();
        }
        mailbox.EndLooking();
        take();
      }
      while (taken < number) {
        const uint32_t dozed = mailbox.PrepareToSleep();
        if (!take()) mailbox.Sleep(dozed, kForEver);
      }
    }
  };
  std::thread other([&] { correspond(11, 10); });
  correspond(10, 11);
  other.join();
}

TEST(ShmMailboxTest, WhoWantsNoneSleepsOn) {
  Ranks ranks(2);
  ranks.of(11).Open(10);
  ShmMailbox& mailbox = ranks.of(11);
  const uint32_t dozed = mailbox.PrepareToSleep();
  ASSERT_TRUE(Put(ranks.of(10), 11, MakeLetter(1, 4)));
  // The rank was not woken since.
  EXPECT_EQ(mailbox.PrepareToSleep(), dozed);
  mailbox.SetWants(true);
  ASSERT_TRUE(Put(ranks.of(10), 11, MakeLetter(2, 4)));
  EXPECT_NE(mailbox.PrepareToSleep(), dozed);
  const uint32_t again = mailbox.PrepareToSleep();
  mailbox.BeginLooking();
  ASSERT_TRUE(Put(ranks.of(10), 11, MakeLetter(3, 4)));
  EXPECT_EQ(mailbox.PrepareToSleep(), again);
  mailbox.EndLooking();
  std::thread sleeper([&] { mailbox.Sleep(again, kForEver); });
  mailbox.Wake();
  sleeper.join();
}

}  // namespace
}  // namespace muster::dataplane::cpu
