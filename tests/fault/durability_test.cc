// A coordinator on RocksDB is killed at random moments, again and again, while
// clients change and read its store; then their history is checked.
//
//   durability_test [--kills=12] [--clients=4] [--seed=1]

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/control/admin_client.h"
#include "gtest/gtest.h"
#include "muster/errors.h"
#include "muster/session.h"
#include "muster/store.h"
#include "muster/v1/admin.pb.h"
#include "tests/fault/history.h"
#include "tests/fault/killed_coordinator.h"

namespace muster::fault {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

int64_t kills = 12;
int64_t clients = 4;
int64_t seed = 1;

// The next kill comes after at most kOperationsMax operations of all clients.
// Meanwhile clients may make at most kOperationsMore. So every process of the
// coordinator does some work and ends during work, on slow machines, too.
constexpr int64_t kOperationsMax = 400;
constexpr int64_t kOperationsMore = 2'000;

std::shared_ptr<Session> Connect(const std::string& address,
                                 const std::string& member) {
  return Session::Connect(
      {.address = address, .job = "durability", .member = member});
}

int64_t NumberAt(Store& store, const std::string& key) {
  if (!store.Check({key})) return 0;
  int64_t number = -1;
  EXPECT_TRUE(absl::SimpleAtoi(store.Get(key), &number));
  return number;
}

// One client: uses its own register, the others' registers, the counter and the
// log.
class Client {
 public:
  Client(int index, const std::string& address, History* history,
         std::atomic<int64_t>* done, std::atomic<int64_t>* allowed)
      : index_(index),
        history_(*history),
        done_(*done),
        allowed_(*allowed),
        random_(static_cast<uint64_t>(seed * 1000 + index)),
        session_(Connect(address, absl::StrCat("client-", index))),
        store_(session_) {}

  // Runs until `allowed` is negative.
  void Run() {
    for (int64_t allowed = 0; (allowed = allowed_.load()) >= 0;) {
      if (done_.load() >= allowed) {
        allowed_.wait(allowed);
        continue;
      }
      Step();
      done_.fetch_add(1);
      done_.notify_all();
    }
  }

 private:
  static std::string Register(int index) { return absl::StrCat("reg-", index); }

  void Step() {
    switch (random_() % 4) {
      case 0: {
        const std::string own = Register(index_);
        history_.WriteBegins(own, ++value_);
        store_.Set(own, absl::StrCat(value_));
        return history_.WriteAcknowledged(own, value_);
      }
      case 1: {
        const std::string any = Register(static_cast<int>(random_() % clients));
        const int64_t at_least = history_.ReadBegins(any);
        const int64_t seen = NumberAt(store_, any);
        return history_.ReadEnded(any, at_least, seen);
      }
      case 2:
        return history_.Added(index_, store_.Add("counter", 1));
      default: {
        const std::string token = absl::StrCat(index_, "-", ++token_);
        store_.Append("log", token + ",");
        return history_.Appended(index_, token);
      }
    }
  }

  const int index_;
  History& history_;
  std::atomic<int64_t>& done_;
  std::atomic<int64_t>& allowed_;
  std::mt19937_64 random_;
  const std::shared_ptr<Session> session_;
  CoordinatorStore store_;
  int64_t value_ = 0;
  int64_t token_ = 0;
};

// Even if syncs come at an interval, a killed process loses nothing.
class DurabilityTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Sync, DurabilityTest,
                         ::testing::Values("always", "interval"),
                         [](const auto& test) {
                           return std::string(test.param);
                         });

TEST_P(DurabilityTest, KillsCostNothingThatWasAcknowledged) {
  KilledCoordinator coordinator({absl::StrCat("--sync=", GetParam())});
  History history;
  std::atomic<int64_t> done = 0;
  std::atomic<int64_t> allowed = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i) {
    auto client = std::make_shared<Client>(i, coordinator.address(), &history,
                                           &done, &allowed);
    threads.emplace_back([client] { client->Run(); });
  }
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  for (int64_t kill = 0; kill < kills; ++kill) {
    // The kill comes after that many operations, while others are in flight.
    const int64_t until =
        done.load() + 1 + static_cast<int64_t>(random() % kOperationsMax);
    allowed.store(until + kOperationsMore);
    allowed.notify_all();
    for (int64_t now = 0; (now = done.load()) < until;) done.wait(now);
    coordinator.KillAndRestart();
  }
  allowed.store(-1);
  allowed.notify_all();
  for (std::thread& thread : threads) thread.join();

  const auto session = Connect(coordinator.address(), "reader");
  CoordinatorStore store(session);
  std::map<std::string, int64_t> registers;
  for (int i = 0; i < clients; ++i) {
    const std::string reg = absl::StrCat("reg-", i);
    registers[reg] = NumberAt(store, reg);
  }
  const std::string log = store.Check({"log"}) ? store.Get("log") : "";
  EXPECT_EQ(history.Check(registers, NumberAt(store, "counter"), log),
            std::nullopt)
      << "seed " << seed;
  printf("%ld operations of %ld clients, %ld kills\n",
         static_cast<long>(history.operations()), static_cast<long>(clients),
         static_cast<long>(kills));
}

// Ranks, barriers and the answers to calls in flight survive, too.
TEST(DurableGroupTest, GoesOnThroughKills) {
  KilledCoordinator coordinator;
  constexpr int kRanks = 3;
  constexpr int kBarriers = 60;
  std::atomic<int> released = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto session =
          Connect(coordinator.address(), absl::StrCat("rank-", rank));
      const Formation formation =
          session->Join({.rank = rank, .world_size = kRanks});
      EXPECT_EQ(formation.rank, rank);
      for (int i = 0; i < kBarriers; ++i) {
        session->AwaitBarrier({.name = "step"});
        released.fetch_add(1);
        released.notify_all();
      }
      EXPECT_TRUE(session->status().ok()) << session->status();
      session->Leave("finished");
    });
  }
  for (int kill = 1; kill <= 5; ++kill) {
    const int until = kill * kRanks * kBarriers / 6;
    for (int now = 0; (now = released.load()) < until;) released.wait(now);
    coordinator.KillAndRestart();
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(released.load(), kRanks * kBarriers);
}

// Waiting calls wait again at the next coordinator.
TEST(DurableGroupTest, CallsThatWaitGoOnThroughKills) {
  KilledCoordinator coordinator;
  const auto session = Connect(coordinator.address(), "waits");
  CoordinatorStore store(session);
  // Set before the first kill: the history of changes does not survive it.
  store.Set("watched", "0");
  const auto other = Connect(coordinator.address(), "other");
  CoordinatorStore others(other);
  auto got = std::async(std::launch::async, [&] { return store.Get("k"); });
  auto popped =
      std::async(std::launch::async, [&] { return store.QueuePop("q"); });
  auto waited = std::async(std::launch::async, [&] {
    store.Wait({"a", "b"});
    return store.Get("b");
  });
  auto joined = std::async(std::launch::async, [&] {
    return session->Join({.rank = 0, .world_size = 2}).generation;
  });
  // Waits until all four are parked, so that waiting calls are tested.
  const auto control =
      internal::AdminClient::Open({.address = coordinator.address()});
  ASSERT_TRUE(control.ok()) << control.status();
  v1::GetJobRequest request;
  request.set_job("durability");
  v1::GetJobResponse job;
  do {
    ASSERT_TRUE((*control)->GetJob(request, &job).ok());
  } while (job.summary().waiters() < 4);
  for (int kill = 0; kill < 3; ++kill) coordinator.KillAndRestart();
  others.Set("a", "1");
  coordinator.KillAndRestart();
  others.Set("b", "2");
  others.Set("k", "v");
  others.QueuePush("q", "item");
  EXPECT_EQ(got.get(), "v");
  EXPECT_EQ(popped.get(), "item");
  EXPECT_EQ(others.QueueLen("q"), 0);
  EXPECT_EQ(waited.get(), "2");
  const Formation formation = other->Join({.rank = 1, .world_size = 2});
  EXPECT_EQ(formation.generation, joined.get());
}

}  // namespace
}  // namespace muster::fault

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  muster::fault::ReadNumbers(argc, argv,
                             {
                                 {"--kills", &muster::fault::kills},
                                 {"--clients", &muster::fault::clients},
                                 {"--seed", &muster::fault::seed},
                             });
  return RUN_ALL_TESTS();
}
