// Sessions through C: rendezvous, barriers, events and progress. What a session
// does is tested in client/session_test.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/server/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/mutex.h"
#include "muster/muster_control.h"

namespace muster::c {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

#define ASSERT_OK(call) \
  ASSERT_EQ(call, MUSTER_OK) << muster_error_message(muster_last_error())
#define EXPECT_OK(call) \
  EXPECT_EQ(call, MUSTER_OK) << muster_error_message(muster_last_error())

// Collects what a session tells its callbacks.
struct Log {
  Mutex mutex;
  CondVar changed;
  std::vector<std::string> events MUSTER_GUARDED_BY(mutex);
  std::string over MUSTER_GUARDED_BY(mutex);
  bool asked_for_progress MUSTER_GUARDED_BY(mutex) = false;

  // Waits for the first event.
  std::string AwaitEvent() {
    MutexLock lock(mutex);
    const auto until = Clock::now() + seconds(20);
    while (events.empty() && changed.WaitUntil(mutex, until)) {
    }
    return events.empty() ? "none" : events[0];
  }
  std::string AwaitOver() {
    MutexLock lock(mutex);
    const auto until = Clock::now() + seconds(20);
    while (over.empty() && changed.WaitUntil(mutex, until)) {
    }
    return over;
  }
  bool AwaitProgress() {
    MutexLock lock(mutex);
    const auto until = Clock::now() + seconds(20);
    while (!asked_for_progress && changed.WaitUntil(mutex, until)) {
    }
    return asked_for_progress;
  }
};

void OnEvent(void* context, const muster_member_event* event) {
  auto& log = *static_cast<Log*>(context);
  EXPECT_EQ(event->size, sizeof(*event));
  std::string text = std::to_string(event->kind) + " " + event->member->member +
                     " rank " + std::to_string(event->member->rank) + " code " +
                     std::to_string(event->code);
  for (size_t i = 0; i < event->culprit_count; ++i) {
    text += std::string(" culprit ") + event->culprits[i]->member;
  }
  MutexLock lock(log.mutex);
  log.events.push_back(text);
  log.changed.NotifyAll();
}

void OnOver(void* context, const muster_error* error) {
  auto& log = *static_cast<Log*>(context);
  MutexLock lock(log.mutex);
  log.over = std::string(muster_status_name(muster_error_status(error)));
  log.changed.NotifyAll();
}

void OnProgress(void* context, muster_progress_report* report) {
  auto& log = *static_cast<Log*>(context);
  muster_group_progress progress = {};
  progress.size = sizeof(progress);
  progress.group = "mine";
  progress.last_enqueued = 2;
  progress.last_completed = 1;
  progress.current = "barrier #2";
  EXPECT_OK(muster_progress_report_add(report, &progress));
  EXPECT_EQ(muster_progress_report_add(report, nullptr),
            MUSTER_INVALID_ARGUMENT);
  MutexLock lock(log.mutex);
  log.asked_for_progress = true;
  log.changed.NotifyAll();
}

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() {
    coordinator::ServerOptions options;
    options.lease = seconds(2);
    auto server = coordinator::Server::Start(options);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    address_ = "127.0.0.1:" + std::to_string(server_->port());
  }

  muster_session* Connect(const char* member, Log* log) {
    muster_session_options options = {};
    options.size = sizeof(options);
    options.address = address_.c_str();
    options.job = "test";
    options.member = member;
    options.connect_timeout_ms = 20'000;
    options.context = log;
    if (log != nullptr) {
      options.on_event = &OnEvent;
      options.on_over = &OnOver;
      options.progress = &OnProgress;
    }
    muster_session* session = nullptr;
    EXPECT_OK(muster_session_connect(&options, &session));
    return session;
  }

  std::unique_ptr<coordinator::Server> server_;
  std::string address_;
};

muster_formation* Join(muster_session* session, int32_t rank) {
  muster_join_options options = {};
  options.size = sizeof(options);
  options.world_size = 2;
  options.has_rank = 1;
  options.rank = rank;
  muster_formation* formation = nullptr;
  EXPECT_OK(muster_session_join(session, &options, &formation));
  return formation;
}

// Two members that have met.
class FormedSessionTest : public SessionTest {
 protected:
  FormedSessionTest() {
    first_ = Connect("first", &log_);
    second_ = Connect("second", nullptr);
    auto joined =
        std::async(std::launch::async, [&] { return Join(second_, 1); });
    formation_ = Join(first_, 0);
    muster_formation_release(joined.get());
  }
  ~FormedSessionTest() override {
    muster_formation_release(formation_);
    muster_session_release(second_);
    muster_session_release(first_);
  }

  Log log_;
  muster_session* first_ = nullptr;
  muster_session* second_ = nullptr;
  muster_formation* formation_ = nullptr;
};

TEST_F(SessionTest, ASessionKnowsItsNames) {
  muster_session* const session = Connect("first", nullptr);
  muster_strings* text = nullptr;
  EXPECT_OK(muster_session_address(session, &text));
  EXPECT_EQ(muster_strings_data(text, 0), address_);
  muster_strings_release(text);
  EXPECT_OK(muster_session_job(session, &text));
  EXPECT_STREQ(muster_strings_data(text, 0), "test");
  muster_strings_release(text);
  EXPECT_OK(muster_session_member(session, &text));
  EXPECT_STREQ(muster_strings_data(text, 0), "first");
  muster_strings_release(text);
  uint64_t number = 0;
  EXPECT_OK(muster_session_incarnation(session, &number));
  EXPECT_NE(number, 0U);
  number = 0;
  EXPECT_OK(muster_session_coordinator_epoch(session, &number));
  EXPECT_NE(number, 0U);
  EXPECT_OK(muster_session_status(session));
  EXPECT_OK(muster_session_close(session));
  EXPECT_NE(muster_session_status(session), MUSTER_OK);
  muster_session_release(session);
}

TEST_F(SessionTest, SeveralAddressesAreTriedInTurn) {
  address_ = "127.0.0.1:1," + address_;
  muster_session* const session = Connect("first", nullptr);
  muster_strings* text = nullptr;
  EXPECT_OK(muster_session_address(session, &text));
  EXPECT_EQ(muster_strings_data(text, 0), address_);
  muster_strings_release(text);
  muster_session_release(session);
}

TEST_F(SessionTest, NobodyAtTheAddressIsANetworkError) {
  muster_session_options options = {};
  options.size = sizeof(options);
  options.address = "127.0.0.1:1";
  options.connect_timeout_ms = 1;
  muster_session* session = nullptr;
  EXPECT_EQ(muster_session_connect(&options, &session), MUSTER_UNAVAILABLE);
  EXPECT_EQ(muster_error_get_kind(muster_last_error()), MUSTER_ERROR_NETWORK);
  EXPECT_EQ(session, nullptr);
}

TEST_F(SessionTest, TheContextIsReleasedAfterTheLastUserOfTheSession) {
  std::atomic<int> releases = 0;
  muster_session_options options = {};
  options.size = sizeof(options);
  options.address = "127.0.0.1:1";
  options.connect_timeout_ms = 1;
  options.context = &releases;
  options.on_event = [](void*, const muster_member_event*) {};
  options.release_context = [](void* context) {
    ++*static_cast<std::atomic<int>*>(context);
  };
  muster_session* session = nullptr;
  EXPECT_EQ(muster_session_connect(&options, &session), MUSTER_UNAVAILABLE);
  EXPECT_EQ(releases, 0);
  options.address = address_.c_str();
  options.connect_timeout_ms = 20'000;
  ASSERT_OK(muster_session_connect(&options, &session));
  muster_store* store = nullptr;
  EXPECT_OK(muster_coordinator_store_new(session, &store));
  muster_session_release(session);
  EXPECT_EQ(releases, 0);
  muster_store_release(store);
  EXPECT_EQ(releases, 1);
}

TEST_F(FormedSessionTest, TheFormationHasTheRanksAndSeats) {
  EXPECT_EQ(muster_formation_rank(formation_), 0);
  EXPECT_EQ(muster_formation_world_size(formation_), 2);
  EXPECT_EQ(muster_formation_generation(formation_), 1);
  muster_member_info seat = {};
  seat.size = sizeof(seat);
  EXPECT_OK(muster_formation_seat(formation_, 1, &seat));
  EXPECT_EQ(seat.rank, 1);
  EXPECT_STREQ(seat.member, "second");
  EXPECT_GT(seat.pid, 0);
  EXPECT_STREQ(seat.cause, "");
  EXPECT_EQ(muster_formation_seat(formation_, 2, &seat),
            MUSTER_INVALID_ARGUMENT);
  EXPECT_THAT(muster_error_message(muster_last_error()),
              HasSubstr("argument rank: 2 of 2"));
}

TEST_F(FormedSessionTest, GroupsAndBarriers) {
  const int32_t ranks[2] = {0, 1};
  muster_group_definition group = {};
  group.name = "pair";
  group.ranks = ranks;
  group.rank_count = 2;
  int32_t registered = 0;
  EXPECT_OK(muster_session_register_groups(first_, &group, 1, &registered));
  EXPECT_EQ(registered, 1);
  EXPECT_OK(muster_session_register_groups(second_, &group, 1, &registered));
  EXPECT_EQ(registered, 2);
  muster_session_barrier_options options = {};
  options.size = sizeof(options);
  options.name = "start";
  options.group = "pair";
  auto other = std::async(std::launch::async, [&] {
    return muster_session_await_barrier(second_, &options);
  });
  EXPECT_OK(muster_session_await_barrier(first_, &options));
  EXPECT_EQ(other.get(), MUSTER_OK);
  // Nobody else comes to this one.
  options.name = "end";
  options.timeout_ms = 1;
  EXPECT_EQ(muster_session_await_barrier(first_, &options),
            MUSTER_DEADLINE_EXCEEDED);
  size_t count = 0;
  const int32_t* const culprits =
      muster_error_culprit_ranks(muster_last_error(), &count);
  ASSERT_EQ(count, 1U);
  EXPECT_EQ(culprits[0], 1);
}

TEST_F(FormedSessionTest, ProgressIsAskedFor) {
  EXPECT_TRUE(log_.AwaitProgress());
}

TEST_F(FormedSessionTest, AMemberThatLeavesIsAnEvent) {
  EXPECT_OK(muster_session_leave(second_, "done", 0));
  EXPECT_EQ(log_.AwaitEvent(), "0 second rank 1 code 0");
}

TEST_F(FormedSessionTest, AFailureIsAnEventOnEveryMember) {
  EXPECT_OK(muster_session_report_failure(second_, "broken"));
  EXPECT_THAT(log_.AwaitEvent(), HasSubstr("2 second rank 1"));
}

TEST_F(FormedSessionTest, TheEndOfTheCoordinatorsStateEndsTheSession) {
  const int port = server_->port();
  server_ = nullptr;
  coordinator::ServerOptions options;
  options.listen = "127.0.0.1:" + std::to_string(port);
  auto server = coordinator::Server::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  EXPECT_EQ(log_.AwaitOver(), "ABORTED");
  EXPECT_EQ(muster_session_status(first_), MUSTER_ABORTED);
  EXPECT_EQ(muster_error_status(muster_last_error()), MUSTER_ABORTED);
}

TEST_F(FormedSessionTest, AClosedRendezvousRefusesJoins) {
  EXPECT_OK(muster_session_close_rendezvous(first_, "enough"));
  muster_join_options options = {};
  options.size = sizeof(options);
  options.world_size = 2;
  muster_formation* formation = nullptr;
  EXPECT_EQ(muster_session_join(first_, &options, &formation),
            MUSTER_OUT_OF_RANGE);
  EXPECT_THAT(muster_error_message(muster_last_error()), HasSubstr("enough"));
  EXPECT_EQ(formation, nullptr);
}

}  // namespace
}  // namespace muster::c
