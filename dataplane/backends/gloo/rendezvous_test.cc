#include "dataplane/backends/gloo/rendezvous.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/culprit.h"
#include "dataplane/testing/in_memory_store.h"
#include "gtest/gtest.h"

namespace muster::dataplane::gloo_internal {
namespace {

// As Gloo lays one out, with rubbish where Gloo leaves it.
AddressBytes Address(const char* host, int port, char rubbish) {
  AddressBytes bytes(sizeof(sockaddr_storage) + 8, rubbish);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, host, &address.sin_addr);
  std::memcpy(bytes.data(), &address, offsetof(sockaddr_in, sin_zero));
  std::fill(bytes.end() - 8, bytes.end(), '\xff');
  return bytes;
}

int PortOf(const AddressBytes& bytes) {
  sockaddr_in address;
  std::memcpy(&address, bytes.data(), sizeof(address));
  return ntohs(address.sin_port);
}

TEST(RendezvousTest, AddressesSurviveTheirEncoding) {
  const std::vector<AddressBytes> addresses = {
      Address("10.0.0.3", 1000, 'x'), {}, Address("10.0.0.3", 65535, 'y')};
  const auto value =
      EncodeAddresses({.addresses = addresses, .nonce = 0x1122334455667788});
  ASSERT_TRUE(value.ok()) << value.status();
  const auto decoded = DecodeAddresses(*value, 3);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  const AddressBytes& first = decoded->addresses[0];
  EXPECT_EQ(PortOf(first), 1000);
  EXPECT_EQ(PortOf(decoded->addresses[2]), 65535);
  EXPECT_EQ(std::memcmp(first.data() + 4, addresses[0].data() + 4, 4), 0);
  EXPECT_EQ(first.size(), addresses[0].size());
  EXPECT_EQ(decoded->nonce, 0x1122334455667788u);
}

TEST(RendezvousTest, ValueGrowsByTwoBytesPerRank) {
  const std::vector<AddressBytes> two(2, Address("10.0.0.3", 1000, 'x'));
  const std::vector<AddressBytes> many(66, Address("10.0.0.3", 1000, 'y'));
  EXPECT_EQ(EncodeAddresses({many})->size() - EncodeAddresses({two})->size(),
            64u * 2);
}

TEST(RendezvousTest, PairsOnDifferentHostsAreRefused) {
  EXPECT_FALSE(EncodeAddresses({.addresses = {Address("10.0.0.3", 1, 'x'),
                                              Address("10.0.0.4", 1, 'x')}})
                   .ok());
}

TEST(RendezvousTest, RubbishIsAnErrorAndNoCrash) {
  for (const std::string& value :
       {std::string(), std::string("\1"), std::string(3, '\1'),
        std::string(200, '\7')}) {
    const auto decoded = DecodeAddresses(value, 4);
    EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(RendezvousTest, OneSetAndOneGetPerRank) {
  const auto store = std::make_shared<testing::InMemoryStore>();
  constexpr int kWorldSize = 5;
  std::vector<std::thread> ranks;
  ranks.reserve(kWorldSize);
  for (int rank = 0; rank < kWorldSize; ++rank) {
    ranks.emplace_back([&store, rank] {
      // Rank r waits for rank p on port 1000 r + p, for lines on 1000 r + r.
      std::vector<AddressBytes> own(kWorldSize);
      for (int peer = 0; peer < kWorldSize; ++peer) {
        own[peer] = Address("10.0.0.3", 1000 * rank + peer, 'x');
      }
      const auto remote = ExchangeAddresses(
          {.addresses = own, .nonce = static_cast<uint64_t>(rank)},
          {.rank = rank, .world_size = kWorldSize, .store = store});
      ASSERT_TRUE(remote.ok()) << remote.status();
      for (int peer = 0; peer < kWorldSize; ++peer) {
        if (peer == rank) continue;
        EXPECT_EQ(PortOf(remote->pairs[peer]), 1000 * peer + rank);
        EXPECT_EQ(PortOf(remote->lines[peer].socket), 1000 * peer + peer);
        EXPECT_EQ(remote->lines[peer].nonce, static_cast<uint64_t>(peer));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(store->sets(), kWorldSize);
  EXPECT_EQ(store->gets(), kWorldSize);
}

TEST(RendezvousTest, RanksThatDoNotComeAreNamed) {
  const auto store = std::make_shared<testing::InMemoryStore>();
  std::vector<AddressBytes> own(4, Address("10.0.0.3", 1000, 'x'));
  own[0].clear();
  ASSERT_TRUE(store->Set("gloo/2", *EncodeAddresses({own})).ok());
  const auto remote = ExchangeAddresses(
      {own}, {.rank = 0,
              .world_size = 4,
              .store = store,
              .deadline = Clock::now() + std::chrono::milliseconds(20)});
  EXPECT_EQ(remote.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(remote.status().message()),
            "2 of 4 ranks came to the rendezvous in time; missing ranks 1, 3");
  EXPECT_EQ(CulpritRank(remote.status()), 1);
}

TEST(RendezvousTest, RankOfAnotherWorldSizeIsNamed) {
  for (const int world_size : {1, 3}) {
    const auto store = std::make_shared<testing::InMemoryStore>();
    const std::vector<AddressBytes> theirs(world_size,
                                           Address("10.0.0.3", 1000, 'x'));
    ASSERT_TRUE(store->Set("gloo/1", *EncodeAddresses({theirs})).ok());
    const auto remote =
        ExchangeAddresses({.addresses = {{}, Address("10.0.0.3", 1000, 'x')}},
                          {.rank = 0, .world_size = 2, .store = store});
    EXPECT_EQ(remote.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(remote.status().message()),
              absl::StrCat("rank 1: unreadable gloo address of ",
                           145 + 2 * world_size,
                           " bytes for a group of 2; does every rank run the "
                           "same version with the same world size?"));
    EXPECT_EQ(CulpritRank(remote.status()), 1);
  }
}

TEST(RendezvousTest, StoreThatAnswersWithTooFewValuesIsAnError) {
  class ForgetfulStore : public testing::InMemoryStore {
   public:
    absl::StatusOr<std::vector<std::string>> Get(
        const std::vector<std::string>&, Instant) override {
      return std::vector<std::string>();
    }
  };
  const auto remote =
      ExchangeAddresses({.addresses = {{}, Address("10.0.0.3", 1000, 'x')}},
                        {.rank = 0,
                         .world_size = 2,
                         .store = std::make_shared<ForgetfulStore>()});
  EXPECT_EQ(
      remote.status(),
      absl::InternalError("the bootstrap store returned 0 values for 1 keys"));
}

TEST(RendezvousTest, ManyRanksAreCutInText) {
  EXPECT_EQ(DescribeRanks({7}), "rank 7");
  EXPECT_EQ(DescribeRanks({1, 2, 3, 4, 5, 6, 7, 8}),
            "ranks 1, 2, 3, 4, 5, 6, 7, 8");
  EXPECT_EQ(DescribeRanks({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}),
            "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 2 more");
}

}  // namespace
}  // namespace muster::dataplane::gloo_internal
