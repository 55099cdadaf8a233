// Elastic rendezvous, and groups in bulk, through a coordinator.

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/server/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"
#include "muster/errors.h"
#include "muster/session.h"

namespace muster {
namespace {

using coordinator::Server;
using coordinator::ServerOptions;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ElasticTest : public ::testing::Test {
 protected:
  ElasticTest() {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    auto server = Server::Start(options);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  std::shared_ptr<Session> Connect(const std::string& member) {
    SessionOptions options;
    options.address = "127.0.0.1:" + std::to_string(server_->port());
    options.job = "test";
    options.member = member;
    options.connect_timeout = seconds(20);
    options.on_event = [this, member](const MemberEvent& event) {
      MutexLock lock(mutex_);
      if (event.kind == MemberEvent::Kind::kWaiting) {
        waiting_.push_back(
            {member, event.member.member, event.waiting, event.generation});
      }
      changed_.NotifyAll();
    };
    return Session::Connect(options);
  }

  // The event that `member` got about members waiting in `generation`.
  struct Told {
    std::string member;
    std::string first;
    int waiting = 0;
    int64_t generation = 0;
  };

  Told AwaitWaiting(const std::string& member, int64_t generation) {
    const auto until = Clock::now() + seconds(20);
    MutexLock lock(mutex_);
    for (;;) {
      for (const Told& told : waiting_) {
        if (told.member == member && told.generation == generation) return told;
      }
      if (!changed_.WaitUntil(mutex_, until)) {
        ADD_FAILURE() << member << " was told of nobody";
        return {};
      }
    }
  }

  static std::future<Formation> Join(Session& session,
                                     milliseconds last_call = seconds(4)) {
    return std::async(std::launch::async, [&session, last_call] {
      return session.Join({.timeout = seconds(30),
                           .min_world_size = 2,
                           .max_world_size = 4,
                           .last_call = last_call});
    });
  }

  static std::vector<std::string> Members(const Formation& formation) {
    std::vector<std::string> members;
    for (const Seat& seat : formation.seats) members.push_back(seat.member);
    return members;
  }

  std::unique_ptr<Server> server_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Told> waiting_ MUSTER_GUARDED_BY(mutex_);
};

TEST_F(ElasticTest, RanksStayWhenOneIsKilledAndANewcomerHasItsSeat) {
  const auto a = Connect("a");
  auto b = Connect("b");
  const auto c = Connect("c");
  const auto d = Connect("d");
  auto joined_a = Join(*a);
  auto joined_b = Join(*b);
  auto joined_c = Join(*c);
  // Three of at most four: the generation forms when the last call ends.
  const Formation first = joined_a.get();
  ASSERT_EQ(first.seats.size(), 3u);
  const int rank_b = joined_b.get().rank;
  const int rank_c = joined_c.get().rank;

  // The generation runs; its members get an event about d.
  auto joined_d = Join(*d);
  const Told told = AwaitWaiting("a", first.generation);
  EXPECT_EQ(told.first, "d");
  EXPECT_EQ(told.waiting, 1);

  // Like a killed process: its connection closes, and the grace passes.
  b->Close();
  joined_a = Join(*a);
  joined_c = Join(*c);
  const Formation second = joined_a.get();
  ASSERT_EQ(second.seats.size(), 3u);
  EXPECT_GT(second.generation, first.generation);
  EXPECT_EQ(second.rank, first.rank);
  EXPECT_EQ(joined_c.get().rank, rank_c);
  EXPECT_EQ(joined_d.get().rank, rank_b);
}

TEST_F(ElasticTest, ASpareGetsInWhenASeatIsFree) {
  std::vector<std::shared_ptr<Session>> sessions;
  std::vector<std::future<Formation>> joined;
  for (const char* name : {"a", "b", "c", "d"}) {
    sessions.push_back(Connect(name));
    joined.push_back(Join(*sessions.back(), seconds(20)));
  }
  Formation first;
  std::vector<int> ranks;
  for (auto& join : joined) {
    first = join.get();
    ranks.push_back(first.rank);
  }
  const auto spare = Connect("spare");
  auto spared = Join(*spare, seconds(20));
  EXPECT_EQ(AwaitWaiting("b", first.generation).first, "spare");

  // b is gone for good, and all live members have joined: no last call.
  sessions[1]->ReportFailure("SIGSEGV");
  joined.clear();
  for (const int i : {0, 2, 3}) {
    joined.push_back(Join(*sessions[i], seconds(20)));
  }
  std::vector<std::string> world(4);
  const char* const names[] = {"a", "spare", "c", "d"};
  for (int i = 0; i < 4; ++i) world[ranks[i]] = names[i];
  EXPECT_EQ(Members(spared.get()), world);
}

TEST_F(ElasticTest, GroupsAreRegisteredInBulkAndBarriersKnowThem) {
  const auto a = Connect("a");
  const auto b = Connect("b");
  EXPECT_THROW(a->RegisterGroups({{.name = "x", .ranks = {0}}}), DistError);
  std::vector<std::future<Formation>> joined;
  joined.push_back(Join(*a, seconds(0)));
  joined.push_back(Join(*b, seconds(0)));
  const int rank = joined[0].get().rank;
  joined[1].get();
  // Each is in the pair, and in a group of its own.
  const std::string alone = "alone";
  EXPECT_THAT(a->RegisterGroups({{.name = "pair", .ranks = {0, 1}},
                                 {.name = alone, .ranks = {rank}}}),
              ElementsAre(1, 1));
  a->AwaitBarrier({.name = "begin", .group = alone, .timeout = seconds(20)});
  EXPECT_THAT(b->RegisterGroups({{.name = "pair", .ranks = {0, 1}}}),
              ElementsAre(2));
  try {
    b->RegisterGroups({{.name = alone, .ranks = {1 - rank}}});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const DistError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("group \"alone\": member \"b\""));
    EXPECT_THAT(error.what(), HasSubstr("member \"a\""));
  }
}

TEST_F(ElasticTest, ACloseEndsAllWaiting) {
  const auto a = Connect("a");
  const auto b = Connect("b");
  std::vector<std::future<Formation>> joined;
  joined.push_back(Join(*a));
  b->CloseRendezvous("finished");
  joined.push_back(Join(*b));
  for (std::future<Formation>& join : joined) {
    try {
      join.get();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const DistError& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kOutOfRange);
      EXPECT_THAT(error.what(),
                  HasSubstr("rendezvous: closed by member \"b\""));
      EXPECT_THAT(error.what(), HasSubstr(": finished"));
    }
  }
}

}  // namespace
}  // namespace muster
