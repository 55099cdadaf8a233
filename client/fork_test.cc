// A forked child and its parent's objects: calls fail, and exits do no harm.

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/testing/local_groups.h"
#include "coordinator/server/server.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/debug.h"
#include "muster/errors.h"
#include "muster/file_store.h"
#include "muster/hash_store.h"
#include "muster/process_group.h"
#include "muster/session.h"
#include "muster/store.h"
#include "muster/tcp_store.h"

namespace muster {
namespace {

using muster::testing::LocalGroups;
using std::chrono::milliseconds;
using std::chrono::seconds;

// One object of each kind. Static, as in many programs, so that exit destroys
// them.
struct Things {
  std::shared_ptr<Session> session;
  std::shared_ptr<CoordinatorStore> store;
  std::unique_ptr<StoreWatch> watch;
  std::shared_ptr<TcpStore> tcp;
  std::shared_ptr<FileStore> file;
  std::shared_ptr<HashStore> hash;
  std::shared_ptr<PrefixStore> prefix;
  std::unique_ptr<LocalGroups> groups;
  std::optional<Work> work;
  std::optional<Future<std::vector<Tensor>>> future;
  std::optional<Future<void>> done;
};
Things g_things;

// Forks a child that runs `body` and exits; returns its status. Kills a child
// that hangs.
int StatusOfFork(const std::function<int()>& body) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    exit(body());
  }
  int ended = 0;
  EXPECT_EQ(waitpid(child, &ended, 0), child);
  return WIFEXITED(ended) ? WEXITSTATUS(ended) : -WTERMSIG(ended);
}

// Whether `call` throws the error for an object of the parent.
bool IsRefused(const std::function<void()>& call) {
  try {
    call();
  } catch (const DistError& error) {
    return IsFailedPrecondition(error.status()) &&
           std::string(error.what()).ends_with("forked this one off");
  }
  return false;
}

// Returns how many of the calls are not refused.
int Accepted(const std::vector<std::function<void()>>& calls) {
  int accepted = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (IsRefused(calls[i])) continue;
    std::cerr << "call " << i << " was not refused\n";
    ++accepted;
  }
  return accepted;
}

std::vector<std::function<void()>> MakeCalls(Store& store) {
  return {[&] { store.Set("key", "child's"); },
          [&] { store.Get("key"); },
          [&] { store.Add("number", 1); },
          [&] { store.Check({"key"}); },
          [&] { store.CompareSet("key", "", "child's"); },
          [&] { store.NumKeys(); },
          [&] { store.ListKeys(""); },
          [&] { store.Wait({"missing"}, seconds(60)); }};
}

std::vector<std::function<void()>> MakeExtendedCalls(Store& store) {
  return {[&] { store.DeleteKey("key"); },
          [&] { store.Append("key", "child's"); },
          [&] { store.MultiGet({"key"}); },
          [&] { store.MultiSet({"key"}, {"child's"}); },
          [&] { store.TryGet("key"); },
          [&] { store.CompareAndSet("key", 0, "child's"); },
          [&] { store.DeletePrefix("key"); },
          [&] { store.QueuePush("queue", "child's"); },
          [&] { store.QueuePop("queue"); },
          [&] { store.QueueLen("queue"); }};
}

class ForkTest : public ::testing::Test {
 protected:
  ForkTest() {
    coordinator::ServerOptions options;
    options.listen = "127.0.0.1:0";
    auto server = coordinator::Server::Start(options);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    Things& things = g_things;
    things.session = Session::Connect(Options());
    things.store = std::make_shared<CoordinatorStore>(things.session);
    things.store->Set("key", "parent's");
    things.watch = things.store->Watch("key");
    TcpStoreOptions tcp;
    tcp.host = "localhost";
    tcp.is_master = true;
    things.tcp = std::make_shared<TcpStore>(tcp);
    things.file = std::make_shared<FileStore>(path_, /*world_size=*/1);
    things.hash = std::make_shared<HashStore>();
    things.prefix = std::make_shared<PrefixStore>("p", things.store);
    things.groups = std::make_unique<LocalGroups>(2);
    // The Work waits for the other rank.
    things.work.emplace(things.groups->at(0)->AllReduce(Tensor(&value_, {1}),
                                                        {.async_op = true}));
    things.future.emplace(things.work->GetFuture());
    things.done.emplace(things.future->Then([](const auto&) {}));
  }

  // Checks that the parent still has everything.
  ~ForkTest() override {
    Things& things = g_things;
    int32_t other = 2;
    things.groups->at(1)->AllReduce(Tensor(&other, {1}));
    things.done->Wait();
    things.work->Wait();
    EXPECT_EQ(value_, 3);
    EXPECT_EQ(things.session->status(), OkStatus());
    EXPECT_EQ(things.store->Get("key"), "parent's");
    things.store->Set("key", "new");
    EXPECT_EQ(things.watch->Next(seconds(30))->value, "new");
    things.tcp->Set("key", "value");
    EXPECT_EQ(things.tcp->Get("key"), "value");
    EXPECT_EQ(things.file->OpenStores(), 1);
    EXPECT_TRUE(std::filesystem::exists(path_));
    g_things = Things();
    EXPECT_FALSE(std::filesystem::exists(path_));
  }

  SessionOptions Options() {
    SessionOptions options;
    options.address = "127.0.0.1:" + std::to_string(server_->port());
    options.job = "test";
    return options;
  }

  const std::string path_ = ::testing::TempDir() + "/fork_test_store";
  std::unique_ptr<coordinator::Server> server_;
  int32_t value_ = 1;
};

TEST_F(ForkTest, AChildThatExitsEndsNothingOfItsParents) {
  EXPECT_EQ(StatusOfFork([] { return 7; }), 7);
  // The same in a grandchild.
  EXPECT_EQ(StatusOfFork([] { return StatusOfFork([] { return 7; }); }), 7);
  // The same for a child that destroys everything.
  EXPECT_EQ(StatusOfFork([] {
              g_things = Things();
              return 7;
            }),
            7);
}

TEST_F(ForkTest, AChildThatExitsWhileThreadsUseAllOfItDoesNotHang) {
  std::atomic<bool> over = false;
  std::vector<std::thread> threads;
  for (Store* const store :
       std::vector<Store*>{g_things.store.get(), g_things.tcp.get(),
                           g_things.file.get(), g_things.hash.get()}) {
    threads.emplace_back([&over, store] {
      while (!over) store->Set("other", "value");
    });
    threads.emplace_back([&over, store] {
      while (!over) {
        try {
          store->Wait({"missing"}, milliseconds(100));
        } catch (const DistStoreError&) {
          // No process sets the key.
        }
      }
    });
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(StatusOfFork([] {
                return Accepted(MakeCalls(*g_things.store)) +
                       Accepted(MakeCalls(*g_things.file)) +
                       Accepted(MakeCalls(*g_things.hash));
              }),
              0);
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ForkTest, EveryCallOfAChildOnItsParentsStoresIsRefused) {
  for (Store* const store : std::vector<Store*>{
           g_things.store.get(), g_things.tcp.get(), g_things.file.get(),
           g_things.hash.get(), g_things.prefix.get()}) {
    EXPECT_EQ(StatusOfFork([&] {
                return Accepted(MakeCalls(*store)) +
                       (store->HasExtendedApi()
                            ? Accepted(MakeExtendedCalls(*store))
                            : 0);
              }),
              0);
  }
  EXPECT_EQ(StatusOfFork([] {
              return Accepted({[] { g_things.watch->Next(seconds(60)); },
                               [] { g_things.store->Watch("key"); },
                               [] { g_things.file->OpenStores(); }});
            }),
            0);
}

TEST_F(ForkTest, EveryCallOfAChildOnItsParentsSessionIsRefused) {
  EXPECT_EQ(StatusOfFork([] {
              Session& session = *g_things.session;
              session.Leave("child's");
              session.Close();
              return Accepted({[&] { session.Join({.world_size = 1}); },
                               [&] { session.CloseRendezvous("child's"); },
                               [&] { session.RegisterGroups({}); },
                               [&] { session.AwaitBarrier({.name = "b"}); },
                               [&] { session.ReportFailure("child's"); }}) +
                     (IsFailedPrecondition(session.status()) ? 0 : 1);
            }),
            0);
}

TEST_F(ForkTest, EveryCallOfAChildOnItsParentsWorkIsRefused) {
  EXPECT_EQ(
      StatusOfFork([] {
        Work& work = *g_things.work;
        const auto& future = *g_things.future;
        const auto& group = g_things.groups->at(0);
        return Accepted({[&] { work.Wait(); },
                         [&] { work.WaitFor(seconds(60)); },
                         [&] { work.IsCompleted(); }, [&] { work.IsSuccess(); },
                         [&] { work.Exception(); }, [&] { work.Result(); },
                         [&] { work.GetFuture(); }, [&] { work.SourceRank(); },
                         [&] { future.Wait(); },
                         [&] { future.WaitFor(seconds(60)); },
                         [&] { future.Done(); }, [&] { future.Value(); },
                         [&] { future.Exception(); },
                         [&] { future.AddDoneCallback([](auto&) {}); },
                         [&] { group->Barrier(); },
                         [&] { group->MonitoredBarrier(); },
                         [&] { group->Abort("child's"); }}) +
               (IsFailedPrecondition(group->status()) ? 0 : 1);
      }),
      0);
}

// Otherwise its session would wait for threads that do not exist.
TEST_F(ForkTest, AChildOfAProcessWithASessionGetsNone) {
  EXPECT_EQ(StatusOfFork([&] {
              try {
                Session::Connect(Options());
              } catch (const DistError& error) {
                return IsFailedPrecondition(error.status()) ? 0 : 2;
              }
              return 1;
            }),
            0);
}

TEST_F(ForkTest, AChildHasStoresAndARecorderOfItsOwn) {
  EXPECT_EQ(StatusOfFork([&] {
              HashStore hash;
              hash.Set("key", "child's");
              FileStore file(path_ + "_of_child");
              file.Set("key", "child's");
              std::filesystem::remove(path_ + "_of_child");
              return FlightRecorderJson().empty() ? 1 : 0;
            }),
            0);
}

TEST_F(ForkTest, AChildMayExecuteAProgram) {
  EXPECT_EQ(StatusOfFork([] { return execl("/bin/true", "true", nullptr); }),
            0);
  pid_t child = 0;
  std::string name = "true";
  char* const arguments[] = {name.data(), nullptr};
  ASSERT_EQ(
      posix_spawn(&child, "/bin/true", nullptr, nullptr, arguments, environ),
      0);
  int ended = 0;
  EXPECT_EQ(waitpid(child, &ended, 0), child);
  EXPECT_EQ(ended, 0);
}

}  // namespace
}  // namespace muster
