#include "proto/muster/v1/relay_flow.h"

#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace muster::v1 {
namespace {

// Sends what may be sent now. Returns the number of parts.
int Send(RelaySender& sender, RelayReceiver& receiver) {
  int parts = 0;
  while (sender.ready()) {
    RelayFrame frame;
    const bool last = sender.MakePart(&frame);
    EXPECT_EQ(last, frame.has_last_part());
    Status added = last ? receiver.Add(frame.last_part(), true)
                        : receiver.Add(frame.part(), false);
    EXPECT_TRUE(added.ok()) << added;
    ++parts;
  }
  return parts;
}

TEST(RelayFlowTest, AMessageArrivesAsItWasSent) {
  RelaySender sender;
  RelayReceiver receiver;
  for (const std::string& message :
       {std::string("hello"), std::string(), std::string(20'000, 'x')}) {
    sender.Begin(message);
    receiver.Read();
    Send(sender, receiver);
    ASSERT_TRUE(receiver.complete());
    EXPECT_EQ(receiver.TakeMessage(), message);
    EXPECT_TRUE(receiver.empty());
    EXPECT_FALSE(sender.sending());
  }
}

TEST(RelayFlowTest, ALargeMessageArrivesWithCreditAlone) {
  RelaySender sender;
  RelayReceiver receiver;
  std::string message(10 * kRelayWindowBytes, 'x');
  message.back() = 'y';
  sender.Begin(message);
  receiver.Read();
  int64_t granted = 0;
  while (!receiver.complete()) {
    ASSERT_GT(Send(sender, receiver), 0) << "stuck";
    const int64_t credit = receiver.TakeCredit();
    granted += credit;
    ASSERT_TRUE(sender.AddCredit(credit).ok());
  }
  EXPECT_EQ(receiver.TakeMessage(), message);
  EXPECT_GT(granted, 9 * kRelayWindowBytes);
}

TEST(RelayFlowTest, WithoutAReaderTheSenderStopsAtTheWindow) {
  RelaySender sender;
  RelayReceiver receiver;
  sender.Begin(std::string(10 * kRelayWindowBytes, 'x'));
  Send(sender, receiver);
  EXPECT_TRUE(sender.sending());
  EXPECT_FALSE(sender.ready());
  EXPECT_LE(receiver.bytes(), kRelayWindowBytes);
  EXPECT_EQ(receiver.TakeCredit(), 0);
  // The reader is back.
  receiver.Read();
  EXPECT_TRUE(sender.AddCredit(receiver.TakeCredit()).ok());
  EXPECT_TRUE(sender.ready());
}

TEST(RelayFlowTest, EmptyMessagesAreLimitedToo) {
  RelaySender sender;
  RelayReceiver receiver;
  int sent = 0;
  for (; sent < 1 << 20; ++sent) {
    sender.Begin("");
    if (Send(sender, receiver) == 0) break;
  }
  EXPECT_LT(sent, kRelayWindowBytes);
  for (int i = 0; i < sent; ++i) {
    receiver.Read();
    ASSERT_TRUE(receiver.complete());
    EXPECT_EQ(receiver.TakeMessage(), "");
  }
  receiver.Read();
  EXPECT_FALSE(receiver.complete());
}

TEST(RelayFlowTest, MoreThanTheCreditIsAnError) {
  RelayReceiver receiver;
  EXPECT_TRUE(receiver.Add(std::string(60'000, 'x'), false).ok());
  EXPECT_EQ(receiver.Add(std::string(6'000, 'x'), true),
            InvalidArgumentError("a part of 6000 bytes, with credit for 5520"));
  RelaySender sender;
  EXPECT_EQ(sender.AddCredit(1),
            InvalidArgumentError("a credit of 1 bytes, of which 0 were used"));
}

// Messages of many sizes, and a reader that comes and goes: nothing is lost,
// nothing is stuck, and the receiver never holds more than a message and a
// window.
TEST(RelayFlowTest, AnyOrderOfReadsAndPartsDeliversAllMessages) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    RelaySender sender;
    RelayReceiver receiver;
    std::deque<RelayFrame> link;
    std::vector<std::string> sent;
    size_t taken = 0;
    bool reading = false;
    constexpr size_t kMessages = 30;
    int idle = 0;
    while (taken < kMessages) {
      ASSERT_LT(++idle, 10'000) << "stuck, seed " << seed;
      switch (random() % 4) {
        case 0:
          if (sender.sending() || sent.size() == kMessages) break;
          sent.emplace_back(
              random() % 8 == 0 ? random() % 300'000 : random() % 100,
              static_cast<char>('a' + random() % 26));
          sender.Begin(sent.back());
          break;
        case 1:
          if (!sender.ready()) break;
          sender.MakePart(&link.emplace_back());
          break;
        case 2: {
          if (link.empty()) break;
          const bool last = link.front().has_last_part();
          const Status added = receiver.Add(
              last ? link.front().last_part() : link.front().part(), last);
          ASSERT_TRUE(added.ok()) << added << ", seed " << seed;
          link.pop_front();
          break;
        }
        default:
          if (!std::exchange(reading, true)) receiver.Read();
          break;
      }
      const int64_t credit = receiver.TakeCredit();
      ASSERT_TRUE(sender.AddCredit(credit).ok()) << "seed " << seed;
      ASSERT_LE(receiver.bytes() - receiver.message_bytes(), kRelayWindowBytes);
      if (!receiver.complete()) continue;
      ASSERT_EQ(receiver.TakeMessage(), sent[taken++]) << "seed " << seed;
      reading = false;
      idle = 0;
    }
  }
}

}  // namespace
}  // namespace muster::v1
