#include "muster/session.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "client/control/admin_client.h"
#include "client/testing/cutting_proxy.h"
#include "client/testing/processes.h"
#include "coordinator/server/server.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/mutex.h"
#include "muster/errors.h"
#include "muster/store.h"
#include "muster/v1/admin.pb.h"

namespace muster {
namespace {

using coordinator::Server;
using coordinator::ServerOptions;
using muster::testing::CuttingProxy;
using muster::testing::ReservedPort;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

std::string Local(int port) { return "127.0.0.1:" + std::to_string(port); }

std::unique_ptr<Server> StartServer(int port = 0) {
  ServerOptions options;
  options.listen = Local(port);
  options.lease = seconds(2);
  auto server = Server::Start(options);
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

// Collects a session's events, to wait for them.
class Listener {
 public:
  void Add(const MemberEvent& event) {
    MutexLock lock(mutex_);
    events_.push_back(event);
    changed_.NotifyAll();
  }

  void Over(const Status& why) {
    MutexLock lock(mutex_);
    over_ = why;
    changed_.NotifyAll();
  }

  // Returns the event about `member`; fails the test if none comes.
  MemberEvent Await(const std::string& member) {
    const auto until = Clock::now() + seconds(20);
    MutexLock lock(mutex_);
    for (;;) {
      for (const MemberEvent& event : events_) {
        if (event.member.member == member) return event;
      }
      if (!changed_.WaitUntil(mutex_, until)) {
        ADD_FAILURE() << "no event about " << member;
        return {};
      }
    }
  }

  Status AwaitOver() {
    const auto until = Clock::now() + seconds(20);
    MutexLock lock(mutex_);
    while (over_.ok() && changed_.WaitUntil(mutex_, until)) {
    }
    return over_;
  }

  void Into(SessionOptions& options) {
    options.on_event = [this](const MemberEvent& event) { Add(event); };
    options.on_over = [this](const Status& why) { Over(why); };
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<MemberEvent> events_ MUSTER_GUARDED_BY(mutex_);
  Status over_ MUSTER_GUARDED_BY(mutex_);
};

SessionOptions Options(const std::string& address, const std::string& member) {
  SessionOptions options;
  options.address = address;
  options.job = "test";
  options.member = member;
  options.connect_timeout = seconds(20);
  return options;
}

template <typename Error, typename Function>
std::string CatchText(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(SessionTest, JoinsAndTellsEveryoneTheSame) {
  const auto server = StartServer();
  const auto a = Session::Connect(Options(Local(server->port()), "a"));
  const auto b = Session::Connect(Options(Local(server->port()), "b"));
  auto other = std::async(std::launch::async, [&] {
    return b->Join({.rank = 1, .world_size = 2, .timeout = seconds(20)});
  });
  const Formation mine =
      a->Join({.rank = 0, .world_size = 2, .timeout = seconds(20)});
  const Formation theirs = other.get();
  EXPECT_EQ(mine.generation, theirs.generation);
  EXPECT_EQ(mine.rank, 0);
  EXPECT_EQ(theirs.rank, 1);
  ASSERT_EQ(mine.seats.size(), 2);
  EXPECT_EQ(mine.seats[1].member, "b");
  EXPECT_EQ(mine.seats[0].pid, getpid());
  EXPECT_EQ(mine.world_size, 2);
}

TEST(SessionTest, JoinsWithoutSeatsWhereTheyAreNotWanted) {
  const auto server = StartServer();
  const auto a = Session::Connect(Options(Local(server->port()), "a"));
  const auto b = Session::Connect(Options(Local(server->port()), "b"));
  auto other = std::async(std::launch::async, [&] {
    return b->Join({.rank = 1, .world_size = 2, .timeout = seconds(20)});
  });
  const Formation mine = a->Join({.rank = 0,
                                  .world_size = 2,
                                  .timeout = seconds(20),
                                  .without_seats = true});
  EXPECT_EQ(mine.rank, 0);
  EXPECT_EQ(mine.world_size, 2);
  EXPECT_TRUE(mine.seats.empty());
  // Each member chooses for itself.
  EXPECT_EQ(other.get().seats.size(), 2);
}

TEST(SessionTest, NobodyAtTheAddress) {
  const ReservedPort port;
  SessionOptions options = Options(Local(port.port()), "a");
  options.connect_timeout = milliseconds(300);
  EXPECT_EQ(CatchText<DistNetworkError>([&] { Session::Connect(options); }),
            "coordinator at " + options.address +
                ": connection refused for 300ms (timeout: "
                "SessionOptions::connect_timeout)");
}

// Collects log lines while it exists.
class LogLines : public google::LogSink {
 public:
  LogLines() { google::AddLogSink(this); }
  ~LogLines() override { google::RemoveLogSink(this); }

  void send(google::LogSeverity, const char*, const char*, int,
            const google::LogMessageTime&, const char* message,
            size_t bytes) override {
    MutexLock lock(mutex_);
    lines_.emplace_back(message, bytes);
    changed_.NotifyAll();
  }

  // Waits until there are `count` lines.
  void Await(size_t count) {
    MutexLock lock(mutex_);
    while (lines_.size() < count) changed_.Wait(mutex_);
  }

  std::vector<std::string> lines() {
    MutexLock lock(mutex_);
    return lines_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> lines_ MUSTER_GUARDED_BY(mutex_);
};

TEST(SessionTest, AStopEndsConnectBeforeItsTimeout) {
  const ReservedPort nobody;
  std::stop_source stop;
  SessionOptions options = Options(Local(nobody.port()), "a");
  options.connect_timeout = std::chrono::hours(1);
  options.stop_connecting = stop.get_token();
  auto connecting =
      std::async(std::launch::async, [&] { return Session::Connect(options); });
  stop.request_stop();
  try {
    connecting.get();
    FAIL();
  } catch (const DistError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kCancelled);
  }
}

TEST(SessionTest, SaysThatItStillTries) {
  const ReservedPort port;
  SessionOptions options = Options(Local(port.port()), "a");
  options.connect_timeout = milliseconds(1500);
  LogLines log;
  EXPECT_THROW(Session::Connect(options), DistNetworkError);
  EXPECT_THAT(
      log.lines(),
      ElementsAre("coordinator not reached: address=" + options.address +
                  " cause=\"connection refused\" gives_up_after=1.5s"));
}

TEST(SessionTest, RepeatsHowLongItHasTried) {
  const ReservedPort port;
  SessionOptions options = Options(Local(port.port()), "a");
  options.unreached_log_interval = milliseconds(1);
  LogLines log;
  auto session =
      std::async(std::launch::async, [&] { return Session::Connect(options); });
  log.Await(3);
  const auto server = StartServer(port.port());
  EXPECT_TRUE(session.get()->status().ok());
  const std::vector<std::string> lines = log.lines();
  EXPECT_THAT(lines[0], Not(HasSubstr("tried_for=")));
  for (size_t i = 1; i < 3; ++i) {
    EXPECT_THAT(lines[i],
                MatchesRegex("coordinator not reached: address=.* "
                             "cause=\"connection refused\" "
                             "tried_for=[0-9.]+m?s gives_up_after=.*"));
  }
}

TEST(SessionTest, WaitsForACoordinatorThatStartsLater) {
  const ReservedPort port;
  auto session = std::async(std::launch::async, [&] {
    return Session::Connect(Options(Local(port.port()), "a"));
  });
  const auto server = StartServer(port.port());
  EXPECT_TRUE(session.get()->status().ok());
}

TEST(SessionTest, BadNamesAreRefusedAtOnce) {
  const auto server = StartServer();
  SessionOptions options = Options(Local(server->port()), "a");
  options.job = "no spaces please";
  EXPECT_THAT(CatchText<DistError>([&] { Session::Connect(options); }),
              HasSubstr("no spaces please"));
  options.address = "nonsense";
  EXPECT_EQ(CatchText<DistError>([&] { Session::Connect(options); }),
            "address \"nonsense\": port number missing");
}

TEST(SessionTest, LeavingIsToldWithItsReason) {
  const auto server = StartServer();
  Listener listener;
  SessionOptions options = Options(Local(server->port()), "a");
  listener.Into(options);
  const auto a = Session::Connect(options);
  const auto b = Session::Connect(Options(Local(server->port()), "b"));
  auto joined = std::async(std::launch::async, [&] {
    return b->Join({.rank = 1, .world_size = 2, .timeout = seconds(20)});
  });
  const int64_t generation =
      a->Join({.rank = 0, .world_size = 2, .timeout = seconds(20)}).generation;
  joined.get();
  b->Leave("had enough");
  const MemberEvent event = listener.Await("b");
  EXPECT_EQ(event.kind, MemberEvent::Kind::kLeft);
  EXPECT_EQ(event.member.rank, 1);
  EXPECT_EQ(event.member.cause, "had enough");
  EXPECT_EQ(event.generation, generation);
  EXPECT_FALSE(event.generation_ended);
}

TEST(SessionTest, AReportedFailureEndsTheGeneration) {
  const auto server = StartServer();
  Listener listener;
  SessionOptions options = Options(Local(server->port()), "a");
  listener.Into(options);
  const auto a = Session::Connect(options);
  const auto b = Session::Connect(Options(Local(server->port()), "b"));
  auto joined = std::async(std::launch::async, [&] {
    return b->Join({.rank = 1, .world_size = 2, .timeout = seconds(20)});
  });
  a->Join({.rank = 0, .world_size = 2, .timeout = seconds(20)});
  joined.get();
  b->ReportFailure("out of memory");
  const MemberEvent event = listener.Await("b");
  EXPECT_EQ(event.kind, MemberEvent::Kind::kFailed);
  EXPECT_EQ(event.member.cause, "out of memory");
  EXPECT_TRUE(event.generation_ended);
}

TEST(SessionTest, ALostMemberIsToldWithItsLastProgress) {
  const auto server = StartServer();
  Listener listener;
  SessionOptions options = Options(Local(server->port()), "a");
  listener.Into(options);
  const auto a = Session::Connect(options);
  std::promise<void> asked;
  std::atomic<int> polls = 0;
  options = Options(Local(server->port()), "b");
  options.progress = [&]() -> std::vector<GroupProgress> {
    // When it is called again, the report before is under way.
    if (++polls == 3) asked.set_value();
    return {{.group = "world",
             .last_enqueued = 7,
             .last_completed = 6,
             .current = "all_reduce #7"}};
  };
  const auto b = Session::Connect(options);
  auto joined = std::async(std::launch::async, [&] {
    return b->Join({.rank = 1, .world_size = 2, .timeout = seconds(20)});
  });
  a->Join({.rank = 0, .world_size = 2, .timeout = seconds(20)});
  joined.get();
  asked.get_future().wait();
  b->Close();
  const MemberEvent event = listener.Await("b");
  EXPECT_EQ(event.kind, MemberEvent::Kind::kLost);
  EXPECT_THAT(event.member.last_progress, HasSubstr("all_reduce #7"));
}

TEST(SessionTest, WhoEndsIsToldWithTheProgressOfThatMoment) {
  for (const bool fails : {true, false}) {
    const auto server = StartServer();
    Listener listener;
    SessionOptions options = Options(Local(server->port()), "a");
    listener.Into(options);
    const auto a = Session::Connect(options);
    std::atomic<bool> late = false;
    options = Options(Local(server->port()), "b");
    options.progress = [&]() -> std::vector<GroupProgress> {
      return {{.group = "world", .current = late ? "new" : "old"}};
    };
    const auto b = Session::Connect(options);
    auto joined = std::async(std::launch::async, [&] {
      return b->Join({.rank = 1, .world_size = 2, .timeout = seconds(20)});
    });
    a->Join({.rank = 0, .world_size = 2, .timeout = seconds(20)});
    joined.get();
    late = true;
    if (fails) {
      b->ReportFailure("out of memory");
    } else {
      b->Leave("done", seconds(20));
    }
    EXPECT_THAT(listener.Await("b").member.last_progress, HasSubstr("new"));
  }
}

TEST(SessionTest, CallsGoOnAfterTheConnectionWasCut) {
  const auto server = StartServer();
  CuttingProxy proxy(server->port());
  const auto session = Session::Connect(Options(proxy.address(), "a"));
  CoordinatorStore store(session);
  store.Set("key", "value");
  proxy.Cut();
  EXPECT_EQ(store.Get("key"), "value");
  EXPECT_GE(proxy.connections(), 2);
  EXPECT_TRUE(session->status().ok());
}

TEST(SessionTest, AMutationWhoseAnswerWasLostIsAppliedOnce) {
  const auto server = StartServer();
  CuttingProxy proxy(server->port());
  const auto session = Session::Connect(Options(proxy.address(), "a"));
  const auto direct = Session::Connect(Options(Local(server->port()), "b"));
  CoordinatorStore store(session);
  CoordinatorStore witness(direct);
  for (int i = 1; i <= 5; ++i) {
    proxy.HoldAnswers(true);
    auto sum =
        std::async(std::launch::async, [&] { return store.Add("n", 1); });
    auto text =
        std::async(std::launch::async, [&] { store.Append("text", "x"); });
    // Another session sees that they were applied; only the answers are
    // missing.
    while (!witness.Check({"n", "text"}) ||
           witness.Get("n") != std::to_string(i) ||
           witness.Get("text").size() != static_cast<size_t>(i)) {
    }
    proxy.Cut();
    EXPECT_EQ(sum.get(), i);
    text.get();
  }
  EXPECT_EQ(witness.Get("n"), "5");
  EXPECT_EQ(witness.Get("text"), "xxxxx");
}

// The coordinator keeps 4096 answers for a member that has not acknowledged
// them; a parked operation must not use them up.
TEST(SessionTest, AParkedBarrierDoesNotHoldUpTenThousandSets) {
  const auto server = StartServer();
  const auto a = Session::Connect(Options(Local(server->port()), "a"));
  const auto b = Session::Connect(Options(Local(server->port()), "b"));
  auto joined = std::async(std::launch::async,
                           [&] { return a->Join({.world_size = 2}); });
  b->Join({.world_size = 2});
  joined.get();
  auto passed = std::async(std::launch::async, [&] {
    a->AwaitBarrier({.name = "x", .timeout = seconds(120)});
  });
  CoordinatorStore store(a);
  for (int i = 0; i < 10'000; ++i) store.Set("k", std::to_string(i));
  EXPECT_EQ(store.Get("k"), "9999");
  b->AwaitBarrier({.name = "x", .timeout = seconds(120)});
  passed.get();
}

TEST(SessionTest, AWaitSurvivesACutConnection) {
  const auto server = StartServer();
  CuttingProxy proxy(server->port());
  const auto session = Session::Connect(Options(proxy.address(), "a"));
  const auto direct = Session::Connect(Options(Local(server->port()), "b"));
  CoordinatorStore store(session);
  const int64_t before = proxy.bytes_up();
  auto value =
      std::async(std::launch::async, [&] { return store.Get("late"); });
  while (proxy.bytes_up() == before) std::this_thread::yield();
  proxy.Cut();
  CoordinatorStore(direct).Set("late", "but there");
  EXPECT_EQ(value.get(), "but there");
}

TEST(SessionTest, ManyCallersShareMessages) {
  const auto server = StartServer();
  const auto session = Session::Connect(Options(Local(server->port()), "a"));
  CoordinatorStore store(session);
  std::vector<std::thread> callers;
  callers.reserve(16);
  for (int i = 0; i < 16; ++i) {
    callers.emplace_back([&, i] {
      for (int j = 0; j < 100; ++j) {
        store.Add("all", 1);
        store.Set("own" + std::to_string(i), std::to_string(j));
      }
      EXPECT_EQ(store.Get("own" + std::to_string(i)), "99");
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(store.Get("all"), "1600");
}

TEST(SessionTest, ManyCallersGoOnThroughCutsAndAreAppliedOnce) {
  const auto server = StartServer();
  CuttingProxy proxy(server->port());
  const auto session = Session::Connect(Options(proxy.address(), "a"));
  CoordinatorStore store(session);
  std::atomic<int> done{0};
  std::vector<std::thread> callers;
  callers.reserve(16);
  for (int i = 0; i < 16; ++i) {
    callers.emplace_back([&] {
      for (int j = 0; j < 200; ++j) {
        store.Add("all", 1);
        ++done;
      }
    });
  }
  for (const int when : {100, 1000, 2000, 3000}) {
    while (done < when) std::this_thread::yield();
    proxy.Cut();
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(store.Get("all"), "3200");
}

// Callers that come alone, in pairs and in crowds share the connection; each
// must get its answer.
TEST(SessionTest, CallersOfAllSortsTakeTurns) {
  const auto server = StartServer();
  const auto session = Session::Connect(Options(Local(server->port()), "a"));
  CoordinatorStore store(session);
  for (const int crowd : {1, 2, 3, 8, 1, 32, 1, 5}) {
    std::vector<std::thread> callers;
    callers.reserve(static_cast<size_t>(crowd));
    for (int i = 0; i < crowd; ++i) {
      callers.emplace_back([&, i] {
        for (int j = 0; j < 100 / (i + 1); ++j) {
          const std::string key = std::to_string(i);
          store.Set(key, std::to_string(j));
          EXPECT_EQ(store.Get(key), std::to_string(j));
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
  }
}

TEST(SessionTest, ARestartedCoordinatorEndsTheSession) {
  const ReservedPort port;
  auto server = StartServer(port.port());
  Listener listener;
  SessionOptions options = Options(Local(port.port()), "a");
  listener.Into(options);
  const auto session = Session::Connect(options);
  CoordinatorStore store(session);
  auto waiting = std::async(std::launch::async, [&] {
    return CatchText<DistError>([&] { store.Get("never"); });
  });
  store.Set("key", "value");
  server.reset();
  server = StartServer(port.port());
  EXPECT_EQ(listener.AwaitOver().code(), StatusCode::kAborted);
  EXPECT_EQ(session->status().code(), StatusCode::kAborted);
  EXPECT_FALSE(waiting.get().empty());
  EXPECT_THAT(CatchText<DistStoreError>([&] { store.Get("key"); }),
              StartsWith("coordinator at " + Local(port.port()) +
                         ": it was restarted, and what it held is lost"));
  // A new session works.
  CoordinatorStore fresh(Session::Connect(Options(Local(port.port()), "a")));
  EXPECT_FALSE(fresh.Check({"key"}));
}

TEST(SessionTest, ACallFailsWithItsOwnTimeoutWhileDisconnected) {
  auto server = StartServer();
  const auto session = Session::Connect(Options(Local(server->port()), "a"));
  CoordinatorStore store(session);
  server.reset();
  store.SetTimeout(milliseconds(300));
  EXPECT_THAT(CatchText<DistNetworkError>([&] { store.Set("a", "b"); }),
              HasSubstr("(timeout: Store::SetTimeout)"));
}

TEST(SessionTest, CloseWakesWhoWaits) {
  const auto server = StartServer();
  const auto session = Session::Connect(Options(Local(server->port()), "a"));
  CoordinatorStore store(session);
  auto waiting = std::async(std::launch::async, [&] {
    return CatchText<DistStoreError>([&] { store.Get("never"); });
  });
  store.Set("somebody", "is there");
  session->Close();
  EXPECT_THAT(waiting.get(), HasSubstr("was closed"));
}

TEST(SessionTest, BarrierNeedsARank) {
  const auto server = StartServer();
  const auto session = Session::Connect(Options(Local(server->port()), "a"));
  EXPECT_EQ(CatchText<DistError>([&] { session->AwaitBarrier({.name = "b"}); }),
            "barrier \"b\": member \"a\" has no rank before Session::Join");
}

TEST(SessionTest, BarrierNamesWhoIsMissing) {
  const auto server = StartServer();
  const auto a = Session::Connect(Options(Local(server->port()), "a"));
  const auto b = Session::Connect(Options(Local(server->port()), "b"));
  auto joined = std::async(std::launch::async, [&] {
    return b->Join({.rank = 1, .world_size = 2, .timeout = seconds(20)});
  });
  a->Join({.rank = 0, .world_size = 2, .timeout = seconds(20)});
  joined.get();
  try {
    a->AwaitBarrier({.name = "b", .timeout = milliseconds(200)});
    FAIL() << "the barrier was passed";
  } catch (const DistError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kDeadlineExceeded);
    ASSERT_EQ(error.culprits().size(), 1);
    EXPECT_EQ(error.culprits()[0].rank, 1);
    EXPECT_EQ(error.culprits()[0].member, "b");
  }
}

// A message that is too large would end the stream, and be sent again on each
// new stream.
TEST(SessionTest, WhatIsTooLargeForAMessageFailsAloneAndTheStreamStays) {
  ServerOptions options;
  options.message_bytes_max = 20'000;
  const auto server = Server::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  CoordinatorStore store(
      Session::Connect(Options(Local((*server)->port()), "a")));
  try {
    store.Set("k", std::string(30'000, 'v'));
    FAIL() << "no error";
  } catch (const DistStoreError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(error.what(), HasSubstr("limit message_bytes is 20000"));
    EXPECT_THAT(error.what(), HasSubstr("--limit_message_bytes"));
  }
  // Together larger than a message.
  std::vector<std::thread> callers;
  callers.reserve(16);
  for (int i = 0; i < 16; ++i) {
    callers.emplace_back([&, key = std::to_string(i)] {
      for (int n = 0; n < 20; ++n) store.Set(key, std::string(9'000, 'v'));
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(store.NumKeys(), 16);
}

// Sends `words` to each client, and then reads.
class Stranger {
 public:
  explicit Stranger(std::string words) : words_(std::move(words)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_, raw, size), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    EXPECT_EQ(getsockname(listener_, raw, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Greet(); });
  }
  ~Stranger() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
    for (const int fd : guests_) close(fd);
  }

  std::string address() const { return Local(port_); }

 private:
  void Greet() {
    for (int fd; (fd = accept(listener_, nullptr, nullptr)) >= 0;) {
      guests_.push_back(fd);
      send(fd, words_.data(), words_.size(), MSG_NOSIGNAL);
    }
  }

  const std::string words_;
  const int listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int port_ = 0;
  std::vector<int> guests_;
  std::thread thread_;
};

TEST(SessionTest, AStrangerAtTheAddressIsTold) {
  for (const std::string words :
       {"SSH-2.0-OpenSSH_9.2\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n"}) {
    const Stranger stranger(words);
    SessionOptions options = Options(stranger.address(), "a");
    options.connect_timeout = milliseconds(1'500);
    try {
      Session::Connect(options);
      ADD_FAILURE() << "connected";
    } catch (const DistNetworkError& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr(stranger.address()),
                        HasSubstr("no muster coordinator: it says \"" +
                                  words.substr(0, words.find('\r')))));
    }
    const auto control = *internal::AdminClient::Open(options);
    v1::ListJobsResponse response;
    EXPECT_THAT(std::string(control->ListJobs({}, &response).message()),
                AllOf(HasSubstr(stranger.address()),
                      HasSubstr("no muster coordinator: it says")));
  }
}

}  // namespace
}  // namespace muster
