// Client processes use a store over connections that are cut, while its
// coordinator and some of them are killed. Then the test checks that some order
// of operations explains all observations.
//
//   linearizability_kills_test [--kills=4] [--clients=5] [--operations=400]
//                              [--seed=1]

#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/testing/cutting_proxy.h"
#include "client/testing/processes.h"
#include "gtest/gtest.h"
#include "tests/fault/killed_coordinator.h"
#include "tests/fault/linearizability.h"
#include "tests/fault/operation_lines.h"

namespace muster::fault {
namespace {

using std::chrono::seconds;

int64_t kills = 4;
int64_t clients = 5;
int64_t operations = 400;
int64_t seed = 1;

// The clients' operations, and their number.
class Notes {
 public:
  void Add(Operation operation) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      operations_.push_back(std::move(operation));
    }
    count_.fetch_add(1);
    count_.notify_all();
  }
  void End() {
    ended_.fetch_add(1);
    count_.fetch_add(1);
    count_.notify_all();
  }

  // Returns when there are `count` operations, or all clients have ended.
  void Await(int64_t count) {
    for (int64_t now = 0; (now = count_.load()) < count;) {
      if (ended_.load() == clients) return;
      count_.wait(now);
    }
  }

  const std::vector<Operation>& operations() const { return operations_; }

 private:
  std::mutex mutex_;
  std::vector<Operation> operations_;
  std::atomic<int64_t> count_ = 0;
  std::atomic<int64_t> ended_ = 0;
};

// One client. Its process may be killed; then another one of the same name
// follows.
class Client {
 public:
  Client(int index, std::string address,
         std::map<std::string, std::string> environment, Notes* notes)
      : index_(index),
        address_(std::move(address)),
        environment_(std::move(environment)),
        notes_(*notes) {
    Start();
    reader_ = std::thread([this] { Read(); });
  }
  ~Client() { reader_.join(); }

  void Kill() {
    const std::lock_guard<std::mutex> lock(mutex_);
    process_->Signal(SIGKILL);
  }

 private:
  void Start() {
    auto process = std::make_shared<testing::Process>(
        std::vector<std::string>{
            "tests/fault/store_client", address_, "linearizability",
            absl::StrCat(index_),
            absl::StrCat(seed * 1000 + index_ + 100 * lives_++),
            absl::StrCat(operations)},
        environment_);
    const std::lock_guard<std::mutex> lock(mutex_);
    process_ = std::move(process);
  }

  void Read() {
    OperationLines lines(index_);
    do {
      for (;;) {
        const std::string line = process_->ReadLine(seconds(120));
        EXPECT_FALSE(process_->failed()) << "client " << index_ << " hangs";
        if (line.empty()) break;
        std::optional<Operation> ended;
        EXPECT_TRUE(lines.Take(line, &ended))
            << "client " << index_ << ": " << line;
        if (ended.has_value()) notes_.Add(*std::move(ended));
      }
      // The client was killed during this operation.
      std::optional<Operation> open = lines.TakeOpen();
      if (open.has_value()) notes_.Add(*std::move(open));
    } while (KilledAndStartedAgain());
    notes_.End();
  }

  bool KilledAndStartedAgain() {
    const testing::Exit exit = process_->Wait(seconds(60));
    if (exit.signal == SIGKILL) {
      Start();
      return true;
    }
    EXPECT_EQ(exit.code, 0) << "client " << index_;
    return false;
  }

  const int index_;
  const std::string address_;
  const std::map<std::string, std::string> environment_;
  Notes& notes_;
  int lives_ = 0;
  std::mutex mutex_;
  std::shared_ptr<testing::Process> process_;
  std::thread reader_;
};

TEST(LinearizabilityKillsTest, WhatEverybodySawHappenedInSomeOrder) {
  KilledCoordinator coordinator;
  testing::CuttingProxy proxy(coordinator.port());
  Notes notes;
  {
    std::vector<std::unique_ptr<Client>> all;
    for (int i = 0; i < clients; ++i) {
      all.push_back(std::make_unique<Client>(
          i, proxy.address(), coordinator.environment(), &notes));
    }
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    for (int64_t kill = 1; kill <= kills; ++kill) {
      notes.Await(kill * clients * operations / (kills + 1));
      // Lets requests arrive and loses their answers.
      proxy.HoldAnswers(true);
      const int64_t before = proxy.bytes_up();
      while (proxy.bytes_up() == before) std::this_thread::yield();
      proxy.Cut();
      // Operations in flight when a client dies remain unanswered. They must be
      // few, or the search for an order takes long.
      if (kill <= 2) all[random() % all.size()]->Kill();
      coordinator.KillAndRestart();
    }
  }
  EXPECT_GE(static_cast<int64_t>(notes.operations().size()),
            clients * operations);
  EXPECT_EQ(FindViolation(notes.operations()), std::nullopt) << "seed " << seed;
  printf("%zu operations of %ld clients, %ld kills\n",
         notes.operations().size(), static_cast<long>(clients),
         static_cast<long>(kills));
}

}  // namespace
}  // namespace muster::fault

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  muster::fault::ReadNumbers(argc, argv,
                             {
                                 {"--kills", &muster::fault::kills},
                                 {"--clients", &muster::fault::clients},
                                 {"--operations", &muster::fault::operations},
                                 {"--seed", &muster::fault::seed},
                             });
  return RUN_ALL_TESTS();
}
