#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/cpu/engine/cpu_backend.h"
#include "dataplane/cpu/transport/address_exchange.h"
#include "dataplane/cpu/transport/listener.h"
#include "dataplane/culprit.h"
#include "dataplane/testing/in_memory_store.h"
#include "dataplane/testing/local_world.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/dataplane/factory.h"

namespace muster::dataplane {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::InMemoryStore;
using testing::LocalWorld;
using ::testing::StartsWith;

Status Join(BackendOptions options, milliseconds timeout) {
  options.deadline = Clock::now() + timeout;
  return CreateBackend("gloo", options).status();
}

// The published value of a rank at 127.0.0.1, on a port on which nothing
// listens.
std::string ValueOfSilentRank(int world_size) {
  cpu::AddressBytes bytes(sizeof(sockaddr_storage));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(1);
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  std::memcpy(bytes.data(), &address, sizeof(address));
  return cpu::EncodeAddress({.socket = bytes}, world_size);
}

// A listening socket at 127.0.0.1, and its address.
struct Listener {
  Listener() {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t address_bytes = sizeof(address);
    EXPECT_EQ(bind(socket, generic, sizeof(address)), 0);
    EXPECT_EQ(listen(socket, 1), 0);
    EXPECT_EQ(getsockname(socket, generic, &address_bytes), 0);
    std::memcpy(bytes.data(), &address, sizeof(address));
  }
  ~Listener() { close(socket); }

  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  cpu::AddressBytes bytes = cpu::AddressBytes(sizeof(sockaddr_storage) + 8);
};

// Both ends of a connection to `listener`.
struct Connection {
  explicit Connection(const Listener& listener) {
    EXPECT_EQ(connect(opened,
                      reinterpret_cast<const sockaddr*>(listener.bytes.data()),
                      sizeof(sockaddr_in)),
              0);
    accepted = accept(listener.socket, nullptr, nullptr);
  }
  ~Connection() {
    close(opened);
    close(accepted);
  }

  const int opened = socket(AF_INET, SOCK_STREAM, 0);
  int accepted = -1;
};

TEST(GlooConnectTest, RankThatNeverComesIsNamed) {
  const Status status = Join({.rank = 0,
                              .world_size = 2,
                              .group_name = "world",
                              .store = std::make_shared<InMemoryStore>(),
                              .local_address = "127.0.0.1"},
                             milliseconds(50));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(status.message()),
            "1 of 2 ranks came to the rendezvous in time; missing rank 1");
}

TEST(GlooConnectTest, RanksThatComeButDoNotConnectAreNamed) {
  const auto store = std::make_shared<InMemoryStore>();
  // The higher rank of two connects.
  for (const char* key : {"gloo/1", "gloo/2"}) {
    ASSERT_TRUE(store->Set(key, ValueOfSilentRank(3)).ok());
  }
  const Instant start = Clock::now();
  const Status status = Join({.rank = 0,
                              .world_size = 3,
                              .group_name = "world",
                              .store = store,
                              .local_address = "127.0.0.1"},
                             milliseconds(200));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(std::string(status.message()),
            "ranks 1, 2 did not connect to this rank (0) in time; 0 of 2 peers "
            "did");
  EXPECT_EQ(CulpritRank(status), 1);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
}

TEST(GlooConnectTest, RankThatConnectsBehindOneThatDoesNotIsNotNamed) {
  const auto store = std::make_shared<InMemoryStore>();
  ASSERT_TRUE(store->Set("gloo/1", ValueOfSilentRank(3)).ok());
  std::future<Status> joined = std::async(std::launch::async, [&] {
    return Join({.rank = 0,
                 .world_size = 3,
                 .group_name = "world",
                 .store = store,
                 .local_address = "127.0.0.1"},
                milliseconds(500));
  });
  cpu::Listener rank2(/*rank=*/2, /*world_size=*/3);
  const auto values = store->Get({"gloo/0"}, Instant::max());
  const auto rank0 = cpu::DecodeAddress(values->front(), 3);
  auto own = rank2.Listen(rank0->socket);
  ASSERT_TRUE(own.ok()) << own.status();
  ASSERT_TRUE(store->Set("gloo/2", cpu::EncodeAddress(*own, 3)).ok());
  // Rank 2 also waits for rank 1, which accepts but does not answer.
  const Listener silent;
  const auto connecting = std::async(std::launch::async, [&] {
    return rank2.Connect({*rank0, {.socket = silent.bytes}, *own},
                         Clock::now() + std::chrono::seconds(2));
  });
  const Status status = joined.get();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(
      std::string(status.message()),
      "rank 1 did not connect to this rank (0) in time; 1 of 2 peers did");
  EXPECT_EQ(CulpritRank(status), 1);
}

TEST(GlooConnectTest, RankThatLeavesAtOnceDoesNotDisturbWhoStillConnects) {
  for (int round = 0; round < 20; ++round) {
    const auto store = std::make_shared<InMemoryStore>();
    std::vector<Status> joined(4);
    std::vector<std::thread> ranks;
    ranks.reserve(4);
    for (int rank = 0; rank < 4; ++rank) {
      ranks.emplace_back([&, rank] {
        // The backend is destroyed when Join returns.
        joined[rank] = Join({.rank = rank,
                             .world_size = 4,
                             .group_name = "world",
                             .store = store,
                             .local_address = "127.0.0.1"},
                            std::chrono::seconds(30));
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (const Status& status : joined) EXPECT_TRUE(status.ok()) << status;
  }
}

// A store that answers a rank only when another one has gone, or after a while.
class StoreOfALateRank : public InMemoryStore {
 public:
  StoreOfALateRank(std::shared_ptr<InMemoryStore> store,
                   std::future<void>& other_left)
      : store_(std::move(store)), other_left_(other_left) {}

  Status Set(const std::string& key, const std::string& value) override {
    return store_->Set(key, value);
  }
  StatusOr<std::vector<std::string>> Get(const std::vector<std::string>& keys,
                                         Instant deadline) override {
    auto values = store_->Get(keys, deadline);
    other_left_.wait_for(std::chrono::seconds(1));
    return values;
  }

 private:
  const std::shared_ptr<InMemoryStore> store_;
  std::future<void>& other_left_;
};

TEST(GlooConnectTest, RankThatLeavesAtOnceWaitsForWhoHasNotConnectedYet) {
  const auto store = std::make_shared<InMemoryStore>();
  Status early;
  std::future<void> early_left = std::async(std::launch::async, [&] {
    early = Join({.rank = 0,
                  .world_size = 2,
                  .group_name = "world",
                  .store = store,
                  .local_address = "127.0.0.1"},
                 std::chrono::seconds(30));
  });
  const Status late =
      Join({.rank = 1,
            .world_size = 2,
            .group_name = "world",
            .store = std::make_shared<StoreOfALateRank>(store, early_left),
            .local_address = "127.0.0.1"},
           std::chrono::seconds(30));
  EXPECT_TRUE(late.ok()) << late;
  early_left.wait();
  EXPECT_TRUE(early.ok()) << early;
}

TEST(GlooConnectTest, RankThatLeftInPeaceEndsNothingThatGoesOnWithoutIt) {
  LocalWorld world({.world_size = 4});
  std::vector<std::vector<float>> data(4, std::vector<float>(1 << 20));
  data[0].assign(data[0].size(), 7.0f);
  const auto broadcast = [&](int rank) {
    return world.at(rank).Start({.kind = CollectiveKind::kBroadcast,
                                 .tensors = {Tensor(data[rank])},
                                 .root = 0});
  };
  const auto first = broadcast(0);
  const auto second = broadcast(2);  // sends data that rank 3 does not take yet
  const auto third = broadcast(1);
  // The chain passes rank 0's data on without rank 3.
  const Status passed_on = first->Wait(Clock::now() + std::chrono::seconds(10));
  ASSERT_TRUE(passed_on.ok()) << passed_on;
  world.Destroy(0);
  // Wait longer than the watchdog takes to see that rank 0 has gone.
  (void)second->Wait(Clock::now() + milliseconds(700));
  EXPECT_TRUE(!second->IsCompleted() || second->status().ok())
      << second->status();
  const auto last = broadcast(3);
  EXPECT_TRUE(last->Wait(Instant::max()).ok()) << last->status();
  EXPECT_TRUE(second->Wait(Instant::max()).ok()) << second->status();
  EXPECT_TRUE(third->Wait(Instant::max()).ok()) << third->status();
  EXPECT_EQ(data[3].back(), 7.0f);
}

TEST(GlooConnectTest, RankWhoseSocketIsClosedIsNamedAtOnce) {
  const auto store = std::make_shared<InMemoryStore>();
  ASSERT_TRUE(store->Set("gloo/0", ValueOfSilentRank(2)).ok());
  const Status status = Join({.rank = 1,
                              .world_size = 2,
                              .group_name = "world",
                              .store = store,
                              .local_address = "127.0.0.1"},
                             std::chrono::seconds(60));
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_EQ(std::string(status.message()),
            "cannot connect to rank 0: Connection refused");
  EXPECT_EQ(CulpritRank(status), 0);
}

TEST(GlooConnectTest, RankOfAnotherWorldSizeIsAnError) {
  const auto store = std::make_shared<InMemoryStore>();
  ASSERT_TRUE(store->Set("gloo/1", "rubbish").ok());
  const Status status = Join({.rank = 0,
                              .world_size = 2,
                              .group_name = "world",
                              .store = store,
                              .local_address = "127.0.0.1"},
                             std::chrono::seconds(60));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), StartsWith("rank 1: unreadable"));
}

TEST(GlooConnectTest, UnknownInterfaceIsAnErrorThatListsTheOthers) {
  const Status status = Join({.rank = 0,
                              .world_size = 1,
                              .group_name = "world",
                              .network_interfaces = "nosuch0,lo"},
                             std::chrono::seconds(60));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()),
              StartsWith("network_interfaces: no interface \"nosuch0\" with an "
                         "address on this host; there are: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("lo"));
}

TEST(GlooConnectTest, VariablesThatMeanNothingAreRefused) {
  for (const auto& [name, text] :
       std::vector<std::pair<const char*, const char*>>{
           {"MUSTER_GLOO_PEER_MEMORY", "must be 0 or 1 but was \"off\""},
           {"TORCH_GLOO_LAZY_INIT",
            "must be 0 or 1 (or n, no, f, false, y, "
            "yes, t, true) but was \"off\""},
           {"MUSTER_GLOO_ALGORITHM", "no algorithm \"off\""}}) {
    setenv(name, "off", /*overwrite=*/1);
    const Status status =
        Join({.rank = 0, .world_size = 1}, std::chrono::seconds(60));
    unsetenv(name);
    EXPECT_TRUE(IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(StartsWith(absl::StrCat("environment variable ", name)),
                      HasSubstr(text)));
  }
}

// Collects the warnings of the log.
class Warnings : public google::LogSink {
 public:
  Warnings() { google::AddLogSink(this); }
  ~Warnings() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity severity, const char*, const char*, int,
            const struct tm*, const char* message, size_t length) override {
    if (severity == google::WARNING) texts.emplace_back(message, length);
  }

  std::vector<std::string> texts;
};

TEST(GlooConnectTest, LazyInitIsTakenAndSaidOnceToHaveNoEffect) {
  Warnings warnings;
  for (const char* const value : {"", "0", "False", "True", "1"}) {
    if (*value != '\0') setenv("TORCH_GLOO_LAZY_INIT", value, 1);
    const Status status =
        Join({.rank = 0, .world_size = 1, .local_address = "127.0.0.1"},
             std::chrono::seconds(60));
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(warnings.texts.size(), *value == 'T' || *value == '1' ? 1u : 0u)
        << value;
  }
  unsetenv("TORCH_GLOO_LAZY_INIT");
  EXPECT_THAT(
      warnings.texts,
      ElementsAre(StartsWith("TORCH_GLOO_LAZY_INIT=True has no effect")));
}

TEST(GlooConnectTest, InterfaceComesFromTheEnvironmentToo) {
  setenv("GLOO_SOCKET_IFNAME", "nosuch1", /*overwrite=*/1);
  const Status status =
      Join({.rank = 0, .world_size = 1, .group_name = "world"},
           std::chrono::seconds(60));
  EXPECT_THAT(std::string(status.message()),
              StartsWith("GLOO_SOCKET_IFNAME: no interface \"nosuch1\""));
  setenv("GLOO_SOCKET_IFNAME", "lo,nosuch2", /*overwrite=*/1);
  EXPECT_THAT(
      std::string(Join({.rank = 0, .world_size = 1}, std::chrono::seconds(60))
                      .message()),
      StartsWith("GLOO_SOCKET_IFNAME: no interface \"nosuch2\""));
  setenv("GLOO_SOCKET_IFNAME", "lo,lo", /*overwrite=*/1);
  EXPECT_TRUE(Join({.rank = 0, .world_size = 1, .group_name = "world"},
                   std::chrono::seconds(60))
                  .ok());
  unsetenv("GLOO_SOCKET_IFNAME");
}

TEST(GlooConnectTest, AddressOfAnotherHostIsAnError) {
  const Status status = Join({.rank = 0,
                              .world_size = 1,
                              .group_name = "world",
                              .local_address = "192.0.2.1"},
                             std::chrono::seconds(60));
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_THAT(
      std::string(status.message()),
      StartsWith("argument local_address: cannot listen at 192.0.2.1: "));
  EXPECT_EQ(Join({.rank = 0,
                  .world_size = 1,
                  .group_name = "world",
                  .local_address = "trainer-3"},
                 std::chrono::seconds(60)),
            InvalidArgumentError(
                "argument local_address: \"trainer-3\" is no IP address"));
}

// Connects repeatedly to each port at which this process listens, and sends
// nothing.
class PortScan {
 public:
  PortScan() : thread_([this] { Run(); }) {}
  ~PortScan() {
    is_over_ = true;
    thread_.join();
  }

 private:
  void Run() const {
    while (!is_over_) {
      for (int socket = 0; socket < 256; ++socket) Visit(socket);
    }
  }

  static void Visit(int listener) {
    int listens = 0;
    socklen_t bytes = sizeof(listens);
    if (getsockopt(listener, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) !=
            0 ||
        listens == 0) {
      return;
    }
    sockaddr_in address = {};
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    bytes = sizeof(address);
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (getsockname(listener, generic, &bytes) == 0) {
      (void)connect(socket, generic, bytes);
    }
    close(socket);
  }

  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

TEST(GlooConnectTest, APortScanWhileRanksConnectHarmsNobody) {
  const PortScan scan;
  for (int group = 0; group < 20; ++group) {
    LocalWorld world({.world_size = 2});
    world.OnEachRank([](Communicator& communicator) {
      const int peer = 1 - communicator.rank();
      std::vector<int32_t> sent(30'000, communicator.rank());
      std::vector<int32_t> received(sent.size(), -1);
      // Both ranks open the connection at the same time.
      const auto sending = communicator.Start({.kind = CollectiveKind::kSend,
                                               .inputs = {Tensor(sent)},
                                               .peer = peer});
      const auto receiving = communicator.Start({.kind = CollectiveKind::kRecv,
                                                 .outputs = {Tensor(received)},
                                                 .peer = peer});
      const Status has_received = receiving->Wait();
      ASSERT_TRUE(has_received.ok()) << has_received;
      const Status has_sent = sending->Wait();
      ASSERT_TRUE(has_sent.ok()) << has_sent;
      EXPECT_EQ(received.back(), peer);
    });
  }
}

TEST(GlooConnectTest, BadOptionsAreNamed) {
  EXPECT_EQ(Join({.rank = 2,
                  .world_size = 2,
                  .group_name = "world",
                  .store = std::make_shared<InMemoryStore>()},
                 std::chrono::seconds(1)),
            InvalidArgumentError("argument rank: 2 is not in a group of 2"));
  EXPECT_EQ(Join({.rank = 0, .world_size = 2, .group_name = "world"},
                 std::chrono::seconds(1)),
            InvalidArgumentError(
                "argument store: a group of 2 needs one to meet in"));
}

TEST(FactoryTest, UnknownBackendIsAnErrorThatListsThoseBuiltIn) {
  EXPECT_EQ(
      CreateBackend("smoke", {}).status(),
      InvalidArgumentError(
          "unknown backend \"smoke\": this program has gloo, shm; others are "
          "registered (RegisterBackend), or loaded from a library "
          "(LoadBackend, MUSTER_BACKEND_LIBRARIES)"));
}

// Not a benchmark: detects waits of 10 ms for each connection made or closed
// (10 s each for 32 ranks).
TEST(GlooConnectTest, GroupsOf32AreMadeAndEndedQuickly) {
  for (const int world_size : {2, 8, 32}) {
    const Instant start = Clock::now();
    Instant made;
    {
      LocalWorld world({.world_size = world_size});
      made = Clock::now();
    }
    const Instant ended = Clock::now();
    const auto in_ms = [](Clock::duration duration) {
      return std::chrono::duration_cast<milliseconds>(duration).count();
    };
    RecordProperty("make_ms_" + std::to_string(world_size),
                   std::to_string(in_ms(made - start)));
    RecordProperty("end_ms_" + std::to_string(world_size),
                   std::to_string(in_ms(ended - made)));
    std::printf("%d ranks: made in %ld ms, ended in %ld ms\n", world_size,
                in_ms(made - start), in_ms(ended - made));
    EXPECT_LT(in_ms(ended - start), 8000) << world_size;
  }
}

}  // namespace
}  // namespace muster::dataplane
