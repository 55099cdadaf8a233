// Streams over real channels: batches, events, fencing, and how they end.

#include "coordinator/server/rpc/server_session.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/core/limits.h"
#include "coordinator/server/test_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

v1::Operation JoinOperation(uint64_t id, int rank, int world_size) {
  v1::Operation operation;
  operation.set_id(id);
  operation.mutable_join()->set_rank(rank);
  operation.mutable_join()->set_world_size(world_size);
  return operation;
}

v1::Operation BarrierOperation(uint64_t id, int rank) {
  v1::Operation operation;
  operation.set_id(id);
  operation.mutable_await_barrier()->set_group("world");
  operation.mutable_await_barrier()->set_name("b");
  operation.mutable_await_barrier()->set_rank(rank);
  return operation;
}

bool HasMember(const v1::GetJobResponse& job, const std::string& member,
               v1::MemberState state) {
  for (const v1::MemberInfo& info : job.members()) {
    if (info.member() == member && info.state() == state) return true;
  }
  return false;
}

// Two members of job "j", each with a stream and a connection of its own.
class Pair {
 public:
  explicit Pair(TestServer& server)
      : a_(std::make_unique<TestStream>(server.NewChannel())),
        b_(std::make_unique<TestStream>(server.NewChannel())) {
    a_->HelloMember("j", "a", 1);
    b_->HelloMember("j", "b", 1);
    a_->SendOperation(JoinOperation(1, 0, 2));
    EXPECT_EQ(b_->Call(JoinOperation(1, 1, 2)).join().rank(), 1);
    const v1::Result joined = a_->Await(1);
    EXPECT_EQ(joined.join().rank(), 0);
    EXPECT_EQ(joined.join().seats(1).host(), "host-b");
  }

  TestStream& a() { return *a_; }
  TestStream& b() { return *b_; }
  // Closes the connection of b.
  void DropB() { b_.reset(); }

 private:
  std::unique_ptr<TestStream> a_;
  std::unique_ptr<TestStream> b_;
};

TEST(SessionTest, BatchIsAnsweredInOneMessage) {
  TestServer server;
  TestStream stream(server.NewChannel());
  v1::StreamRequest request;
  *request.mutable_hello()->mutable_caller() = MakeCaller("j");
  ASSERT_TRUE(stream.Send(request));
  v1::StreamResponse welcome;
  ASSERT_TRUE(stream.Read(&welcome));
  EXPECT_EQ(welcome.welcome().coordinator_epoch(), server.server().epoch());
  EXPECT_FALSE(welcome.welcome().has_registration());

  v1::StreamRequest batch;
  for (uint64_t i = 1; i <= 100; ++i) {
    *batch.add_operations() =
        SetOperation(i, "k" + std::to_string(i), "v" + std::to_string(i));
    *batch.add_operations() = GetOperation(100 + i, "k" + std::to_string(i));
  }
  ASSERT_TRUE(stream.Send(batch));
  v1::StreamResponse answer;
  ASSERT_TRUE(stream.Read(&answer));
  ASSERT_EQ(answer.results_size(), 200);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(answer.results(2 * i).set().revision(), i + 1);
    EXPECT_EQ(answer.results(2 * i + 1).get().value(),
              "v" + std::to_string(i + 1));
  }
}

TEST(SessionTest, FirstMessageMayCarryOperations) {
  TestServer server;
  TestStream stream(server.NewChannel());
  v1::StreamRequest request;
  *request.mutable_hello()->mutable_caller() = MakeCaller("j");
  *request.add_operations() = SetOperation(1, "k", "v");
  ASSERT_TRUE(stream.Send(request));
  EXPECT_EQ(stream.Await(1).set().revision(), 1);
}

TEST(SessionTest, EveryOperationIsAnsweredByItsKind) {
  TestServer server;
  TestStream stream(server.NewChannel());
  stream.Hello("j");
  EXPECT_TRUE(stream.Call(SetOperation(1, "k", "v")).has_set());
  EXPECT_EQ(stream.Call(GetOperation(2, "k")).get().value(), "v");
  v1::Operation op;
  op.set_id(3);
  op.mutable_try_get()->set_key("absent");
  EXPECT_TRUE(stream.Call(op).has_try_get());
  op.mutable_add()->set_key("n");
  op.mutable_add()->set_delta(3);
  EXPECT_EQ(stream.Call(op).add().value(), 3);
  op.mutable_append()->set_key("k");
  op.mutable_append()->set_value("w");
  EXPECT_TRUE(stream.Call(op).has_append());
  op.mutable_check()->add_keys("k");
  EXPECT_TRUE(stream.Call(op).check().all_present());
  op.mutable_wait()->add_keys("k");
  EXPECT_TRUE(stream.Call(op).has_wait());
  op.mutable_compare_set()->set_key("k");
  op.mutable_compare_set()->set_expected("vw");
  op.mutable_compare_set()->set_desired("x");
  EXPECT_EQ(stream.Call(op).compare_set().value(), "x");
  op.mutable_num_keys();
  EXPECT_EQ(stream.Call(op).num_keys().count(), 2);
  op.mutable_multi_get()->add_keys("k");
  EXPECT_EQ(stream.Call(op).multi_get().values(0), "x");
  op.mutable_multi_set()->add_entries()->set_key("m");
  EXPECT_TRUE(stream.Call(op).has_multi_set());
  op.mutable_list_keys();
  EXPECT_EQ(stream.Call(op).list_keys().keys_size(), 3);
  op.mutable_delete_()->set_key("m");
  EXPECT_TRUE(stream.Call(op).delete_().deleted());
}

TEST(SessionTest, FailedOperationLeavesTheOthersAlone) {
  TestServer server;
  TestStream stream(server.NewChannel());
  stream.Hello("j");
  v1::StreamRequest batch;
  *batch.add_operations() = SetOperation(1, std::string(5000, 'k'), "v");
  *batch.add_operations() = SetOperation(2, "k", "v");
  ASSERT_TRUE(stream.Send(batch));
  const v1::Result failed = stream.Await(1);
  EXPECT_EQ(
      v1::FromWire(failed.status()),
      ResourceExhaustedError("limit key_bytes is 4096, offered 5000 (key \"" +
                             std::string(64, 'k') + "...\")"));
  EXPECT_EQ(failed.response_case(), v1::Result::RESPONSE_NOT_SET);
  EXPECT_FALSE(stream.Await(2).has_status());
}

TEST(SessionTest, ParkedOperationIsReleasedByAnotherSession) {
  TestServer server;
  TestStream waiter(server.NewChannel());
  TestStream setter(server.NewChannel());
  waiter.Hello("j");
  setter.Hello("j");
  for (uint64_t id = 1; id <= 50; ++id) {
    waiter.SendOperation(GetOperation(id, "k"));
  }
  server.AwaitWaiters("j", 50);
  setter.Call(SetOperation(1, "k", "v"));
  for (uint64_t id = 1; id <= 50; ++id) {
    EXPECT_EQ(waiter.Await(id).get().value(), "v");
  }
}

TEST(SessionTest, CancelledOperationIsAnsweredCancelled) {
  TestServer server;
  TestStream stream(server.NewChannel());
  stream.Hello("j");
  v1::StreamRequest batch;
  *batch.add_operations() = GetOperation(7, "never");
  ASSERT_TRUE(stream.Send(batch));
  v1::Operation cancel;
  cancel.set_id(8);
  cancel.mutable_cancel()->set_id(7);
  stream.SendOperation(cancel);
  EXPECT_EQ(stream.Await(7).status().code(),
            static_cast<int>(StatusCode::kCancelled));
  // Cancelling an id under which nothing waits is no error.
  stream.SendOperation(cancel);
  EXPECT_FALSE(stream.Call(SetOperation(9, "k", "v")).has_status());
}

TEST(SessionTest, SecondWaiterUnderOneIdIsCancelled) {
  TestServer server;
  TestStream stream(server.NewChannel());
  stream.Hello("j");
  v1::StreamRequest batch;
  *batch.add_operations() = GetOperation(7, "first");
  *batch.add_operations() = GetOperation(7, "second");
  ASSERT_TRUE(stream.Send(batch));
  EXPECT_EQ(stream.Await(7).status().code(),
            static_cast<int>(StatusCode::kCancelled));
  server.AwaitWaiters("j", 1);
  stream.SendOperation(SetOperation(8, "first", "v"));
  EXPECT_EQ(stream.Await(7).get().value(), "v");
}

TEST(SessionTest, RetryOnAnotherStreamIsAppliedOnce) {
  TestServer server;
  v1::Operation add;
  add.set_id(1);
  add.mutable_add()->set_key("n");
  add.mutable_add()->set_delta(1);
  add.mutable_add()->set_sequence(1);
  auto first = std::make_unique<TestStream>(server.NewChannel());
  first->HelloMember("j", "a", 1);
  EXPECT_EQ(first->Call(add).add().value(), 1);
  first.reset();
  TestStream second(server.NewChannel());
  second.HelloMember("j", "a", 1);
  EXPECT_EQ(second.Call(add).add().value(), 1);
  v1::StreamRequest batch;
  batch.set_acknowledged_through(1);
  *batch.add_operations() = add;
  batch.mutable_operations(0)->set_id(2);
  ASSERT_TRUE(second.Send(batch));
  EXPECT_EQ(second.Await(2).status().code(),
            static_cast<int>(StatusCode::kFailedPrecondition));
}

TEST(SessionTest, AnUnansweredNumberMayBeRetriedWhenYoungerAreAcknowledged) {
  TestServer server;
  v1::Operation add;
  add.mutable_add()->set_key("n");
  add.mutable_add()->set_delta(1);
  TestStream stream(server.NewChannel());
  stream.HelloMember("j", "a", 1);
  for (int n = 1; n <= 3; ++n) {
    add.set_id(n);
    add.mutable_add()->set_sequence(n);
    stream.Call(add);
  }
  v1::StreamRequest batch;
  batch.set_acknowledged_through(3);
  batch.add_unanswered(2);
  batch.add_unanswered(1);
  add.set_id(4);
  add.mutable_add()->set_sequence(1);
  *batch.add_operations() = add;
  ASSERT_TRUE(stream.Send(batch));
  EXPECT_EQ(stream.Await(4).add().value(), 1);
  // An older message has no effect.
  batch.set_acknowledged_through(2);
  batch.clear_unanswered();
  batch.mutable_operations(0)->set_id(5);
  ASSERT_TRUE(stream.Send(batch));
  EXPECT_EQ(stream.Await(5).add().value(), 1);
}

TEST(SessionTest, BarrierOverTwoStreams) {
  TestServer server;
  Pair pair(server);
  pair.a().SendOperation(BarrierOperation(2, 0));
  server.AwaitWaiters("j", 1);
  EXPECT_EQ(pair.b().Call(BarrierOperation(2, 1)).await_barrier().instance(),
            1);
  EXPECT_EQ(pair.a().Await(2).await_barrier().instance(), 1);
}

TEST(SessionTest, FailureIsToldToTheOthersAtOnce) {
  TestServer server;
  Pair pair(server);
  pair.a().SendOperation(BarrierOperation(2, 0));
  server.AwaitWaiters("j", 1);
  v1::Operation report;
  report.set_id(3);
  report.mutable_report_failure()->set_error("out of memory");
  EXPECT_TRUE(pair.b().Call(report).has_report_failure());
  const v1::MemberEvent event = pair.a().NextEvent();
  EXPECT_EQ(event.member().rank(), 1);
  EXPECT_EQ(event.member().host(), "host-b");
  EXPECT_EQ(event.member().state(), v1::MEMBER_STATE_FAILED);
  EXPECT_THAT(event.member().cause(), HasSubstr("out of memory"));
  EXPECT_EQ(event.generation(), 1);
  EXPECT_TRUE(event.generation_ended());
  const Status status = v1::FromWire(pair.a().Await(2).status());
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  ASSERT_TRUE(v1::GetCulprits(status).has_value());
  EXPECT_EQ(v1::GetCulprits(status)->members(0).host(), "host-b");
}

TEST(SessionTest, ReportCarriesCulpritsToAllAndTheReporterListens) {
  TestServer server;
  Pair pair(server);
  v1::Operation report;
  report.set_id(2);
  v1::ReportFailureRequest& request = *report.mutable_report_failure();
  request.set_error("rank 0 is stuck");
  request.set_code(static_cast<int>(StatusCode::kDeadlineExceeded));
  v1::MemberInfo* culprit = request.mutable_culprits()->add_members();
  culprit->set_rank(0);
  culprit->set_host("host-a");
  EXPECT_TRUE(pair.b().Call(report).has_report_failure());
  for (TestStream* stream : {&pair.a(), &pair.b()}) {
    const v1::MemberEvent event = stream->NextEvent();
    EXPECT_EQ(event.member().member(), "b");
    EXPECT_EQ(event.member().cause(), "rank 0 is stuck");
    EXPECT_TRUE(event.generation_ended());
    EXPECT_EQ(event.code(), 4);
    ASSERT_EQ(event.culprits().members_size(), 1);
    EXPECT_EQ(event.culprits().members(0).host(), "host-a");
  }
  // A heartbeat would end the stream of any other departed member.
  v1::StreamRequest heartbeat;
  heartbeat.mutable_heartbeat();
  ASSERT_TRUE(pair.b().Send(heartbeat));
  v1::Operation leave;
  leave.set_id(2);
  leave.mutable_leave()->set_reason("finished");
  EXPECT_TRUE(pair.a().Call(leave).has_leave());
  const v1::MemberEvent gone = pair.b().NextEvent();
  EXPECT_EQ(gone.member().member(), "a");
  EXPECT_EQ(gone.member().state(), v1::MEMBER_STATE_LEFT);
}

TEST(SessionTest, BrokenConnectionIsToldAfterTheGrace) {
  ServerOptions options;
  options.reconnect_grace = milliseconds(100);
  TestServer server(options);
  Pair pair(server);
  pair.DropB();
  const v1::MemberEvent event = pair.a().NextEvent();
  EXPECT_EQ(event.member().member(), "b");
  EXPECT_EQ(event.member().state(), v1::MEMBER_STATE_LOST);
  EXPECT_THAT(event.member().cause(), HasSubstr("connection"));
}

TEST(SessionTest, ReconnectWithinTheGraceKeepsTheMember) {
  ServerOptions options;
  options.reconnect_grace = std::chrono::minutes(5);
  TestServer server(options);
  Pair pair(server);
  pair.DropB();
  server.Await("j", [](const v1::GetJobResponse& job) {
    return HasMember(job, "b", v1::MEMBER_STATE_DISCONNECTED);
  });
  TestStream again(server.NewChannel());
  const v1::Welcome welcome = again.HelloMember("j", "b", 1);
  EXPECT_EQ(welcome.registration().generation(), 1);
  EXPECT_TRUE(welcome.registration().generation_running());
  EXPECT_EQ(welcome.registration().rank(), 1);
  EXPECT_TRUE(HasMember(server.Job("j"), "b", v1::MEMBER_STATE_ALIVE));
  pair.a().SendOperation(BarrierOperation(2, 0));
  EXPECT_FALSE(again.Call(BarrierOperation(2, 1)).has_status());
  EXPECT_FALSE(pair.a().Await(2).has_status());
}

TEST(SessionTest, LateReconnectIsToldWhatEndedItsGeneration) {
  ServerOptions options;
  options.reconnect_grace = std::chrono::minutes(5);
  TestServer server(options);
  Pair pair(server);
  pair.DropB();
  v1::Operation report;
  report.set_id(2);
  report.mutable_report_failure()->set_error("out of memory");
  pair.a().Call(report);
  TestStream again(server.NewChannel());
  EXPECT_FALSE(
      again.HelloMember("j", "b", 1).registration().generation_running());
  const v1::MemberEvent event = again.NextEvent();
  EXPECT_EQ(event.member().member(), "a");
  EXPECT_TRUE(event.generation_ended());
}

TEST(SessionTest, NewStreamOfTheSameIncarnationTakesOver) {
  TestServer server;
  TestStream older(server.NewChannel());
  older.HelloMember("j", "a", 1);
  TestStream newer(server.NewChannel());
  newer.HelloMember("j", "a", 1);
  EXPECT_EQ(older.Finish(),
            AbortedError("another stream of member \"a\" took over"));
  EXPECT_TRUE(HasMember(server.Job("j"), "a", v1::MEMBER_STATE_ALIVE));
  EXPECT_FALSE(newer.Call(SetOperation(1, "k", "v")).has_status());
}

TEST(SessionTest, NewIncarnationFencesTheOlderStream) {
  TestServer server;
  TestStream older(server.NewChannel());
  older.HelloMember("j", "a", 1);
  TestStream newer(server.NewChannel());
  newer.HelloMember("j", "a", 2);
  EXPECT_EQ(older.Finish(),
            FailedPreconditionError(
                "stale incarnation 1 of member \"a\", current is 2"));
  TestStream zombie(server.NewChannel());
  v1::StreamRequest request;
  *request.mutable_hello()->mutable_caller() = MakeCaller("j", "a", 1);
  request.mutable_hello()->mutable_registration();
  ASSERT_TRUE(zombie.Send(request));
  EXPECT_EQ(zombie.Finish().code(), StatusCode::kFailedPrecondition);
}

TEST(SessionTest, SilentMemberIsLostAndItsNextHeartbeatTellsIt) {
  ServerOptions options;
  options.lease = milliseconds(200);
  TestServer server(options);
  TestStream stream(server.NewChannel());
  stream.HelloMember("j", "a", 1);
  server.Await("j", [](const v1::GetJobResponse& job) {
    return HasMember(job, "a", v1::MEMBER_STATE_LOST);
  });
  v1::StreamRequest request;
  request.mutable_heartbeat();
  ASSERT_TRUE(stream.Send(request));
  const Status status = stream.Finish();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("was lost"));
}

TEST(SessionTest, HeartbeatCarriesProgressAndHasNoResult) {
  TestServer server;
  TestStream stream(server.NewChannel());
  stream.HelloMember("j", "a", 1);
  v1::StreamRequest request;
  v1::GroupProgress* group = request.mutable_heartbeat()->add_groups();
  group->set_group("world");
  group->set_last_enqueued(2);
  group->set_current("broadcast int32[1]");
  *request.add_operations() = SetOperation(0, "k", "v");
  ASSERT_TRUE(stream.Send(request));
  EXPECT_TRUE(stream.Await(0).has_set());
  EXPECT_THAT(server.Job("j").members(0).last_progress(),
              HasSubstr("broadcast int32[1]"));
}

TEST(SessionTest, MalformedBeginningsAreRefused) {
  TestServer server;
  {
    TestStream stream(server.NewChannel());
    stream.SendOperation(SetOperation(1, "k", "v"));
    EXPECT_EQ(stream.Finish(),
              InvalidArgumentError(
                  "the first message of a stream must carry a hello"));
  }
  {
    TestStream stream(server.NewChannel());
    stream.HalfClose();
    EXPECT_EQ(stream.Finish(),
              InvalidArgumentError("the stream ended without a hello"));
  }
  {
    TestStream stream(server.NewChannel());
    stream.Hello("no/such name");
    EXPECT_EQ(stream.Finish().code(), StatusCode::kInvalidArgument);
  }
  {
    TestStream stream(server.NewChannel());
    stream.Hello("j");
    stream.Hello("j");
    EXPECT_EQ(stream.Finish(), InvalidArgumentError("a second hello"));
  }
  {
    TestStream stream(server.NewChannel());
    stream.Hello("j");
    v1::Operation empty;
    empty.set_id(5);
    stream.SendOperation(empty);
    EXPECT_EQ(stream.Finish(),
              InvalidArgumentError("operation 5 has no request"));
  }
}

TEST(SessionTest, HalfClosedStreamStillGetsItsAnswers) {
  TestServer server;
  TestStream stream(server.NewChannel());
  stream.Hello("j");
  stream.SendOperation(GetOperation(1, "k"));
  stream.HalfClose();
  server.AwaitWaiters("j", 1);
  TestStream setter(server.NewChannel());
  setter.Hello("j");
  setter.Call(SetOperation(1, "k", "v"));
  EXPECT_EQ(stream.Await(1).get().value(), "v");
  EXPECT_TRUE(stream.Finish().ok());
}

TEST(SessionTest, EndedStreamLeavesNothingParked) {
  TestServer server;
  {
    TestStream stream(server.NewChannel());
    stream.Hello("j");
    for (uint64_t id = 1; id <= 20; ++id) {
      stream.SendOperation(GetOperation(id, "never"));
    }
    server.AwaitWaiters("j", 20);
  }
  server.AwaitWaiters("j", 0);
}

TEST(SessionTest, OneStreamTooManyIsRefused) {
  ServerOptions options;
  options.sessions_max = 1;
  TestServer server(options);
  TestStream first(server.NewChannel());
  first.Hello("j");
  first.Call(SetOperation(1, "k", "v"));
  TestStream second(server.NewChannel());
  EXPECT_EQ(second.Finish(),
            ResourceExhaustedError("limit sessions is 1, offered 2" +
                                   core::LimitAdvice("sessions")));
}

// A client that requests far more than it reads must not grow the coordinator
// and must not keep its stream.
TEST(SessionTest, ClientThatNeverReadsIsCutOff) {
  ServerOptions options;
  options.stalled_reader_timeout = milliseconds(500);
  TestServer server(options);
  TestStream other(server.NewChannel());
  other.Hello("j");
  other.Call(SetOperation(1, "big", std::string(1 << 20, 'v')));

  TestStream stream(server.NewChannel());
  stream.Hello("j");
  v1::StreamRequest batch;
  for (uint64_t id = 1; id <= 64; ++id) {
    *batch.add_operations() = GetOperation(id, "big");
  }
  ASSERT_TRUE(stream.Send(batch));
  // The stream breaks although the client never reads.
  while (stream.Send(v1::StreamRequest())) {
  }
  // RESOURCE_EXHAUSTED if the status still gets through, else a reset.
  EXPECT_THAT(
      stream.Finish().code(),
      testing::AnyOf(StatusCode::kResourceExhausted, StatusCode::kCancelled));
  EXPECT_FALSE(other.Call(SetOperation(2, "k", "v")).has_status());
}

TEST(SessionTest, AnswersLargerThanAMessageArriveInSeveral) {
  TestServer server;
  TestStream stream(server.NewChannel());
  stream.Hello("j");
  stream.Call(SetOperation(1, "big", std::string(1 << 20, 'v')));
  v1::StreamRequest batch;
  for (uint64_t id = 2; id <= 41; ++id) {
    *batch.add_operations() = GetOperation(id, "big");
  }
  ASSERT_TRUE(stream.Send(batch));
  for (uint64_t id = 2; id <= 41; ++id) {
    EXPECT_EQ(stream.Await(id).get().value().size(), size_t{1} << 20);
  }
}

// Streams begin, wait and end while others set keys; for the sanitizers.
TEST(SessionTest, ManySessionsComeAndGo) {
  TestServer server;
  constexpr int kThreads = 8;
  constexpr int kRounds = 12;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        TestStream stream(server.NewChannel());
        stream.HelloMember("j", "m" + std::to_string(t), round + 1);
        v1::StreamRequest batch;
        *batch.add_operations() =
            GetOperation(1, "k" + std::to_string(round * kThreads + t));
        *batch.add_operations() = SetOperation(
            2, "k" + std::to_string(round * kThreads + (t + 1) % kThreads),
            "v");
        EXPECT_TRUE(stream.Send(batch));
        EXPECT_EQ(stream.Await(1).get().value(), "v");
        if (round % 3 == 0) {
          stream.SendOperation(GetOperation(3, "never"));
        } else if (round % 3 == 1) {
          stream.HalfClose();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  server.AwaitWaiters("j", 0);
}

}  // namespace
}  // namespace muster::coordinator
