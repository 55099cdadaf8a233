#include "dataplane/cpu/transport/address_exchange.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dataplane/culprit.h"
#include "dataplane/testing/in_memory_store.h"
#include "gtest/gtest.h"

namespace muster::dataplane::cpu {
namespace {

AddressBytes Address(const char* host, int port) {
  AddressBytes bytes(sizeof(sockaddr_storage));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, host, &address.sin_addr);
  std::memcpy(bytes.data(), &address, sizeof(address));
  return bytes;
}

int GetPort(const AddressBytes& bytes) {
  sockaddr_in address;
  std::memcpy(&address, bytes.data(), sizeof(address));
  return ntohs(address.sin_port);
}

TEST(RendezvousTest, AddressSurvivesItsEncoding) {
  const AddressBytes address = Address("10.0.0.3", 65535);
  const auto decoded = DecodeAddress(EncodeAddress({.socket = address,
                                                    .nonce = 0x1122334455667788,
                                                    .backend = "eightlet"},
                                                   3),
                                     3);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(
      decoded->socket,
      AddressBytes(address.begin(), address.begin() + sizeof(sockaddr_in)));
  EXPECT_EQ(decoded->nonce, 0x1122334455667788u);
  EXPECT_EQ(decoded->backend, "eightlet");
}

TEST(RendezvousTest, AddressOfTheSixthVersionSurvivesItsEncoding) {
  AddressBytes address(sizeof(sockaddr_in6));
  sockaddr_in6 v6 = {};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(1000);
  inet_pton(AF_INET6, "fe80::1", &v6.sin6_addr);
  v6.sin6_scope_id = 7;
  std::memcpy(address.data(), &v6, sizeof(v6));
  const auto decoded = DecodeAddress(EncodeAddress({.socket = address}, 3), 3);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->socket, address);
}

TEST(RendezvousTest, RubbishIsAnErrorAndNoCrash) {
  for (const std::string& value :
       {std::string(), std::string("\1"), std::string(3, '\1'),
        std::string(200, '\7')}) {
    const auto decoded = DecodeAddress(value, 4);
    EXPECT_EQ(decoded.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(RendezvousTest, OneSetAndOneGetPerRank) {
  const auto store = std::make_shared<testing::InMemoryStore>();
  constexpr int kWorldSize = 5;
  std::vector<std::thread> ranks;
  ranks.reserve(kWorldSize);
  for (int rank = 0; rank < kWorldSize; ++rank) {
    ranks.emplace_back([&store, rank] {
      const auto remote = ExchangeAddresses(
          {.socket = Address("10.0.0.3", 1000 + rank),
           .nonce = static_cast<uint64_t>(rank)},
          {.rank = rank, .world_size = kWorldSize, .store = store});
      ASSERT_TRUE(remote.ok()) << remote.status();
      for (int peer = 0; peer < kWorldSize; ++peer) {
        if (peer == rank) continue;
        EXPECT_EQ(GetPort((*remote)[peer].socket), 1000 + peer);
        EXPECT_EQ((*remote)[peer].nonce, static_cast<uint64_t>(peer));
      }
      EXPECT_TRUE((*remote)[rank].socket.empty());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(store->sets(), kWorldSize);
  EXPECT_EQ(store->gets(), kWorldSize);
}

TEST(RendezvousTest, RanksThatDoNotComeAreNamed) {
  const auto store = std::make_shared<testing::InMemoryStore>();
  const RankAddress own = {.socket = Address("10.0.0.3", 1000)};
  ASSERT_TRUE(store->Set("gloo/2", EncodeAddress(own, 4)).ok());
  const auto remote = ExchangeAddresses(
      own, {.rank = 0,
            .world_size = 4,
            .store = store,
            .deadline = Clock::now() + std::chrono::milliseconds(20)});
  EXPECT_EQ(remote.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(remote.status().message()),
            "2 of 4 ranks came to the rendezvous in time; missing ranks 1, 3");
  EXPECT_EQ(CulpritRanks(remote.status()), (std::vector<int>{1, 3}));
}

TEST(RendezvousTest, RankOfAnotherWorldSizeIsNamed) {
  for (const int world_size : {1, 3}) {
    const auto store = std::make_shared<testing::InMemoryStore>();
    const RankAddress address = {.socket = Address("10.0.0.3", 1000)};
    ASSERT_TRUE(store->Set("gloo/1", EncodeAddress(address, world_size)).ok());
    const auto remote = ExchangeAddresses(
        address, {.rank = 0, .world_size = 2, .store = store});
    EXPECT_EQ(remote.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(remote.status().message()),
              "rank 1: unreadable gloo address of 56 bytes for a group of 2; "
              "does every rank run the same version with the same world "
              "size?");
    EXPECT_EQ(CulpritRank(remote.status()), 1);
  }
}

TEST(RendezvousTest, RankOfAnotherBackendIsNamedWithIt) {
  const auto store = std::make_shared<testing::InMemoryStore>();
  RankAddress address = {.socket = Address("10.0.0.3", 1000)};
  ASSERT_TRUE(store->Set("gloo/1", EncodeAddress(address, 3)).ok());
  address.backend = "shm";
  ASSERT_TRUE(store->Set("gloo/2", EncodeAddress(address, 3)).ok());
  const auto remote =
      ExchangeAddresses(address, {.rank = 0, .world_size = 3, .store = store});
  EXPECT_EQ(remote.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(remote.status().message()),
            "rank 1 has backend \"gloo\", rank 0 \"shm\": the ranks of a group "
            "must have the same");
  EXPECT_EQ(CulpritRank(remote.status()), 1);
}

TEST(RendezvousTest, RankWithOtherMeasuredRowsIsNamed) {
  const auto store = std::make_shared<testing::InMemoryStore>();
  RankAddress address = {.socket = Address("10.0.0.3", 1000)};
  ASSERT_TRUE(store->Set("gloo/1", EncodeAddress(address, 2)).ok());
  address.tuning = 0xabc;
  const auto remote =
      ExchangeAddresses(address, {.rank = 0, .world_size = 2, .store = store});
  EXPECT_EQ(remote.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(remote.status().message()),
            "environment variable MUSTER_TUNE_FILE must name a file with the "
            "same rows on every rank: rank 1 has none, rank 0 one (abc)");
  EXPECT_EQ(CulpritRank(remote.status()), 1);
}

TEST(RendezvousTest, RankWithAnotherTransportIsNamedWithIt) {
  const auto store = std::make_shared<testing::InMemoryStore>();
  RankAddress address = {.socket = Address("10.0.0.3", 1000)};
  ASSERT_TRUE(store->Set("gloo/1", EncodeAddress(address, 2)).ok());
  address.transport = "gloo";
  const auto remote =
      ExchangeAddresses(address, {.rank = 0, .world_size = 2, .store = store});
  EXPECT_EQ(remote.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(remote.status().message()),
            "rank 1 has transport \"tcp\", rank 0 \"gloo\": "
            "cpu_transport, MUSTER_CPU_TRANSPORT and GLOO_DEVICE_TRANSPORT "
            "must be the same on every rank");
  EXPECT_EQ(CulpritRank(remote.status()), 1);
}

TEST(RendezvousTest, StoreThatAnswersWithTooFewValuesIsAnError) {
  class ForgetfulStore : public testing::InMemoryStore {
   public:
    StatusOr<std::vector<std::string>> Get(const std::vector<std::string>&,
                                           Instant) override {
      return std::vector<std::string>();
    }
  };
  const auto remote =
      ExchangeAddresses({.socket = Address("10.0.0.3", 1000)},
                        {.rank = 0,
                         .world_size = 2,
                         .store = std::make_shared<ForgetfulStore>()});
  EXPECT_EQ(remote.status(),
            InternalError("the bootstrap store returned 0 values for 1 keys"));
}

}  // namespace
}  // namespace muster::dataplane::cpu
